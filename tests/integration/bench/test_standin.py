"""The whole benchmark over real sockets, against an openly named stand-in server (no engine is involved)."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deploy_kit.bench.prompts import built_in
from deploy_kit.bench.run import About, Settings, bench
from deploy_kit.bench.selftest import self_test, standin
from deploy_kit.bench.stream import parse_endpoint
from deploy_kit.cli.bench import app
from deploy_kit.decision.from_receipts import choose_profile
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.receipts import Receipt, read_receipts
from deploy_kit.receipts.bench import parse_bench


def run(url: str, folder: Path, *options: str) -> tuple[int, dict[str, Any], Any]:
    common = ["--concurrency", "1,4", "--rounds", "2", "--requests", "2", "--output-tokens", "30"]
    result = CliRunner().invoke(
        app, [url, "--profile", "eagle3", *common, "--receipts", str(folder), "--json", *options]
    )
    value = json.loads(result.stdout) if result.stdout else {}
    return result.exit_code, value, result.exception


@pytest.mark.parametrize("interface", ["openai", "sglang"])
def test_speeds_and_counters_are_those_of_the_stand_in(tmp_path: Path, interface: str) -> None:
    with standin("--gap-ms", "10", "--first-ms", "30", "--tokens-per-event", "2") as url:
        code, value, error = run(
            url, tmp_path, "--interface", interface, "--rate", "20", "--open-requests", "6"
        )
    assert (code, error) == (0, None)
    cells = value["summary"]["cells"]
    assert len(cells) == 6
    assert value["sample_count"] == 2 * (2 + 8 + 6)
    for cell in cells:
        assert cell["errors"] == 0
        assert cell["engine"]["accept_length"] == pytest.approx(2.0)
        assert cell["engine"]["verify_seconds"] == pytest.approx(0.0075)
        assert cell["cycle_seconds"] == pytest.approx(0.010)
        # Never faster than the stand-in writes; how much slower depends on what else this machine does.
        assert 0.0295 < cell["ttft_seconds"]["p50"] < 0.5
        # 29 tokens after the first, in 15 steps of 10 ms. A first token that a busy machine reads late makes
        # the rest look faster; the whole answer never is.
        assert cell["e2e_seconds"]["p50"] > 0.0095 * 14 + 0.0295
        assert 0.0075 < cell["itl_seconds"]["mean"] < 0.1
        assert 20 < cell["stream_tokens_per_second"] < 29 / 0.15 * 1.33
    assert value["rehearsal"] is True
    assert value["subject"]["stand_in"]
    (receipt,) = read_receipts(tmp_path)
    samples: list[Any] = list(receipt.samples)
    assert sum(len(sample["event_gaps_us"]) for sample in samples) == 32 * 15


def test_two_profiles_measured_are_decided(tmp_path: Path) -> None:
    for profile, gap, tokens in (("baseline", "12", "1"), ("eagle3", "15", "2")):
        with standin("--gap-ms", gap, "--first-ms", "20", "--tokens-per-event", tokens) as url:
            arguments = [url, "--profile", profile, "--concurrency", "2", "--rounds", "3", "--requests", "2"]
            result = CliRunner().invoke(
                app, [*arguments, "--output-tokens", "41", "--receipts", str(tmp_path)]
            )
            assert result.exit_code == 0, result.output
    decision = choose_profile([tmp_path])
    assert decision.profile == "eagle3"
    for band in decision.bands:
        (comparison,) = band.comparisons
        # 2 tokens / 15 ms against 1 / 12 ms: 133 tok/s by the sum, and measured nearly so.
        # A busy machine is late; what it reads late makes the rest look a little faster.
        assert 2 / 0.015 * 0.75 < comparison.predicted_tokens_per_second < 2 / 0.015 * 1.1
        assert comparison.stream_tokens_per_second < 2 / 0.015 * 1.1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("drop", "closed the connection before"),
        ("error-event", "stand-in fault"),
        ("short", "instead of 30"),
        ("garbage", "not valid JSON"),
        ("http-400", "HTTP 400"),
    ],
)
def test_failures_are_counted_and_kept(tmp_path: Path, fault: str, words: str) -> None:
    with standin("--gap-ms", "2", "--first-ms", "5", "--fault", fault, "--fault-every", "5") as url:
        code, value, _ = run(url, tmp_path)
    assert code == int(ExitCode.VERDICT_WARN)
    errors = value["summary"]["errors"]
    assert any(words in text for text in errors), errors
    assert sum(errors.values()) == sum(cell["errors"] for cell in value["summary"]["cells"]) > 0
    assert (
        sum(cell["errors"] + cell["requests"] for cell in value["summary"]["cells"])
        == value["sample_count"]
        == 20
    )


def test_refused_requests_are_sent_again_and_counted(tmp_path: Path) -> None:
    with standin("--gap-ms", "2", "--first-ms", "5", "--fault", "refuse", "--fault-every", "5") as url:
        code, value, _ = run(url, tmp_path)
    assert code == 0
    assert sum(cell["retries"] for cell in value["summary"]["cells"]) > 0


def test_a_hanging_request_ends_at_its_limit(tmp_path: Path) -> None:
    with standin("--gap-ms", "2", "--first-ms", "5", "--fault", "hang", "--fault-every", "9") as url:
        code, value, _ = run(url, tmp_path, "--timeout", "1")
    assert code == int(ExitCode.VERDICT_WARN)
    assert any("no whole answer within 1 s" in text for text in value["summary"]["errors"])


def test_counts_only_at_the_end_are_said_to_be_so(tmp_path: Path) -> None:
    with standin("--gap-ms", "2", "--first-ms", "5", "--usage", "final", "--tokens-per-event", "3") as url:
        code, value, _ = run(url, tmp_path)
    assert code == 0
    assert all(cell["client_accept_length"] is None for cell in value["summary"]["cells"])
    assert all(cell["output_tokens"] == 30 * cell["requests"] for cell in value["summary"]["cells"])


def test_scripts_of_several_turns_carry_the_answers_on(tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"turns": ["one", "two", "three"]}\n')
    with standin("--gap-ms", "2", "--first-ms", "5") as url:
        code, value, _ = run(url, tmp_path / "r", "--prompts", str(prompts))
    assert code == 0
    assert value["sample_count"] == 20 * 3


def test_no_server_and_nothing_that_works(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    _, _, error = run(f"http://127.0.0.1:{port}", tmp_path)
    assert isinstance(error, DeployKitError)
    assert error.exit_code == ExitCode.NOT_READY
    with standin("--fault", "http-400", "--fault-every", "1") as url:
        _, _, error = run(url, tmp_path)
    assert isinstance(error, DeployKitError)
    assert "HTTP 400" in error.summary
    assert not list(tmp_path.glob("*.json"))


def test_the_client_keeps_up_with_128_streams() -> None:
    """Its gaps are the server's, at a small share of a core. How little it delays an event is measured on a
    quiet machine: `deploy-kit bench --self-test`, benchmarks/bench_client.py."""
    result = self_test(streams=128, tokens=60)
    assert result.events == 128 * 60
    assert result.client_gap_p50_seconds == pytest.approx(result.server_gap_p50_seconds, rel=0.25)
    assert result.delay_p50_seconds > 0
    assert result.delay_p99_seconds >= result.delay_p50_seconds
    cpu_seconds_per_event = result.client_cpu_ratio / result.tokens_per_second
    assert 0 < cpu_seconds_per_event < 100e-6  # 15 us; the limit of one core at 128 x 50 events/s is 156 us


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_finished_when_it_is_interrupted_is_kept(tmp_path: Path, number: signal.Signals) -> None:
    words = ["--profile", "baseline", "--concurrency", "1", "--rounds", "4000", "--requests", "1"]
    words += ["--output-tokens", "10", "--receipts", str(tmp_path), "--json"]
    with standin("--gap-ms", "5", "--first-ms", "5") as url:
        process = subprocess.Popen(
            [sys.executable, "-m", "deploy_kit", "bench", url, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell's background job ignores SIGINT, and its children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        )
        time.sleep(12)  # the start of Python, and a round or more
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED, errors
    assert "Traceback" not in errors
    (receipt,) = read_receipts(tmp_path)
    remark = next(text for text in receipt.summary["remarks"] if text.startswith("interrupted"))
    assert remark.endswith("of 4000 rounds of cells are here")
    assert json.loads(output)["sample_count"] == len(receipt.samples) == len(receipt.summary["cells"])


def test_interrupted_before_the_first_round_nothing_is_written(tmp_path: Path) -> None:
    words = ["--profile", "baseline", "--concurrency", "1", "--output-tokens", "4000", "--receipts"]
    with standin("--gap-ms", "50", "--first-ms", "5") as url:
        process = subprocess.Popen(
            [sys.executable, "-m", "deploy_kit", "bench", url, *words, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(8)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED, errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keep_finished", [False, True])
def test_a_caller_that_did_not_ask_for_finished_rounds_is_cancelled(keep_finished: bool) -> None:
    """A campaign must not take half a measurement for a whole one, and go on after Ctrl-C."""

    async def cancelled_in_the_third_round(url: str) -> Receipt:
        def progress(_what: str, done: int, _total: int) -> None:
            if done == 3:
                measuring.cancel()

        settings = Settings(concurrencies=(1,), rounds=9, requests_per_stream=1, output_tokens=10)
        measuring = asyncio.ensure_future(
            bench(
                parse_endpoint(url), built_in(), settings, About(profile="baseline"),
                progress=progress, keep_finished=keep_finished,
            )
        )  # fmt: skip
        return await measuring

    with standin("--gap-ms", "2", "--first-ms", "2") as url:
        if keep_finished:
            receipt = asyncio.run(cancelled_in_the_third_round(url))
            assert 2 <= len(parse_bench(receipt)[1].cells) <= 3
        else:
            with pytest.raises(asyncio.CancelledError):
                asyncio.run(cancelled_in_the_third_round(url))
