"""The real engine on one and on two real GPUs, where SGLang and GPUs with 120 GiB are (scripts/gpu/prepare.sh
packs it):

    pytest -m gpu tests/gpu/test_real_engine.py

Skipped with the reason elsewhere.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(1800)]


def why_not(gpus: int = 1) -> str | None:
    """Return why the engine cannot run here, or None."""
    for module in ("torch", "sglang", "sgl_kernel"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    import torch

    if not torch.cuda.is_available():
        return "no CUDA GPU"
    if torch.cuda.device_count() < gpus:
        return f"{torch.cuda.device_count()} GPUs, {gpus} needed"
    free = min(torch.cuda.mem_get_info(index)[0] for index in range(gpus)) / 1024**3
    return None if free > 120 else f"{free:.0f} GiB of GPU memory free, 120 needed"


def run_waves(out: Path, waves: tuple[str, ...], gpus: int) -> Path:
    """Run the waves and return the folder of the receipts that they give."""
    reason = why_not(gpus)
    if reason is not None:
        pytest.skip(reason)
    driver = ROOT / "scripts" / "gpu" / "real_engine.py"
    for wave in waves:
        subprocess.run(
            [sys.executable, str(driver), str(out), "--wave", wave, "--work", str(out / "work")], check=True
        )
        with tarfile.open(out / f"{wave}.tar.xz") as archive:
            archive.extractall(out, filter="data")
    folder = out / "receipts"
    folder.mkdir()
    conclude = ROOT / "scripts" / "gpu" / "conclude.py"
    subprocess.run([sys.executable, str(conclude), str(out), str(folder), "--gpus", str(gpus)], check=True)
    return folder


@pytest.fixture(scope="module")
def receipts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_waves(tmp_path_factory.mktemp("waves"), ("profiles", "curve"), 1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_waves(tmp_path_factory.mktemp("pair"), ("pair-curve",), 2)


def summary(folder: Path, name: str) -> dict[str, Any]:
    from deploy_kit.receipts import read_receipt

    (file,) = folder.glob(f"h200*-{name}.json")
    return dict(read_receipt(file).summary)


@pytest.mark.parametrize("engines", ["receipts", "pair"])
def test_plugin_agrees_with_sglang(engines: str, request: pytest.FixtureRequest) -> None:
    for engine in summary(request.getfixturevalue(engines), "telemetry")["engines"]:
        for phase in engine["phases"].values():
            assert phase["plugin_seconds"] == pytest.approx(phase["sglang_seconds"], rel=1e-6)


@pytest.mark.parametrize("engines", ["receipts", "pair"])
def test_measured_curves_cross_at_the_computed_break_even(
    engines: str, request: pytest.FixtureRequest
) -> None:
    loads = {e["concurrency"]: e for e in summary(request.getfixturevalue(engines), "break-even")["loads"]}
    for concurrency in (1, 8):
        assert loads[concurrency]["computed_over_measured_stream"] == pytest.approx(1, abs=0.05)


def test_plugin_agrees_with_a_profilers_trace(pair: Path) -> None:
    traced = summary(pair, "telemetry")["against_profiler_trace"]
    compared = [phases[name] for phases in traced.values() for name in ("verify", "decode") if name in phases]
    assert len(compared) == 3
    for phase in compared:
        assert phase["forwards_counted"] == phase["forwards_in_trace"]
        assert phase["plugin_over_trace"] == pytest.approx(1, abs=0.02)
