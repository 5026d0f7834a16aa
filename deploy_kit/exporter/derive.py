"""From two readings of an engine's histograms to the verdict's numbers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from deploy_kit.exporter.facts import PlanFacts, baseline_step
from deploy_kit.metrics.reading import Engine


@dataclass(frozen=True)
class Window:
    """What happened between two scrapes: means over the verifies in between."""

    accept_length: float
    cycle_seconds: float
    batch: float  # requests in one verify


@dataclass(frozen=True)
class Verdict:
    """Whether speculation pays at this moment."""

    breakeven_accept_length: float
    speedup_ratio: float


def window(earlier: Engine, later: Engine) -> Window | None:
    """Given two readings of one engine, return what was measured in between; None when nothing was, or
    when a count went down (a restart)."""
    parts = {}
    for name in ("accept_length", "cycle_seconds", "verify"):
        now, before = later.own.get(name), earlier.own.get(name)
        if now is None:
            return None
        since = now.since(before)
        if since is None or since.mean is None:
            return None
        parts[name] = since
    accept, cycle, verify = parts["accept_length"].mean, parts["cycle_seconds"].mean, parts["verify"]
    if accept is None or cycle is None or cycle <= 0:
        return None
    return Window(accept, cycle, parts["accept_length"].count / verify.count)


def verdict(measured: Window, plan: PlanFacts) -> Verdict | None:
    """Given what was measured, return break-even and speed-up; None without a baseline for this batch.

    One plain step gives each request one token in the baseline's step time; one cycle gives it the accept
    length in the cycle time. So the ratio is accept length x step / cycle, and break-even is cycle / step.
    """
    step = baseline_step(plan.baseline_step_seconds, measured.batch)
    if step is None or step <= 0:
        return None
    breakeven = measured.cycle_seconds / step
    return Verdict(breakeven, measured.accept_length / breakeven)
