"""The benchmark against the real engine: its accept length, its agreement with SGLang's own benchmark client,
and the decision's sum against what is measured. Both servers run at once and are measured in turns."""

from __future__ import annotations

import asyncio
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
from deploy_kit.decision.choose import decide
from deploy_kit.decision.evidence import gather
from deploy_kit.receipts import Receipt
from deploy_kit.receipts.bench import CellRound, parse_bench

DRAFTER = "accept-2.75"
TOKENS = 97
ROUNDS = 3

# Two servers and every measurement, on a machine that may be busy.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def servers(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    plugins = {"SGLANG_PLUGINS": "deploy_kit_rehearsal,deploy_kit_telemetry"}
    name = ("--served-model-name", "rehearsal-tiny")
    speculation = (
        "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", str(models / "drafters" / DRAFTER),
        "--speculative-num-steps", "3",
        "--speculative-eagle-topk", "1",
        "--speculative-num-draft-tokens", "4",
    )  # fmt: skip
    folders = [tmp_path_factory.mktemp(profile) for profile in ("baseline", "eagle3")]
    states = [{**plugins, "DEPLOY_KIT_STATE_DIR": str(folder)} for folder in folders]
    target = models / "target"
    with (
        serving(target, folders[0], *name, **states[0]) as plain,
        serving(target, folders[1], *name, *speculation, **states[1]) as eagle,
    ):
        yield {"baseline": plain, "eagle3": eagle}


def measure(server: Server, profile: str, seed: int, *concurrencies: int) -> Receipt:
    settings = Settings(
        concurrencies=concurrencies, rounds=1, requests_per_stream=2, output_tokens=TOKENS, seed=seed
    )
    about = About(profile=profile, host="rehearsal", server_start=server.url)
    return asyncio.run(bench(parse_endpoint(server.url), built_in(), settings, about, interface="sglang"))


@pytest.fixture(scope="module")
def receipts(servers: dict[str, Server]) -> list[Receipt]:
    return [measure(server, profile, 1, 1, 3) for _ in range(ROUNDS) for profile, server in servers.items()]


def cells(receipts: list[Receipt], profile: str) -> list[CellRound]:
    found = [parse_bench(receipt) for receipt in receipts]
    return [cell for subject, summary in found if subject.profile == profile for cell in summary.cells]


def test_every_request_came_whole_and_is_marked_as_rehearsal(receipts: list[Receipt]) -> None:
    for receipt in receipts:
        assert receipt.rehearsal, "an engine on CPUs is a rehearsal, whoever measures it"
        assert receipt.summary["errors"] == {}
        assert len(receipt.samples) == 2 + 6
        assert receipt.versions["sglang"]


def test_the_accept_length_is_the_drafters(receipts: list[Receipt], models: Path) -> None:
    made = json.loads((models / "drafters" / DRAFTER / "rehearsal.json").read_text())
    predicted = made["predicted_accept_length_by_steps"]["3"]
    for cell in cells(receipts, "eagle3"):
        assert cell.engine.accept_length_source == "deploy_kit_spec_accept_length"
        assert cell.engine.accept_length == pytest.approx(predicted, rel=0.05)
        assert cell.engine.verify_seconds is not None
        assert cell.cycle_seconds is not None
        assert cell.engine.verify_seconds < cell.cycle_seconds
    for cell in cells(receipts, "baseline"):
        assert cell.engine.accept_length is None
        assert cell.client_accept_length == pytest.approx(1.0, abs=0.05)


def test_the_sum_predicts_what_is_measured(receipts: list[Receipt]) -> None:
    errors = [
        cell.engine.accept_length / cell.cycle_seconds / cell.stream_tokens_per_second - 1
        for cell in cells(receipts, "eagle3")
        if cell.engine.accept_length and cell.cycle_seconds and cell.stream_tokens_per_second
    ]
    assert len(errors) == ROUNDS * 2
    assert abs(statistics.median(errors)) < 0.10, errors


def test_the_choice_is_no_worse_than_the_best_measured(receipts: list[Receipt]) -> None:
    decision = decide(gather(receipts))
    assert decision.evidence.rehearsal
    for band in decision.bands:
        (eagle,) = band.comparisons
        assert eagle.ratio is not None
        if eagle.interval is not None and eagle.interval[0] > 1.03:
            assert band.choice.profile == "eagle3"
        if eagle.interval is not None and eagle.interval[1] < 1:
            assert band.choice.profile == "baseline"


def test_it_agrees_with_sglangs_own_client(servers: dict[str, Server], models: Path, tmp_path: Path) -> None:
    """In turns, so that what else runs on the machine falls on both; the same load, engine and lengths."""
    server = servers["baseline"]
    ratios = []
    for seed in range(3):
        (cell,) = cells([measure(server, "baseline", seed, 2)], "baseline")
        theirs = sglang_client(server, models, tmp_path, concurrency=2, requests=4)
        assert cell.tpot_seconds is not None
        ratios.append(cell.tpot_seconds.mean / theirs)
    assert 0.75 < statistics.median(ratios) < 1.33, ratios


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
