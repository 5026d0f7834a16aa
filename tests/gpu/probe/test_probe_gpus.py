"""The probe on real GPUs: two for latencies, one is enough to check kernels with `--share-gpu`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy_kit.probe.setup import visible_gpus

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.gpu
SAFE = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}


def probe(*arguments: str) -> tuple[int, dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-m", "deploy_kit", "probe", *arguments, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
        env={**os.environ, **SAFE},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.skipif(visible_gpus() < 1, reason="no GPU")
def test_symmetric_memory_is_correct_with_both_ranks_on_one_gpu() -> None:
    names = "symm-one-shot,symm-two-shot"
    code, found = probe(
        "allreduce", "--share-gpu", "--ranks", "2", "--tokens", "1,4", "--count", "8", "--candidates", names
    )
    assert code == 22
    assert found["rehearsal"] is True
    assert {entry["status"] for entry in found["candidates"].values()} == {"ok"}  # type: ignore[attr-defined]


@pytest.mark.skipif(visible_gpus() < 2, reason="needs two GPUs")
def test_a_default_search_of_fourteen_or_more_ends_in_two_minutes() -> None:
    code, found = probe("allreduce", "--ranks", "2", "--budget-seconds", "110")
    assert code == 0
    outcomes = [entry["status"] for entry in found["candidates"].values()]  # type: ignore[attr-defined]
    assert outcomes.count("ok") + outcomes.count("crash") >= 14
    assert found["seconds"] < 120  # type: ignore[operator]


@pytest.mark.skipif(visible_gpus() < 2, reason="needs two GPUs")
def test_the_unfused_operations_pass_their_own_acceptance() -> None:
    _, found = probe("fusion", "--ranks", "2", "--tokens", "1,4,64", "--candidates", "unfused")
    assert found["candidates"]["unfused"]["acceptance"] == "accept"  # type: ignore[index]
