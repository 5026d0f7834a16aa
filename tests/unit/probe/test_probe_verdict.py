"""Verdicts, receipts, tables and plots from runs whose answer is known."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deploy_kit.errors import DeployKitError
from deploy_kit.probe.candidates import STORY, Candidate, nccl_candidate
from deploy_kit.probe.classify import Outcome
from deploy_kit.probe.fusion import FUSIONS, named_fusions, summarize_fusion
from deploy_kit.probe.plot import write_plots
from deploy_kit.probe.report import describe, describe_fusion, make_receipt, verdict_lines
from deploy_kit.probe.runner import ProbeRun, Record, Settings
from deploy_kit.probe.verdict import break_even, summarize
from deploy_kit.receipts import read_receipts, write_receipt

LL = nccl_candidate({"protocol": "LL"})
SIMPLE = nccl_candidate({"protocol": "Simple"})
SYMM = Candidate("symm-one-shot", "symm-one-shot", point=None, use="lever torch-symm-mem")


def settings(**changes: object) -> Settings:
    given: dict[str, object] = {
        "hidden": 7168,
        "tokens": (1, 4, 64),
        "count": 122,
        "ranks": 8,
        "backend": "nccl",
        "python": "python3",
    }
    return Settings(**{**given, **changes})  # type: ignore[arg-type]


def record(candidate: Candidate, latencies: dict[int, float], *, noise: float = 0.005) -> Record:
    draw = random.Random(candidate.name)
    found = Record(candidate, Outcome("ok"), ranks_agree=True)
    for tokens, latency in latencies.items():
        for _ in range(5):
            found.add("final", tokens, [round(latency * draw.uniform(1, 1 + noise), 3) for _ in range(8)])
    return found


def run(*records: Record, **changes: object) -> ProbeRun:
    named = {found.candidate.name: found for found in records}
    return ProbeRun(
        settings(**changes), named, 61.5, {"cpus": 32, "gpus": None, "unknown": "no NVML"}, [], [], []
    )


DEFAULT = record(nccl_candidate({}), {1: 23.6, 4: 25.7, 64: 71.6})


def test_the_fastest_of_each_size_is_named_with_its_gain() -> None:
    found = summarize(
        run(DEFAULT, record(STORY, {1: 22.2, 4: 29.6, 64: 137}), record(LL, {1: 20, 4: 22, 64: 122}))
    )
    assert found["verdict"] == "ok"
    assert [found["sizes"][size]["fastest"] for size in ("1", "4", "64")] == ["LL", "LL", "nccl-default"]
    assert found["sizes"]["4"]["ratio_to_default"]["median"] == pytest.approx(22 / 25.7, rel=0.01)
    assert found["sizes"]["4"]["ratio_to_story"]["median"] == pytest.approx(22 / 29.6, rel=0.01)
    assert found["sizes"]["4"]["sure"]


def test_one_setting_for_all_sizes_must_surely_beat_the_default() -> None:
    worse_at_64 = summarize(run(DEFAULT, record(LL, {1: 20, 4: 22, 64: 122})))["host_setting"]
    assert worse_at_64["candidate"] == "nccl-default"
    assert worse_at_64["environment"] == {}
    better = summarize(run(DEFAULT, record(LL, {1: 15, 4: 16, 64: 80})))["host_setting"]
    assert better["candidate"] == "LL"
    assert better["environment"] == {"NCCL_PROTO": "LL"}
    assert better["slower_than_default_at_tokens"] == [64]


def test_noise_is_no_win() -> None:
    twin = record(LL, {1: 23.6, 4: 25.7, 64: 71.6}, noise=0.05)
    found = summarize(run(record(nccl_candidate({}), {1: 23.6, 4: 25.7, 64: 71.6}, noise=0.05), twin))
    assert found["host_setting"]["candidate"] == "nccl-default"
    assert not all(size["sure"] for size in found["sizes"].values())


def test_wrong_or_hung_candidates_win_nothing_however_fast() -> None:
    fast = record(LL, {1: 1, 4: 1, 64: 1})
    fast.outcome = Outcome("wrong", "replay", (3,), "1 of 7168 elements differ")
    found = summarize(run(DEFAULT, fast))
    assert {size["fastest"] for size in found["sizes"].values()} == {"nccl-default"}
    assert found["candidates"]["LL"]["status"] == "wrong"


def test_references_that_no_engine_reaches_win_nothing() -> None:
    bare = record(Candidate("bare", "symm-bare", point=None, deployable=False), {1: 2, 4: 2, 64: 2})
    found = summarize(run(DEFAULT, bare))
    assert found["sizes"]["1"]["fastest"] == "nccl-default"
    assert "bare" in found["sizes"]["1"]["latency_us"]


def test_another_implementation_wins_its_sizes_but_not_the_host_file() -> None:
    found = summarize(run(DEFAULT, record(SYMM, {1: 6.4, 4: 6.5, 64: 12.2})))
    assert found["sizes"]["4"]["fastest"] == "symm-one-shot"
    assert found["sizes"]["4"]["use"] == "lever torch-symm-mem"
    assert found["host_setting"]["candidate"] == "nccl-default"


def test_default_broken_is_a_warning_and_nothing_correct_a_failure() -> None:
    hung = Record(nccl_candidate({}), Outcome("hang", "join", (0, 1), "all ranks"))
    assert summarize(run(hung, record(LL, {1: 1, 4: 1, 64: 1})))["verdict"] == "warn"
    nothing = summarize(run(hung))
    assert nothing["verdict"] == "fail"
    assert nothing["sizes"]["1"]["fastest"] is None
    assert nothing["host_setting"]["candidate"] is None
    absent = Record(SYMM, Outcome("unsupported", cause="it needs CUDA GPUs"))
    assert summarize(run(absent))["verdict"] == "unknown"


def test_forward_costs_are_count_times_latency() -> None:
    forwards = summarize(run(DEFAULT))["forwards"]["candidates"]["nccl-default"]
    assert forwards["decode_ms"] == pytest.approx(122 * 23.6 / 1000, rel=0.01)
    assert forwards["verify_ms"] == pytest.approx(122 * 25.7 / 1000, rel=0.01)


def test_break_even_is_the_story_s_and_moves_with_the_winner() -> None:
    assert break_even(1000 / 82, 30) == pytest.approx(2.46)
    slow = record(nccl_candidate({}), {1: 60, 4: 205, 64: 300})
    found = summarize(run(slow, record(SYMM, {1: 20, 4: 30, 64: 90})), decode_step_ms=12.2, cycle_ms=30)
    even = found["forwards"]["break_even"]
    step, cycle = 12.2 - 122 * 0.040, 30 - 122 * 0.175
    assert even["measured_accept_length"] == pytest.approx(30 / 12.2, rel=0.001)
    assert even["with"]["symm-one-shot"]["accept_length"] == pytest.approx(cycle / step, rel=0.02)


def test_break_even_without_measured_times_is_unknown_and_says_what_is_missing() -> None:
    even = summarize(run(DEFAULT))["forwards"]["break_even"]
    assert "--cycle-ms" in even["unknown"]
    assert "measured_accept_length" not in even


def test_times_that_cannot_be_this_host_s_give_unknown_not_a_negative_number() -> None:
    slow = record(nccl_candidate({}), {1: 205, 4: 205, 64: 300})
    even = summarize(run(slow, record(SYMM, {1: 6, 4: 6, 64: 9})), decode_step_ms=12, cycle_ms=14)["forwards"]
    assert "unknown" in even["break_even"]["with"]["symm-one-shot"]


def test_without_the_sizes_one_and_four_forwards_are_unknown() -> None:
    only = summarize(run(record(nccl_candidate({}), {8: 20}), tokens=(8,)))
    assert only["forwards"]["candidates"]["nccl-default"] == {"decode_ms": None, "verify_ms": None}


def test_the_receipt_holds_every_sample_and_what_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_PROTO", "LL")
    monkeypatch.setenv("NCCL_SHM_DISABLE", "1")
    done = run(DEFAULT, record(LL, {1: 20, 4: 22, 64: 122}))
    receipt = make_receipt(
        done, summarize(done), kind="allreduce", host_name="box", model_name="kimi-k2.5", command="c"
    )
    write_receipt(tmp_path, receipt)
    (back,) = read_receipts(tmp_path, kind="allreduce").receipts
    assert not back.rehearsal
    entries: list[Any] = list(back.samples)
    assert sum(len(samples) for entry in entries for samples in entry["rounds_us"]) == 2 * 3 * 5 * 8
    base = back.subject["base_environment"]
    assert isinstance(base, dict)
    assert base["NCCL_SHM_DISABLE"] == "1"
    assert "NCCL_PROTO" not in base  # a setting under test is never taken from the caller's shell


def test_a_rehearsal_is_labelled_everywhere(tmp_path: Path) -> None:
    done = run(DEFAULT, backend="gloo")
    summary = summarize(done)
    assert make_receipt(done, summary, kind="allreduce", host_name="x", model_name="m", command="c").rehearsal
    assert "REHEARSAL" in shown(describe(done, summary))


def shown(renderable: object) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(renderable)
    return console.export_text()


def test_the_table_shows_outcomes_and_the_verdict_in_sentences() -> None:
    hung = Record(SYMM, Outcome("hang", "replay", (3,), "still at: 4 tokens"))
    done = run(DEFAULT, hung)
    text = shown(describe(done, summarize(done)))
    assert "hang" in text
    assert "rank 3" in text
    assert "23.6" in text
    assert any("nccl-default" in line for line in verdict_lines(done, summarize(done)))


def test_plots_are_complete_files_that_need_nothing_else(tmp_path: Path) -> None:
    done = run(DEFAULT, record(STORY, {1: 22.2, 4: 29.6, 64: 137}), record(LL, {1: 20, 4: 22, 64: 122}))
    summary = summarize(done)
    png, page = write_plots(tmp_path / "plot.png", summary, "A <title> & more", ["verdict </script>"])
    assert png.read_bytes().startswith(b"\x89PNG")
    html = page.read_text(encoding="utf-8")
    assert "<svg" in html
    assert "story-2ch-128k" in html
    assert "A &lt;title&gt; &amp; more" in html
    assert "src=" not in html
    data = html.split("id='summary'>")[1].split("</script>")[0]
    assert json.loads(data)["sizes"].keys() == {"1", "4", "64"}


def test_fusion_is_accepted_only_when_correct_and_equal_on_all_ranks() -> None:
    good = record(FUSIONS[1], {1: 9.0, 4: 9.5, 64: 30})
    for tokens in (1, 4, 64):
        for _ in range(5):
            good.add("unfused", tokens, [18.0] * 8)
    found = summarize_fusion(run(good))
    assert found["verdict"] == "ok"
    entry = found["candidates"]["flashinfer-auto"]
    assert entry["acceptance"] == "accept"
    assert entry["sizes"]["1"]["ratio_to_unfused"]["median"] == pytest.approx(0.5, rel=0.01)
    assert "accept" in shown(describe_fusion(run(good), found))
    good.ranks_agree = False
    rejected = summarize_fusion(run(good))
    assert rejected["verdict"] == "fail"
    assert "bits" in rejected["candidates"]["flashinfer-auto"]["cause"]


def test_a_fusion_that_could_not_run_is_unknown_never_accepted() -> None:
    absent = Record(FUSIONS[1], Outcome("unsupported", "join", (0,), "flashinfer-python is not installed"))
    reference = record(FUSIONS[0], {1: 18, 4: 18, 64: 40})
    found = summarize_fusion(run(reference, absent))
    assert found["verdict"] == "unknown"
    assert found["candidates"]["flashinfer-auto"]["acceptance"] == "unknown"


def test_unknown_fusion_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(DeployKitError) as caught:
        named_fusions(["flashinfer"], 2)
    assert "flashinfer-auto" in (caught.value.allowed or "")


def test_ranks_on_one_gpu_decide_nothing_but_show_what_is_wrong() -> None:
    right = Record(SYMM, Outcome("ok"), ranks_agree=True)
    done = run(right, shared_gpu=True)
    summary = summarize(done)
    assert summary["verdict"] == "unknown"
    assert summary["sizes"]["1"]["fastest"] is None
    assert make_receipt(done, summary, kind="allreduce", host_name="x", model_name="m", command="c").rehearsal
    assert "one GPU" in shown(describe(done, summary))
    wrong = Record(SYMM, Outcome("wrong", "replay", (1,), "1 of 7168 elements differ"))
    assert summarize(run(wrong, shared_gpu=True))["verdict"] == "fail"
