"""Cells, counters, prompts: the arithmetic between samples and receipt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy_kit.bench.about import about_plan, read_key
from deploy_kit.bench.answers import Answer
from deploy_kit.bench.counters import engine_cell, read_counters
from deploy_kit.bench.load import poisson_arrivals
from deploy_kit.bench.measure import Sample, cell_round, percentile
from deploy_kit.bench.prompts import built_in, from_file
from deploy_kit.bench.run import Settings, cell_scripts
from deploy_kit.errors import DeployKitError
from deploy_kit.receipts.bench import EngineCell


def answer(
    tokens: int, step: float, *, per_event: int = 1, error: str | None = None, verifies: int | None = None
) -> Answer:
    counts = [1, *range(1 + per_event, tokens + 1, per_event)]
    events = tuple((0.5 + step * index, count) for index, count in enumerate(counts))
    return Answer(
        output_tokens=counts[-1],
        prompt_tokens=100,
        ttft_seconds=0.5,
        e2e_seconds=events[-1][0],
        events=events,
        text="",
        error=error,
        spec_verify_count=verifies,
    )


def test_a_cell_counts_all_tokens_but_times_only_whole_answers() -> None:
    samples = [
        Sample(0, 0, 0.0, answer(101, 0.02, per_event=2)),
        Sample(1, 0, 0.0, answer(51, 0.02, per_event=2, error="lost"), retries=1),
    ]
    cell = cell_round(samples, round_number=0, interval_seconds=2.0, engine=EngineCell(), concurrency=2)
    assert (cell.requests, cell.errors, cell.retries) == (1, 1, 1)
    assert cell.output_tokens == 152
    assert cell.tokens_per_second == pytest.approx(76)
    assert cell.stream_tokens_per_second == pytest.approx(100)
    assert cell.cycle_seconds == pytest.approx(0.02)
    assert cell.client_accept_length == pytest.approx(2.0)
    assert cell.ttft_seconds is not None
    assert cell.ttft_seconds.count == 1


def test_a_cell_where_everything_failed_has_no_latency() -> None:
    bad = Sample(0, 0, 0.0, Answer(0, None, None, 1.0, (), "", "refused"))
    cell = cell_round([bad], round_number=0, interval_seconds=1.0, engine=EngineCell(), concurrency=1)
    assert cell.errors == 1
    assert cell.tokens_per_second == 0
    assert cell.itl_seconds is None
    assert cell.context_band == "unknown"


def test_the_requests_own_verify_counts_stand_in_for_missing_counters() -> None:
    samples = [Sample(0, 0, 0.0, answer(101, 0.02, per_event=2, verifies=50))]
    engine = EngineCell(unknown={"accept_length": "x", "verify_seconds": "y"})
    cell = cell_round(samples, round_number=0, interval_seconds=2.0, engine=engine, concurrency=1)
    assert cell.engine.accept_length == pytest.approx(2.0)
    assert cell.engine.accept_length_source == "meta_info.spec_verify_ct"
    assert cell.engine.unknown == {"verify_seconds": "y"}


@settings(deadline=None)  # the first call imports numpy
@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_percentiles_agree_with_numpy(values: list[float], share: float) -> None:
    numpy = pytest.importorskip("numpy")
    assert percentile(sorted(values), share) == pytest.approx(
        float(numpy.percentile(values, share * 100)), rel=1e-9, abs=1e-9
    )


PAGE = """sglang:generation_tokens_total{tp_rank="0"} 5
deploy_kit_forward_seconds_sum{phase="verify",tp_rank="0"} %s
deploy_kit_forward_seconds_count{phase="verify",tp_rank="0"} %s
deploy_kit_forward_seconds_sum{phase="verify",tp_rank="1"} 77
deploy_kit_forward_seconds_count{phase="verify",tp_rank="1"} 7
deploy_kit_forward_seconds_sum{phase="draft",tp_rank="0"} %s
deploy_kit_forward_seconds_count{phase="draft",tp_rank="0"} 300
deploy_kit_spec_accept_length_sum{tp_rank="0"} %s
deploy_kit_spec_accept_length_count{tp_rank="0"} %s
deploy_kit_spec_cycle_seconds_sum{tp_rank="0"} %s
deploy_kit_spec_cycle_seconds_count{tp_rank="0"} %s
"""


def test_the_difference_over_the_cell_is_what_counts() -> None:
    before = read_counters(PAGE % (100, 1000, 10, 9000, 3000, 130, 1000))
    after = read_counters(PAGE % (102.5, 1100, 10.3, 9200, 3100, 133, 1100))
    cell = engine_cell(after.since(before), requests=1, output_tokens=201)
    assert cell.verify_seconds == pytest.approx(0.025)
    assert cell.draft_seconds == pytest.approx(0.003)
    assert cell.accept_length == pytest.approx(2.0)
    assert cell.step_seconds == pytest.approx(0.030)
    assert cell.verify_count == 100
    assert cell.unknown == {}


@pytest.mark.parametrize("prefix", ["sglang:", "sglang_"])
def test_without_the_plugin_sglangs_own_counter_gives_the_accept_length(prefix: str) -> None:
    page = prefix + 'spec_verify_calls_total{tp_rank="0"} %s\n'
    growth = read_counters(page % 150).since(read_counters(page % 50))
    cell = engine_cell(growth, requests=2, output_tokens=302)
    assert cell.accept_length == pytest.approx(3.0)
    assert cell.accept_length_source == "spec_verify_calls_total"
    assert "verify_seconds" in cell.unknown


def test_nothing_measured_is_unknown_with_its_reason() -> None:
    assert (
        engine_cell(None, requests=1, output_tokens=9, reason="no metrics").unknown["verify_seconds"]
        == "no metrics"
    )
    assert engine_cell(read_counters("<html>"), requests=1, output_tokens=9).accept_length is None
    restarted = read_counters(PAGE % ((1,) * 7)).since(read_counters(PAGE % ((50,) * 7)))
    assert engine_cell(restarted, requests=1, output_tokens=9).verify_seconds is None


@settings(deadline=None)
@given(st.text())
def test_any_page_is_read(text: str) -> None:
    read_counters(text)


def test_arrivals_are_seeded_and_have_the_rate() -> None:
    first = poisson_arrivals(5.0, 2000, 7)
    assert first == poisson_arrivals(5.0, 2000, 7) != poisson_arrivals(5.0, 2000, 8)
    assert first == sorted(first)
    assert 2000 / first[-1] == pytest.approx(5.0, rel=0.1)


def test_built_in_prompts_are_real_text_of_the_asked_length() -> None:
    plain = built_in()
    assert len(plain.scripts) == 12
    assert all(400 < len(script[0]) < 1500 for script in plain.scripts)
    long = built_in(1000)
    assert all(3000 < len(script[0]) <= 4000 for script in long.scripts)
    assert len({script[0] for script in long.scripts}) == 12
    assert plain.sha256 == built_in().sha256 != long.sha256
    with pytest.raises(DeployKitError, match="flatter"):
        built_in(100_000)


def test_cells_get_the_same_scripts_for_every_profile_and_others_each_round() -> None:
    prompts, wanted = built_in(), Settings()
    one = cell_scripts(prompts, wanted, 16, (4, None), 0)
    assert (
        one
        == cell_scripts(prompts, wanted, 16, (4, None), 0)
        != cell_scripts(prompts, wanted, 16, (4, None), 1)
    )
    assert len({turns[0] for _, turns in one}) == 16  # none shares its beginning with another
    assert len({number for number, _ in one}) == 12


def test_prompt_files(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "one"}\n\n{"turns": ["two", "three"]}\n')
    assert from_file(file).scripts == (("one",), ("two", "three"))
    for bad in ("{", "[]", '{"turns": []}', '{"turns": [1]}', '{"text": "x"}'):
        file.write_text('{"prompt": "one"}\n' + bad)
        with pytest.raises(DeployKitError) as caught:
            from_file(file)
        assert caught.value.key == "line 2"
    text = tmp_path / "p.txt"
    text.write_text("first\n=====\nsecond\n")
    assert from_file(text).scripts == (("first",), ("second",))
    text.write_text("\n=====\n")
    with pytest.raises(DeployKitError, match="no prompt"):
        from_file(text)


def test_keys_and_plans_are_checked(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("abc-123\n")
    assert read_key(key) == "abc-123"
    key.write_text("two words")
    with pytest.raises(DeployKitError) as caught:
        read_key(key)
    assert "two" not in str(caught.value)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"plan_id": "x"}))
    with pytest.raises(DeployKitError, match="not a plan") as refused:
        about_plan(plan)
    assert refused.value.key == "profile"
    plan.write_text("[")
    with pytest.raises(DeployKitError, match="not a plan"):
        about_plan(plan)
