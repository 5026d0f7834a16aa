"""The kept receipts of the H200 runs: unchanged since written, and saying what the page says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.receipts import read_receipt

ROOT = Path(__file__).parents[3]
RECEIPTS = ROOT / "docs" / "receipts"


def load_conclude() -> ModuleType:
    spec = importlib.util.spec_from_file_location("conclude", ROOT / "scripts" / "gpu" / "conclude.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CONCLUDE = load_conclude()


def summary(name: str) -> dict[str, Any]:
    return dict(read_receipt(RECEIPTS / f"h200-{name}.json").summary)


def test_the_plug_ins_sums_are_sglangs_own() -> None:
    engines = summary("telemetry")["engines"]
    assert len(engines) >= 8
    for engine in engines:
        assert engine["phases"]
        for phase in engine["phases"].values():
            assert phase["plugin_seconds"] == pytest.approx(phase["sglang_seconds"], rel=1e-9)


def test_the_accept_length_is_the_one_asked_for() -> None:
    asked = [e for e in summary("telemetry")["engines"] if e["accept_length_asked"] is not None]
    assert {e["accept_length_asked"] for e in asked} == {1.0, 1.5, 2.0, 2.5, 3.0}
    for engine in asked:
        whole = engine["accept_length_asked"].is_integer()
        tolerance = 1e-9 if whole else 0.02  # SGLang draws between two whole numbers
        assert engine["accept_length_mean"] == pytest.approx(engine["accept_length_asked"], rel=tolerance)
        assert engine["verifies_of_requests"] == engine["sglang_verify_calls"]


def test_the_curves_cross_where_the_sum_says_where_they_cross() -> None:
    loads = {load["concurrency"]: load for load in summary("break-even")["loads"]}
    for concurrency in (1, 8):
        assert loads[concurrency]["computed_over_measured_stream"] == pytest.approx(1, abs=0.05)
        assert loads[concurrency]["computed_over_measured_total"] == pytest.approx(1, abs=0.05)
    assert loads[32]["measured_crossing_total"] is None


@given(st.floats(1, 10), st.floats(0.1, 10), st.floats(0, 1))
def test_a_crossing_on_a_line_is_found(start: float, rise: float, share: float) -> None:
    points = [(1.0, start), (2.0, start + rise)]
    crossing = CONCLUDE.interpolate_crossing(points, start + share * rise)
    if crossing is not None:  # rounding may put the level outside by one bit
        assert crossing == pytest.approx(1 + share, abs=1e-6)
    assert CONCLUDE.interpolate_crossing(points, start + rise * 1.01) is None
