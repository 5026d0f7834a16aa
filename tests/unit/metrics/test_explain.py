"""Situations beyond the recorded cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy_kit.metrics.explain import explain
from deploy_kit.metrics.reading import Histogram, read
from deploy_kit.metrics.text import parse

LABELS = 'engine_type="unified",model_name="target",pp_rank="0",tp_rank="0"'
LOAD = f"sglang:num_running_reqs{{{LABELS}}} 3.0\nsglang:gen_throughput{{{LABELS}}} 91.5\n"
SCRAPES = Path(__file__).parent / "scrapes"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("\n\n", "empty"),
        ("# EOF\n", "OpenMetrics"),
        ("<!DOCTYPE html><html><body>502</body></html>\n", "HTML"),
        ('{"error": "Unauthorized"}\n', "401"),
        ('{"detail":"Not Found"}\n', "no /metrics"),
        ('{"status":"success","data":{"resultType":"vector","result":[]}}', "Prometheus query"),
        ("Unauthorized", "401"),
        ('smg_http_requests_total{route="a"} 3\n', "router"),
        ('vllm:num_requests_running{model_name="m"} 3\nvllm:prompt_tokens_total 4\n', "vllm:"),
        ("# HELP sglang:gen_throughput x\n# TYPE sglang:gen_throughput gauge\n", "only headings"),
        ("\x00\x01\x02\n", "no line can be read"),
        ("curl: (7) Failed to connect to localhost port 30000\n", "no connection"),
        ("Internal Server Error", "500"),
        ("404 page not found\n", "404"),
    ],
)
def test_no_data_says_what_it_is_instead(text: str, words: str) -> None:
    answer = explain(text)
    assert answer.verdict == "no-data"
    assert words in answer.cause
    assert answer.facts == {}


@pytest.mark.parametrize("number", ["NaN", "+Inf", "-Inf", "-3"])
def test_a_value_that_is_no_measurement_is_absent_and_counted(number: str) -> None:
    answer = explain(f"{LOAD}sglang:num_queue_reqs{{{LABELS}}} {number}\n")
    assert "queued" not in answer.facts
    assert answer.problems["unusable value"] == 1
    assert answer.verdict == "partial"
    assert answer.facts["running"] == 3


def test_text_cut_inside_a_number_is_not_believed() -> None:
    answer = explain(LOAD.rstrip("\n")[:-2])
    assert "gen_tok_s" not in answer.facts
    assert answer.verdict == "partial"
    assert "truncated" in answer.cause


def test_router_prefix_is_read_the_same() -> None:
    answer = explain(LOAD.replace("sglang:", "sglang_"))
    assert answer.verdict == "ok"
    assert answer.facts["running"] == 3


def test_both_prefixes_at_once_are_not_added() -> None:
    assert explain(LOAD + LOAD.replace("sglang:", "sglang_")).facts["running"] == 3


def test_missing_prefix_is_read_and_said() -> None:
    answer = explain(LOAD.replace("sglang:", ""))
    assert answer.facts["gen_tok_s"] == 91.5
    assert "prefix missing" in answer.cause


def test_a_log_is_no_scrape() -> None:
    answer = explain("[2026-11-03 10:15:05 TP0] Load weight begin. avail mem=93.80 GB\n")
    assert (answer.verdict, answer.cause) == ("no-data", "an engine's log instead of metrics")
    assert explain('[{"error": "Not Found"}]\n').cause.startswith("JSON")


def test_streaming_and_other_requests_are_no_data_parallel_ranks() -> None:
    answer = explain(
        'sglang:num_running_reqs{model_name="m",tp_rank="0"} 1.0\n'
        'sglang:num_requests_total{is_streaming="false",model_name="m"} 2.0\n'
        'sglang:num_requests_total{is_streaming="true",model_name="m"} 5.0\n'
    )
    assert answer.facts["requests"] == 7
    assert answer.verdict == "ok"
    assert "data-parallel" not in answer.cause


def test_data_parallel_ranks_add_up_load_only() -> None:
    lines = "".join(
        f'sglang:{name}{{model_name="m",dp_rank="{rank}",tp_rank="{rank * 2 + copy}"}} {value}\n'
        for name, values in {"num_running_reqs": (2.0, 5.0), "spec_accept_length": (2.0, 3.0)}.items()
        for rank, value in enumerate(values)
        for copy in (0, 1)
    )
    answer = explain(lines)
    assert answer.facts["running"] == 7
    assert "accept_length" not in answer.facts
    assert answer.facts["accept_length_by_part"] == {"dp_rank=0": 2, "dp_rank=1": 3}


def test_two_models_are_not_mixed() -> None:
    answer = explain(LOAD + LOAD.replace("target", "other"))
    assert [engine["model"] for engine in answer.facts["engines"]] == ["other", "target"]
    assert "running" not in answer.facts


def test_prefill_and_decode_servers_are_apart() -> None:
    text = LOAD.replace("unified", "prefill") + LOAD.replace("unified", "decode")
    answer = explain(text)
    assert [engine["engine_type"] for engine in answer.facts["engines"]] == ["decode", "prefill"]
    assert "gen_tok_s" not in answer.facts


def test_dead_process_lingers() -> None:
    series = 'sglang:gen_throughput{model_name="m",pid="PID"} '
    text = f"{series.replace('PID', '7')}80.0\n{series.replace('PID', '9')}20.0\n"
    answer = explain(text)
    assert "gen_tok_s" not in answer.facts
    assert "dead one" in answer.cause


def test_duplicated_series() -> None:
    assert explain(LOAD + LOAD).facts["running"] == 3
    answer = explain(LOAD + LOAD.replace("3.0", "4.0"))
    assert "running" not in answer.facts
    assert answer.problems["contradicting series"] == 1


@pytest.mark.parametrize(
    ("more", "verdict", "words"),
    [
        (f"sglang:spec_num_steps{{{LABELS}}} 3.0\n", "partial", "not measured yet"),
        (f"sglang:spec_num_steps{{{LABELS}}} 0.0\n", "ok", "does not speculate"),
        ("", "ok", "does not speculate"),
    ],
)
def test_accept_length_zero_is_never_a_length(more: str, verdict: str, words: str) -> None:
    answer = explain(f"{LOAD}sglang:spec_accept_length{{{LABELS}}} 0.0\n{more}")
    assert "accept_length" not in answer.facts
    assert answer.verdict == verdict
    assert words in answer.absent["accept_length"]


def test_rate_without_help_is_not_interpreted() -> None:
    answer = explain(f"sglang:spec_accept_length{{{LABELS}}} 2.5\nsglang:spec_accept_rate{{{LABELS}}} 0.5\n")
    assert answer.facts["accept_rate_definition"] == "unknown"
    assert "accept_rate_is" not in answer.facts


def test_restart_between_scrapes() -> None:
    line = f"sglang:generation_tokens_total{{{LABELS}}} "
    answer = explain(f"--- first\n{LOAD}{line}900.0\n--- 15 s later\n{LOAD}{line}20.0\n")
    assert any("restarted" in note for note in answer.notes)


def test_openmetrics_exemplar_and_timestamp() -> None:
    text = f'sglang:gen_throughput{{{LABELS}}} 12.5 1700000000.5 # {{trace_id="a"}} 1.0\n# EOF\n'
    assert explain(text).facts["gen_tok_s"] == 12.5


def test_histogram_without_sum_has_no_mean() -> None:
    text = (
        f'{LOAD}deploy_kit_forward_seconds_bucket{{{LABELS},phase="verify",le="+Inf"}} 4\n'
        f'deploy_kit_forward_seconds_count{{{LABELS},phase="verify"}} 4\n'
    )
    answer = explain(text)
    assert "verify_seconds_mean" not in answer.facts
    assert answer.problems["broken histogram"] == 1


@pytest.mark.parametrize(("name", "spec"), [("eagle3-2.75.prom", "present"), ("baseline.prom", "absent")])
def test_real_scrapes_of_the_rehearsal_engine(name: str, spec: str) -> None:
    answer = explain((SCRAPES / name).read_text())
    assert answer.verdict == "ok"
    assert answer.problems == {}
    assert answer.facts["spec"] == spec
    if spec == "present":
        assert answer.facts["accept_length_mean"] == pytest.approx(2.75, rel=0.01)
        assert answer.facts["draft_tokens_in_rate"] == 3


def test_old_names() -> None:
    reading = read(
        parse('sglang:num_running_req{name="m"} 2.0\nsglang:generation_throughput{name="m"} 3.5\n')
    )
    assert reading.engines[0].values["running"] == 2
    assert reading.engines[0].values["gen_tok_s"] == 3.5


def test_prefill_server_is_not_blamed_for_verifying_nothing() -> None:
    labels = LABELS.replace("unified", "prefill")
    text = f"sglang:num_running_reqs{{{labels}}} 1.0\nsglang:spec_accept_length{{{labels}}} 0.0\n"
    answer = explain(text)
    assert answer.verdict == "ok"
    assert "decode server" in answer.absent["accept_length"]


def test_throughput_of_an_idle_engine_is_said_to_be_old() -> None:
    answer = explain(LOAD.replace("3.0", "0.0"))
    assert any("last interval" in note for note in answer.notes)


def test_forward_seconds_of_two_ranks_are_one() -> None:
    lines = "".join(
        f'sglang:forward_execution_seconds_total{{category="target_verify",tp_rank="{rank}"}} {value}\n'
        for rank, value in enumerate((10.0, 10.5))
    )
    assert explain(lines).facts["forward_seconds_total"] == {"target_verify": 10}


def test_quantiles_are_read_as_promql_reads_them() -> None:
    histogram = Histogram(100.0, 2.0, ((0.01, 50.0), (0.02, 90.0), (float("inf"), 100.0)))
    assert histogram.quantile(0.5) == pytest.approx(0.01)
    assert histogram.quantile(0.7) == pytest.approx(0.015)
    assert histogram.quantile(0.99) is None
    assert Histogram(0.0, 0.0).quantile(0.5) is None
