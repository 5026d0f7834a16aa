"""What the exporter is told about the plan: plain values, so that it depends on no other part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

BaselineSource = Literal["receipt", "config", "unknown"]


@dataclass(frozen=True)
class PlanFacts:
    """The plan as the exporter shows it.

    `baseline_step_seconds` maps a batch size (running requests) to the measured time of one plain decode step
    of this host, model and stack; empty when no receipt holds one. `verify_p95_seconds` is the 95th
    percentile of a verify in the plan's own receipt; None when there is none.
    """

    plan_id: str
    profile: str
    stack: str
    model: str
    host: str
    rehearsal: bool
    speculative: bool
    baseline_step_seconds: Mapping[int, float] = field(default_factory=dict)
    baseline_source: BaselineSource = "unknown"
    verify_p95_seconds: float | None = None


def baseline_step(steps: Mapping[int, float], batch: float) -> float | None:
    """Given measured step times by batch size, return the time at `batch`, in seconds: measured, or between
    two neighbours. None outside what was measured: a step time is never extrapolated.

    >>> baseline_step({1: 0.012, 8: 0.019}, 1.0)
    0.012
    >>> baseline_step({1: 0.012, 8: 0.019}, 9.0) is None
    True
    """
    if not steps:
        return None
    sizes = sorted(steps)
    # A batch between two requests' ends is a fraction: 0.05 beyond the edge is still the edge.
    if batch < sizes[0] - 0.05 or batch > sizes[-1] + 0.05:
        return None
    batch = min(max(batch, sizes[0]), sizes[-1])
    for low, high in pairwise(sizes):
        if low <= batch <= high:
            share = (batch - low) / (high - low)
            return steps[low] + share * (steps[high] - steps[low])
    return steps[sizes[0]]
