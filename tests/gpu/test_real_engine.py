"""The real engine on one real GPU, where SGLang and a GPU with 120 GiB are (scripts/gpu/prepare.sh packs it):

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


def why_not() -> str | None:
    """Return why the engine cannot run here, or None."""
    for module in ("torch", "sglang", "sgl_kernel"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    import torch

    if not torch.cuda.is_available():
        return "no CUDA GPU"
    free = torch.cuda.mem_get_info()[0] / 1024**3
    return None if free > 120 else f"{free:.0f} GiB of GPU memory free, 120 needed"


@pytest.fixture(scope="module")
def receipts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    out = tmp_path_factory.mktemp("waves")
    driver = ROOT / "scripts" / "gpu" / "real_engine.py"
    for wave in ("profiles", "curve"):
        subprocess.run(
            [sys.executable, str(driver), str(out), "--wave", wave, "--work", str(out / "work")], check=True
        )
        with tarfile.open(out / f"{wave}.tar.xz") as archive:
            archive.extractall(out, filter="data")
    folder = out / "receipts"
    folder.mkdir()
    conclude = ROOT / "scripts" / "gpu" / "conclude.py"
    subprocess.run([sys.executable, str(conclude), str(out), str(folder)], check=True)
    return folder


def summary(receipts: Path, name: str) -> dict[str, Any]:
    from deploy_kit.receipts import read_receipt

    return dict(read_receipt(receipts / f"h200-{name}.json").summary)


def test_plugin_agrees_with_sglang(receipts: Path) -> None:
    for engine in summary(receipts, "telemetry")["engines"]:
        for phase in engine["phases"].values():
            assert phase["plugin_seconds"] == pytest.approx(phase["sglang_seconds"], rel=1e-6)


def test_measured_curves_cross_at_the_computed_break_even(receipts: Path) -> None:
    loads = {e["concurrency"]: e for e in summary(receipts, "break-even")["loads"]}
    for concurrency in (1, 8):
        assert loads[concurrency]["computed_over_measured_stream"] == pytest.approx(1, abs=0.05)
