"""What a profiler's trace says of each phase, on a trace small enough to add up by hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FILE = Path(__file__).parents[3] / "scripts" / "gpu" / "trace_phases.py"


@pytest.fixture(scope="module")
def trace_phases() -> ModuleType:
    spec = importlib.util.spec_from_file_location("trace_phases", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mark(name: str, began: float, ended: float, thread: int = 1) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": f"kit {name}",
        "ts": began,
        "dur": ended - began,
        "tid": thread,
    }


def launch(at: float, correlation: int, thread: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": at, "dur": 1, "tid": thread,
            "args": {"correlation": correlation}}  # fmt: skip


def kernel(began: float, ended: float, correlation: int) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": "k", "ts": began, "dur": ended - began, "tid": 7,
            "args": {"correlation": correlation}}  # fmt: skip


def test_a_busy_device_starts_a_forward_when_earlier_work_ends(trace_phases: ModuleType) -> None:
    found = trace_phases.phases([
        mark("verify", 0, 20), launch(5, 1), kernel(10, 100, 1), kernel(100, 150, 1),
        mark("verify", 30, 50), launch(35, 2), kernel(160, 300, 2),
    ])  # fmt: skip
    verify = found["verify"]
    assert verify["forwards"] == 2
    assert verify["span_seconds"] == pytest.approx((140 + 140) / 1e6)
    # The first waits for nothing, so the events read from its mark; the second from the end of the first.
    assert verify["timer_seconds"] == pytest.approx((150 + 150) / 1e6)
    assert verify["device_activities_a_forward"] == 1.5


def test_an_idle_device_is_timed_from_the_mark_to_the_later_end(trace_phases: ModuleType) -> None:
    found = trace_phases.phases([kernel(0, 10, 9), mark("draft", 40, 90), launch(50, 1), kernel(60, 70, 1)])
    assert found["draft"]["timer_seconds"] == pytest.approx(50 / 1e6)
    assert found["draft"]["span_seconds"] == pytest.approx(10 / 1e6)


def test_other_threads_launches_and_unmarked_work_belong_to_nobody(trace_phases: ModuleType) -> None:
    found = trace_phases.phases([
        mark("decode", 0, 20), launch(5, 1), kernel(6, 16, 1),
        launch(7, 2, thread=2), kernel(17, 500, 2), launch(600, 3), kernel(610, 700, 3),
        {"ph": "i", "name": "an instant"}, mark("decode", 800, 801),
    ])  # fmt: skip
    assert found["decode"]["forwards"] == 1
    assert found["decode"]["span_seconds"] == pytest.approx(10 / 1e6)
