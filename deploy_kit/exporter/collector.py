"""The exporter's metrics, made anew for each scrape: what is not known now is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from deploy_kit import __version__
from deploy_kit.exporter.derive import verdict, window
from deploy_kit.exporter.facts import PlanFacts
from deploy_kit.exporter.watch import EngineWatch
from deploy_kit.startup.status import PHASES, StartupStatus


class ExporterCollector:
    """Collects for prometheus_client: called for each scrape, in the server's thread."""

    def __init__(
        self,
        plan: PlanFacts | Callable[[], PlanFacts],
        watch: EngineWatch,
        startup: Callable[[], StartupStatus] | None,
    ) -> None:
        self._plan: Callable[[], PlanFacts] = plan if callable(plan) else lambda: plan
        self._watch = watch
        self._startup = startup

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families of this moment."""
        plan = self._plan()
        yield from self._about(plan)
        yield from self._engine(plan)
        if self._startup is not None:
            yield from startup_families(self._startup())

    def _about(self, plan: PlanFacts) -> Iterator[Metric]:
        build = GaugeMetricFamily("deploy_kit_build_info", "1: this deploy-kit.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        names = ["plan_id", "profile", "stack", "model", "host", "rehearsal", "speculative"]
        info = GaugeMetricFamily("deploy_kit_plan_info", "1: the plan that is served.", labels=names)
        info.add_metric(
            [plan.plan_id, plan.profile, plan.stack, plan.model, plan.host,
             _yes(plan.rehearsal), _yes(plan.speculative)],
            1,
        )  # fmt: skip
        yield info
        step = GaugeMetricFamily(
            "deploy_kit_baseline_step_seconds",
            "Plain decode step of this host and model by batch size; NaN when source is unknown.",
            labels=["source", "batch"],
        )
        if not plan.baseline_step_seconds:
            step.add_metric(["unknown", "1"], float("nan"))
        for batch, seconds in sorted(plan.baseline_step_seconds.items()):
            step.add_metric([plan.baseline_source, str(batch)], seconds)
        yield step
        if plan.verify_p95_seconds is not None:
            yield GaugeMetricFamily(
                "deploy_kit_plan_verify_p95_seconds",
                "95th percentile of a verify in the plan's receipt.",
                value=plan.verify_p95_seconds,
            )

    def _engine(self, plan: PlanFacts) -> Iterator[Metric]:
        ends = self._watch.ends()
        yield GaugeMetricFamily(
            "deploy_kit_up",
            "1: the engine's metrics were read in the last seconds.",
            value=float(ends is not None),
        )
        errors = CounterMetricFamily(
            "deploy_kit_engine_scrape_errors",
            "What went wrong reading the engine's metrics.",
            labels=["reason"],
        )
        # From the start at 0, so that the first error is an increase and "none" is not "not known".
        for reason, number in sorted({"unreachable": 0, **self._watch.errors()}.items()):
            errors.add_metric([reason], number)
        yield errors
        measured = None if ends is None else window(*ends)
        if measured is None:
            return
        yield GaugeMetricFamily(
            "deploy_kit_verify_batch_requests",
            "Requests in one verify, mean of the window.",
            value=measured.batch,
        )
        result = verdict(measured, plan)
        if result is None:
            return
        yield GaugeMetricFamily(
            "deploy_kit_breakeven_accept_length",
            "Accept length at which speculation is exactly as fast as the baseline: cycle / baseline step.",
            value=result.breakeven_accept_length,
        )
        yield GaugeMetricFamily(
            "deploy_kit_speculation_speedup_ratio",
            "Accept length x baseline step / cycle; above 1 speculation pays.",
            value=result.speedup_ratio,
        )


def startup_families(status: StartupStatus) -> Iterator[Metric]:
    """Given the engine's start-up status, yield its metric families."""
    phase = GaugeMetricFamily(
        "deploy_kit_startup_phase", "1 for the phase the engine is in.", labels=["phase"]
    )
    for name in PHASES:
        phase.add_metric([name], float(name == status.phase))
    yield phase
    ready = status.phase in ("ready", "serving")
    yield GaugeMetricFamily(
        "deploy_kit_engine_ready", "1: a real completion has come back.", value=float(ready)
    )
    yield GaugeMetricFamily(
        "deploy_kit_startup_stalled", "1: nothing observable advances.", value=float(status.stalled)
    )
    progress = 1.0 if ready else status.progress_ratio
    if progress is not None:
        yield GaugeMetricFamily(
            "deploy_kit_startup_progress_ratio",
            "Progress within the phase, 0 to 1; 1 once ready.",
            value=progress,
        )
    seconds = GaugeMetricFamily("deploy_kit_startup_seconds", "Time spent in each phase.", labels=["phase"])
    for name, spent in status.phase_seconds.items():
        seconds.add_metric([name], spent)
    yield seconds
    exits = CounterMetricFamily("deploy_kit_engine_exits", "Engine ends by cause.", labels=["cause"])
    for cause, number in status.exits.items():
        exits.add_metric([cause], number)
    yield exits


def _yes(value: bool) -> str:
    return "true" if value else "false"
