"""The verdict's arithmetic, and that what is not known now is not exported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from deploy_kit.exporter.collector import ExporterCollector
from deploy_kit.exporter.derive import Window, verdict, window
from deploy_kit.exporter.facts import PlanFacts, baseline_step
from deploy_kit.exporter.watch import SCRAPE_INTERVAL_SECONDS, EngineWatch
from deploy_kit.metrics.reading import Engine, read
from deploy_kit.metrics.text import parse
from deploy_kit.startup.status import StartupStatus

PLAN = PlanFacts(
    plan_id="0123456789ab",
    profile="eagle3",
    stack="current",
    model="kimi-k2.5",
    host="box",
    rehearsal=False,
    speculative=True,
    baseline_step_seconds={1: 1 / 82},
    baseline_source="receipt",
)


def scrape(verifies: int, *, accepted: float, cycle: float, batch: int = 1, verify: float = 0.012) -> str:
    labels = 'model_name="m",engine_type="unified",tp_rank="0"'
    return (
        f"sglang:num_running_reqs{{{labels}}} {batch}.0\n"
        f"deploy_kit_spec_accept_length_count{{{labels}}} {verifies * batch}\n"
        f"deploy_kit_spec_accept_length_sum{{{labels}}} {verifies * batch * accepted}\n"
        f"deploy_kit_spec_cycle_seconds_count{{{labels}}} {verifies}\n"
        f"deploy_kit_spec_cycle_seconds_sum{{{labels}}} {verifies * cycle}\n"
        f'deploy_kit_forward_seconds_count{{{labels},phase="verify"}} {verifies}\n'
        f'deploy_kit_forward_seconds_sum{{{labels},phase="verify"}} {verifies * verify}\n'
    )


def engine(text: str) -> Engine:
    return read(parse(text)).engines[0]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Source:
    """An engine's /metrics, played by hand."""

    def __init__(self) -> None:
        self.text = ""
        self.error: Exception | None = None

    def __call__(self) -> str:
        if self.error:
            raise self.error
        return self.text


def exported(collector: ExporterCollector) -> dict[str, float]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    lines = generate_latest(registry).decode().splitlines()
    return {
        line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")
    }


def test_the_story() -> None:
    """30 ms a cycle against 82 tok/s: break-even 2.46, and 1.8 accepted loses."""
    measured = window(
        engine(scrape(10, accepted=1.8, cycle=0.030)), engine(scrape(110, accepted=1.8, cycle=0.030))
    )
    assert measured is not None
    result = verdict(measured, PLAN)
    assert result is not None
    assert result.breakeven_accept_length == pytest.approx(2.46)
    assert result.speedup_ratio == pytest.approx(60 / 82)


def test_only_what_happened_in_between_counts() -> None:
    before = engine(scrape(1000, accepted=1.0, cycle=0.1))
    text = scrape(1000, accepted=1.0, cycle=0.1)
    after = engine(
        text.replace(" 1000.0", " 1300.0").replace(" 1000\n", " 1100\n").replace(" 100.0", " 102.0")
    )
    measured = window(before, after)
    assert measured is not None
    assert measured.accept_length == pytest.approx(3.0)
    assert measured.cycle_seconds == pytest.approx(0.02)


def test_nothing_moved_or_restarted_gives_nothing() -> None:
    some = engine(scrape(10, accepted=2.0, cycle=0.02))
    more = engine(scrape(20, accepted=2.0, cycle=0.02))
    assert window(some, some) is None
    assert window(more, some) is None


@given(st.floats(1.0, 16.0), st.floats(0.001, 1.0), st.floats(0.001, 1.0))
def test_ratio_is_one_exactly_at_break_even(accepted: float, cycle: float, step: float) -> None:
    plan = PlanFacts("a", "p", "s", "m", "h", False, True, {1: step}, "receipt")
    result = verdict(Window(accepted, cycle, 1.0), plan)
    assert result is not None
    assert (result.speedup_ratio > 1) == (accepted > result.breakeven_accept_length)


@pytest.mark.parametrize(
    ("batch", "expected"), [(1, 0.012), (4, 0.015), (8, 0.019), (0.5, None), (9, None), (2, 0.013)]
)
def test_baseline_is_never_extrapolated(batch: float, expected: float | None) -> None:
    found = baseline_step({1: 0.012, 4: 0.015, 8: 0.019}, batch)
    assert found == (expected if expected is None else pytest.approx(expected))


def make() -> tuple[ExporterCollector, EngineWatch, Source, Clock]:
    clock, source = Clock(), Source()
    watch = EngineWatch(source, clock=clock)
    return ExporterCollector(PLAN, watch, StartupStatus), watch, source, clock


def run(watch: EngineWatch, source: Source, clock: Clock, seconds: int, *, moving: bool) -> None:
    verifies = 100
    for second in range(0, seconds, int(SCRAPE_INTERVAL_SECONDS)):
        clock.now += SCRAPE_INTERVAL_SECONDS
        source.text = scrape(verifies + (second * 30 if moving else 0), accepted=3.0, cycle=0.02)
        watch.look()


def test_live_engine_is_exported() -> None:
    collector, watch, source, clock = make()
    run(watch, source, clock, 20, moving=True)
    found = exported(collector)
    assert found["deploy_kit_up"] == 1
    assert found["deploy_kit_speculation_speedup_ratio"] == pytest.approx(3.0 / 0.02 / 82)
    assert found['deploy_kit_baseline_step_seconds{batch="1",source="receipt"}'] == pytest.approx(1 / 82)


def test_engine_gone_vanishes_within_15_seconds() -> None:
    collector, watch, source, clock = make()
    run(watch, source, clock, 20, moving=True)
    source.error = ConnectionError("gone")
    for _ in range(7):
        clock.now += SCRAPE_INTERVAL_SECONDS
        watch.look()
    found = exported(collector)
    assert found["deploy_kit_up"] == 0
    assert "deploy_kit_speculation_speedup_ratio" not in found
    assert found['deploy_kit_engine_scrape_errors_total{reason="unreachable"}'] == 7


def test_frozen_series_vanish_within_15_seconds() -> None:
    collector, watch, source, clock = make()
    run(watch, source, clock, 20, moving=True)
    run(watch, source, clock, 14, moving=False)
    found = exported(collector)
    assert found["deploy_kit_up"] == 1
    assert "deploy_kit_speculation_speedup_ratio" not in found


def test_without_a_baseline_the_ratio_is_absent() -> None:
    clock, source = Clock(), Source()
    watch = EngineWatch(source, clock=clock)
    plan = PlanFacts("a", "eagle3", "s", "m", "h", False, True)
    run(watch, source, clock, 20, moving=True)
    found = exported(ExporterCollector(plan, watch, None))
    assert found["deploy_kit_verify_batch_requests"] == pytest.approx(1.0)
    assert not any("speedup" in name or "breakeven" in name for name in found)
    assert any('source="unknown"' in name for name in found)


@pytest.mark.parametrize("text", ["", "<html>", "sglang:x NaN\n", '{"detail":"Not Found"}'])
def test_nonsense_is_counted_and_survived(text: str) -> None:
    collector, watch, source, _clock = make()
    source.text = text
    watch.look()
    found = exported(collector)
    assert "deploy_kit_speculation_speedup_ratio" not in found
    assert found["deploy_kit_up"] == (1 if "sglang" in text else 0)


def test_startup_status_is_exported() -> None:
    clock, source = Clock(), Source()
    status = StartupStatus(
        phase="loading",
        progress_ratio=0.25,
        phase_seconds={"starting": 3.0},
        stalled=True,
        exits={"oom-at-load": 2},
    )
    found = exported(ExporterCollector(PLAN, EngineWatch(source, clock=clock), lambda: status))
    assert found['deploy_kit_startup_phase{phase="loading"}'] == 1
    assert found['deploy_kit_startup_phase{phase="ready"}'] == 0
    assert found["deploy_kit_startup_progress_ratio"] == 0.25
    assert found["deploy_kit_startup_stalled"] == 1
    assert found["deploy_kit_engine_ready"] == 0
    assert found['deploy_kit_engine_exits_total{cause="oom-at-load"}'] == 2
