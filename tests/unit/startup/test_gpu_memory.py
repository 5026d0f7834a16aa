"""GPU memory as a sign of life: never waited for, unknown with its reason."""

from __future__ import annotations

import threading
import time

import pytest

from deploy_kit.runtime import gpu_memory
from deploy_kit.runtime.activity import ActivityMeter
from deploy_kit.runtime.gpu_memory import GpuMemory
from deploy_kit.runtime.process_facts import GroupFacts


def wait_for(memory: GpuMemory, seconds: float = 5.0) -> int | None:
    deadline = time.monotonic() + seconds
    while (value := memory.read()) is None and time.monotonic() < deadline and "yet" in memory.unknown:
        time.sleep(0.01)
    return value


def test_without_gpus_nothing_is_asked() -> None:
    def never() -> int:
        raise AssertionError

    memory = GpuMemory(0, never)
    assert memory.read() is None
    assert memory.unknown == "no NVIDIA GPU here"


def test_the_bytes_in_use() -> None:
    memory = GpuMemory(8, lambda: 5 << 30)
    assert wait_for(memory) == 5 << 30
    memory.close()


def test_an_error_is_the_reason() -> None:
    def fails() -> int:
        raise OSError("libnvidia-ml.so.1: cannot open")

    memory = GpuMemory(1, fails)
    assert wait_for(memory) is None
    assert "libnvidia-ml.so.1" in memory.unknown


def test_a_driver_that_does_not_answer_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "STALE_SECONDS", 0.2)
    released = threading.Event()

    def hangs() -> int:
        released.wait(10)
        return 1

    memory = GpuMemory(1, hangs)
    begun = time.monotonic()
    memory.read()
    time.sleep(0.3)
    assert memory.read() is None
    assert time.monotonic() - begun < 5
    assert "has not answered for" in memory.unknown
    released.set()
    memory.close()


def facts(cpu: float) -> GroupFacts:
    return GroupFacts(3, cpu, 1 << 30, 0, (), frozenset({7}))


def test_gpu_memory_that_grows_is_progress_and_that_stands_is_not() -> None:
    growing = ActivityMeter(0.0)
    standing = ActivityMeter(0.0)
    for second in range(0, 200, 2):
        moved = growing.take(
            float(second), log_bytes=1, progress=-1.0, group=facts(second), gpu_bytes=second << 25
        )
        stood = standing.take(
            float(second), log_bytes=1, progress=-1.0, group=facts(second), gpu_bytes=7 << 30
        )
    assert moved.seconds == 0
    assert stood.seconds > 190
    assert "GPU memory: 7168 MiB, unchanged" in stood.checks


def test_unknown_gpu_memory_says_why() -> None:
    quiet = ActivityMeter(0.0).take(
        1.0, log_bytes=1, progress=-1.0, group=facts(0.0), gpu_unknown="NVML: driver mismatch"
    )
    assert "GPU memory: unknown (NVML: driver mismatch)" in quiet.checks
