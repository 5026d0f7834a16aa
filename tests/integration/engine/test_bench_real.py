"""The benchmark against the real engine: its accept length, its agreement with SGLang's own benchmark client,
and the decision's sum against what is measured, for every profile. All servers run at once and are measured
in turns: one that nobody asks sleeps."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_server import ENGINE_ENVIRONMENT, Server, serving

from deploy_kit.bench.prompts import built_in
from deploy_kit.bench.run import About, Settings, bench
from deploy_kit.bench.stream import parse_endpoint
from deploy_kit.decision.choose import Decision, decide
from deploy_kit.decision.evidence import gather
from deploy_kit.decision.statistics import paired_log_ratio
from deploy_kit.receipts import Receipt
from deploy_kit.receipts.bench import CellRound, parse_bench

DRAFTER = "accept-2.75"
TOKENS = 97
ROUNDS = 4
LOADS = (1, 3)

# Six servers and every measurement, on a machine that may be busy.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def eagle(models: Path, drafter: str, steps: int, *more: str) -> tuple[str, ...]:
    return (
        "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", str(models / "drafters" / drafter),
        "--speculative-num-steps", str(steps),
        "--speculative-eagle-topk", "1",
        "--speculative-num-draft-tokens", str(steps + 1),
        *more,
    )  # fmt: skip


def profiles(models: Path) -> dict[str, tuple[str, ...]]:
    """The flags of every profile, as configs/profiles has them."""
    return {
        "baseline": (),
        "eagle3": eagle(models, DRAFTER, 3),
        "eagle3-2step": eagle(models, DRAFTER, 2),
        "eagle3-k2": eagle(models, "sister", 3),
        "eagle3-adaptive": eagle(models, DRAFTER, 3, "--speculative-adaptive"),
        "ngram": ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8"),
    }


@pytest.fixture(scope="module")
def servers(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    found: dict[str, Server] = {}
    with contextlib.ExitStack() as stack:
        for profile, flags in profiles(models).items():
            folder = tmp_path_factory.mktemp(profile)
            state = {
                "SGLANG_PLUGINS": "deploy_kit_rehearsal,deploy_kit_telemetry",
                "DEPLOY_KIT_STATE_DIR": str(folder),
            }
            name = ("--served-model-name", "rehearsal-tiny")
            found[profile] = stack.enter_context(serving(models / "target", folder, *name, *flags, **state))
        yield found


def measure(server: Server, profile: str, seed: int, *concurrencies: int) -> Receipt:
    settings = Settings(
        concurrencies=concurrencies, rounds=1, requests_per_stream=2, output_tokens=TOKENS, seed=seed
    )
    about = About(profile=profile, host="rehearsal", server_start=server.url)
    return asyncio.run(bench(parse_endpoint(server.url), built_in(), settings, about, interface="sglang"))


@pytest.fixture(scope="module")
def receipts(servers: dict[str, Server]) -> list[Receipt]:
    return [measure(server, profile, 1, *LOADS) for _ in range(ROUNDS) for profile, server in servers.items()]


@pytest.fixture(scope="module")
def decision(receipts: list[Receipt]) -> Decision:
    from deploy_kit.decision.describe import describe

    found = decide(gather(receipts))
    print(describe(found))
    return found


def cells(receipts: list[Receipt], profile: str) -> list[CellRound]:
    found = [parse_bench(receipt) for receipt in receipts]
    return [cell for subject, summary in found if subject.profile == profile for cell in summary.cells]


def test_every_request_came_whole_and_is_marked_as_rehearsal(receipts: list[Receipt]) -> None:
    for receipt in receipts:
        assert receipt.rehearsal, "an engine on CPUs is a rehearsal, whoever measures it"
        assert receipt.summary["errors"] == {}
        assert len(receipt.samples) == 2 + 6
        assert receipt.versions["sglang"]
        assert receipt.subject["versions_from"]["sglang"] == "engine"  # type: ignore[index, call-overload]


def test_the_accept_length_is_the_drafters(receipts: list[Receipt], models: Path) -> None:
    made = json.loads((models / "drafters" / DRAFTER / "rehearsal.json").read_text())
    predicted = made["predicted_accept_length_by_steps"]["3"]
    for cell in cells(receipts, "eagle3"):
        assert cell.engine.accept_length_source == "deploy_kit_spec_accept_length"
        assert cell.engine.accept_length == pytest.approx(predicted, rel=0.05)
        assert cell.engine.verify_seconds is not None
        assert cell.cycle_seconds is not None
        assert cell.engine.verify_seconds < cell.cycle_seconds
    plain = cells(receipts, "baseline")
    assert all(cell.engine.accept_length is None for cell in plain)
    # A busy machine joins some events on their way: the least of the rounds.
    assert min(cell.client_accept_length or 9 for cell in plain) == pytest.approx(1.0, abs=0.05)


def test_the_sum_predicts_what_is_measured_for_every_profile(decision: Decision) -> None:
    seen = set()
    for band in decision.bands:
        for comparison in band.comparisons:
            assert comparison.predicted_tokens_per_second is not None, comparison.method.label
            error = comparison.predicted_tokens_per_second / comparison.stream_tokens_per_second - 1
            print(f"{band.band.label} {comparison.method.label}: predicted {error * 100:+.1f} %")
            assert abs(error) < 0.10, (band.band.label, comparison.method.label, error)
            assert comparison.inconsistency is None
            seen.add((band.band.concurrency, comparison.method.profile))
    assert len(seen) == len(LOADS) * 5


def test_the_engines_counters_alone_predict_one_stream(receipts: list[Receipt]) -> None:
    """Accept length and cycle from counters, tokens/s from the client's clock: they share nothing."""
    for profile in ("eagle3", "eagle3-2step", "eagle3-k2", "eagle3-adaptive", "ngram"):
        errors = [
            cell.engine.accept_length / cell.engine.step_seconds / cell.stream_tokens_per_second - 1
            for cell in cells(receipts, profile)
            if cell.concurrency == 1
            and cell.engine.accept_length
            and cell.engine.step_seconds
            and cell.stream_tokens_per_second
        ]
        assert len(errors) == ROUNDS, profile
        print(f"{profile}: counters alone {[f'{error * 100:+.1f} %' for error in errors]}")
        assert abs(statistics.median(errors)) < 0.10, (profile, errors)


def test_the_choice_is_no_worse_than_the_best_measured(decision: Decision) -> None:
    assert decision.evidence.rehearsal
    for band in decision.bands:
        speeds = {c.method: c.tokens_per_second for c in band.comparisons}
        assert band.baseline is not None
        speeds[band.baseline.method] = band.baseline.mean("tokens_per_second") or 0.0
        best = max(speeds, key=lambda method: speeds[method])
        print(f"{band.band.label}: chosen {band.choice.label}, best measured {best.label}: {band.reason}")
        assert speeds[band.choice] >= 0.97 * speeds[best], (band.band.label, band.choice, best, speeds)


def test_it_agrees_with_sglangs_own_client(servers: dict[str, Server], models: Path, tmp_path: Path) -> None:
    """In turns, so that what else runs on the machine falls on both; the same load, engine and lengths."""
    server = servers["baseline"]
    pairs = []
    for seed in range(5):
        (cell,) = cells([measure(server, "baseline", seed, 2)], "baseline")
        theirs = sglang_client(server, models, tmp_path, concurrency=2, requests=4)
        assert cell.tpot_seconds is not None
        pairs.append((cell.tpot_seconds.mean, theirs))
    ratio = paired_log_ratio(pairs)
    interval = ratio.interval(0.99)
    assert interval is not None
    print(f"time per token, ours / sglang.bench_serving: {ratio.ratio:.3f}, 99 %: {interval}")
    assert interval[0] < 1.05, pairs
    assert interval[1] > 0.95, pairs
    assert 0.85 < ratio.ratio < 1.18, pairs


def sglang_client(server: Server, models: Path, folder: Path, *, concurrency: int, requests: int) -> float:
    """Mean seconds for each token after the first, as `sglang.bench_serving` measures it."""
    # It imports `datasets` for data sets that are not used here, and the rehearsal engine leaves it out.
    (folder / "datasets.py").write_text('"""STAND-IN: only its import is needed."""\nload_dataset = None\n')
    done = subprocess.run(
        [
            sys.executable, "-m", "sglang.bench_serving",
            "--backend", "sglang", "--host", "127.0.0.1", "--port", server.url.rpartition(":")[2],
            "--dataset-name", "random-ids", "--random-input-len", "200", "--random-output-len", str(TOKENS),
            "--random-range-ratio", "1.0", "--num-prompts", str(requests),
            "--max-concurrency", str(concurrency), "--warmup-requests", "1",
            "--tokenizer", str(models / "target"), "--model", str(models / "target"),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, **ENGINE_ENVIRONMENT, "PYTHONPATH": str(folder)},
        cwd=folder,
        timeout=240,
        check=False,
    )  # fmt: skip
    found = re.search(r"Mean TPOT \(ms\):\s+([\d.]+)", done.stdout)
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    return float(found[1]) / 1000
