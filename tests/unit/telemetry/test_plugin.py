"""The plug-in with small doubles of SGLang's objects; against the real engine: tests/integration/engine."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from deploy_kit.metrics.reading import Engine, read
from deploy_kit.metrics.text import parse
from deploy_kit.telemetry import plugin
from deploy_kit.telemetry.instruments import SECONDS_BUCKETS, Flusher, Instruments
from deploy_kit.telemetry.plugin import MOST_EXCEPTIONS, MarkedTimer, Session
from deploy_kit.telemetry.status import (
    TelemetryStatus,
    clear_status,
    explain_missing,
    read_status,
    write_status,
)

LABELS = {"model_name": "m", "engine_type": "unified", "tp_rank": "0"}
LINE = 'sglang:num_running_reqs{model_name="m",engine_type="unified",tp_rank="0"} 1.0\n'


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def session(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> Session:
    made = Session(Instruments(LABELS, registry=registry), timer="wall")
    monkeypatch.setattr(plugin, "_session", made)
    return made


def engine(registry: CollectorRegistry, instruments: Instruments | None) -> Engine:
    """What the page says once the sums are written; in the engine a thread of ours does that."""
    if instruments is not None:
        instruments.flush()
    return read(parse(LINE + generate_latest(registry).decode())).engines[0]


def request(*, finished: bool = False, retracted: bool = False) -> Any:
    return SimpleNamespace(is_retracted=retracted, finished=lambda: finished)


def verified(drafts: list[int], requests: list[Any]) -> None:
    result = SimpleNamespace(num_correct_drafts_per_req_cpu=drafts)
    plugin.on_verified(None, None, result, SimpleNamespace(reqs=requests))


def test_decisive_times_fall_in_different_buckets() -> None:
    from bisect import bisect_left

    found = [bisect_left(SECONDS_BUCKETS, seconds) for seconds in (0.012, 0.015, 0.025, 0.030, 0.050)]
    assert len(set(found)) == 5
    assert SECONDS_BUCKETS[0] == 0.001
    assert SECONDS_BUCKETS[-1] == 1.0


def test_accept_length_counts_the_bonus_token(session: Session, registry: CollectorRegistry) -> None:
    verified([3, 0, 3], [request(), request(), request()])
    found = engine(registry, session.instruments)
    assert found.own["accept_length"].mean == pytest.approx(3.0)
    assert found.own["accept_length"].count == 3
    assert found.positions == {1: 2, 2: 2, 3: 2}


def test_a_verify_of_an_ended_request_is_not_counted(session: Session, registry: CollectorRegistry) -> None:
    verified([3, 3, 1], [request(finished=True), request(retracted=True), request()])
    assert engine(registry, session.instruments).own["accept_length"].count == 1


def test_aggregated_updates_equal_single_observations(registry: CollectorRegistry) -> None:
    ours = Instruments(LABELS, registry=registry)
    drafts = [0, 3, 3, 1, 2, 2, 2]
    ours.observe_verify(drafts)
    ours.observe_forward("verify", 0.0125)
    plain = CollectorRegistry()
    slow = Instruments(LABELS, registry=plain)
    for one in drafts:
        slow._accept.labels(**LABELS).observe(one + 1.0)
    slow._forward.labels(**LABELS, phase="verify").observe(0.0125)
    for name in ("accept_length", "verify"):
        assert engine(registry, ours).own[name] == engine(plain, None).own[name]


def test_no_observation_is_lost_or_doubled_while_another_thread_flushes(registry: CollectorRegistry) -> None:
    ours = Instruments(LABELS, registry=registry)
    flusher = Flusher(ours, lambda: pytest.fail("a flush failed"))
    flusher.start()
    busy = threading.Event()

    def flush_for_ever() -> None:
        while not busy.is_set():
            ours.flush()

    other = threading.Thread(target=flush_for_ever)
    other.start()
    for number in range(5000):
        ours.observe_forward("verify", 0.001 * (1 + number % 40))
        ours.observe_cycle(0.03)
        ours.observe_verify([number % 4, 1])
    busy.set()
    other.join()
    flusher.end()
    flusher.join()
    found = engine(registry, ours)
    assert (found.own["verify"].count, found.own["cycle_seconds"].count) == (5000, 5000)
    assert found.own["accept_length"].count == 10000
    assert found.own["verify"].mean == pytest.approx(sum(0.001 * (1 + n % 40) for n in range(40)) / 40)
    assert found.positions == {1: 5000 + 3750, 2: 2500, 3: 1250}


def test_what_is_observed_last_is_written_without_another_forward(registry: CollectorRegistry) -> None:
    ours = Instruments(LABELS, registry=registry)
    flusher = Flusher(ours, lambda: None)
    flusher.start()
    try:
        ours.observe_forward("decode", 0.02)
        limit = time.monotonic() + 20
        while "deploy_kit_forward_seconds_count" not in generate_latest(registry).decode():
            assert time.monotonic() < limit, "the thread never wrote it"
            time.sleep(0.02)
    finally:
        flusher.end()


def test_a_failed_flush_is_counted_and_the_next_one_runs(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Instruments(LABELS, registry=registry)
    session = Session(ours, timer="wall")
    right, calls = ours.flush, []

    def flush() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("disk full")
        right()

    monkeypatch.setattr(ours, "flush", flush)
    flusher = Flusher(ours, session.failed)
    flusher.start()
    limit = time.monotonic() + 20
    while len(calls) < 2 and time.monotonic() < limit:
        time.sleep(0.02)
    flusher.end()
    assert session.exceptions == 1
    assert len(calls) >= 2


def test_exceptions_never_reach_the_engine(session: Session, registry: CollectorRegistry) -> None:
    for _ in range(MOST_EXCEPTIONS):
        verified([1, 2], [request()])  # lengths differ: zip raises
    assert session.exceptions == MOST_EXCEPTIONS
    assert session.instruments is None
    assert "deploy_kit_plugin_exceptions_total{" in generate_latest(registry).decode()
    runner = SimpleNamespace(is_draft_worker=False)
    assert plugin.around_forward(lambda *_: "result", runner, None) == "result"


def test_the_engines_own_exception_passes(session: Session) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("engine")

    with pytest.raises(RuntimeError, match="engine"):
        plugin.around_forward(fails, SimpleNamespace(is_draft_worker=False), None)


class FakeEvent:
    def __init__(self, at: float) -> None:
        self.at = at

    def elapsed_time(self, other: FakeEvent) -> float:
        return (other.at - self.at) * 1000.0


def test_device_timer_marks_and_measures_cycles(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA events are played; on a GPU they are torch's. SGLang passes the category on unchanged."""
    from contextlib import contextmanager

    session = Session(Instruments(LABELS, registry=registry), timer="device")
    monkeypatch.setattr(plugin, "_session", session)

    class Timer:
        def __init__(self) -> None:
            self._intervals: list[Any] = []
            self.now = 5.0

        @contextmanager
        def wrap(self, metadata: dict[str, Any]) -> Any:
            interval = SimpleNamespace(start_event=FakeEvent(self.now))
            self._intervals.append(interval)
            yield
            plugin.on_device_time(None, None, category=metadata["category"], t=0.003)

    timer = Timer()
    target = MarkedTimer(timer, session, drafter=False)
    drafter = MarkedTimer(timer, session, drafter=True)
    for _ in range(3):
        with target.wrap(metadata={"category": "target_verify"}):
            pass
        session.mode = "DRAFT_EXTEND_V2"
        with drafter.wrap(metadata={"category": "extend"}):
            pass
        session.mode = "DECODE"
        for _step in range(2):
            with drafter.wrap(metadata={"category": "decode"}):
                pass
        timer.now += 0.020
    found = engine(registry, session.instruments).own
    assert found["cycle_seconds"].count == 2
    assert found["cycle_seconds"].mean == pytest.approx(0.020)
    assert (found["verify"].count, found["draft_extend"].count, found["draft"].count) == (3, 3, 2)
    assert "decode" not in found
    assert "prefill" not in found


@pytest.mark.parametrize(
    ("device", "timer", "kind"), [("cpu", None, "wall"), ("cuda", object(), "device"), ("cuda", None, "off")]
)
def test_choice_of_timer(device: str, timer: object, kind: str) -> None:
    found, reason = plugin.choose_timer(device, timer)
    assert found == kind
    assert (reason is not None) == (kind == "off")


STATUS = TelemetryStatus(1, 2.0, "0.5.23", "0.1.0", ("a",), (), "wall", True)


def test_status_round_trip(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    write_status(tmp_path, STATUS)
    assert read_status(tmp_path) == STATUS
    assert explain_missing(STATUS) is None
    clear_status(tmp_path)
    clear_status(tmp_path)
    assert read_status(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": 1}', '{"applied": 3, "failed": []}'])
def test_a_strange_status_file_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "telemetry.json").write_text(text)
    assert read_status(tmp_path) is None


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, "SGLANG_PLUGINS"),
        (TelemetryStatus(1, 2.0, "9.9", "0", (), ("sglang.x.y",), "wall", True), "sglang.x.y"),
        (TelemetryStatus(1, 2.0, "9.9", "0", ("a",), (), "wall", False), "--enable-metrics"),
        (TelemetryStatus(1, 2.0, "9.9", "0", ("a",), (), "off", True, "no timer"), "no timer"),
    ],
)
def test_what_is_missing_is_said(status: TelemetryStatus | None, words: str) -> None:
    assert words in (explain_missing(status) or "")
