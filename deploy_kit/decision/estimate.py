"""Estimates for profiles that are not measured yet. They only rank what to measure next, never decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy_kit.decision import physics
from deploy_kit.receipts import Receipt


@dataclass(frozen=True)
class Candidate:
    """An unmeasured profile: draft steps a cycle and tokens a verify."""

    profile: str
    steps: int
    draft_tokens: int


@dataclass(frozen=True)
class Estimate:
    """The least cycle time a candidate can have here, and the accept length it would need. A lower bound:
    the extra experts that more tokens touch, and host gaps, are not in it."""

    candidate: Candidate
    cycle_seconds: float
    break_even_accept_length: float

    @property
    def text(self) -> str:
        """The estimate in words, marked as one."""
        most = self.candidate.steps + 1 if self.candidate.steps else self.candidate.draft_tokens
        return (
            f"estimate (lower bound): {self.candidate.profile} cycle at least "
            f"{self.cycle_seconds * 1000:.1f} ms, so it needs an accept length above "
            f"{self.break_even_accept_length:.2f} of at most {most}"
        )


def estimate(
    candidate: Candidate,
    *,
    baseline_tokens_per_second: float,
    allreduce_seconds: Mapping[int, float],
    allreduces_per_forward: int,
    layers: int,
    concurrency: int = 1,
) -> Estimate | None:
    """Given the measured baseline of one stream, the probe's all-reduce time by tokens, and the model's
    layers and all-reduces a forward, return the estimate; None when the probe's sizes do not reach.

    Verify = the measured decode step, with its all-reduces grown from one to `draft_tokens` tokens a stream.
    A draft step is one layer's share of a decode step.
    """
    step = 1 / baseline_tokens_per_second
    one = interpolate(allreduce_seconds, concurrency)
    many = interpolate(allreduce_seconds, concurrency * candidate.draft_tokens)
    if one is None or many is None:
        return None
    verify = step + allreduces_per_forward * max(many - one, 0.0)
    cycle = physics.cycle_time(candidate.steps * step / layers, verify)
    return Estimate(candidate, cycle, physics.break_even_accept_length(cycle, baseline_tokens_per_second))


def rank(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Return the estimates with the easiest break-even first (as a share of the most they could accept)."""
    return sorted(estimates, key=lambda e: e.break_even_accept_length / e.candidate.draft_tokens)


def interpolate(points: Mapping[int, float], tokens: int) -> float | None:
    """Given all-reduce seconds by number of tokens, return the value at `tokens`, linear between the
    measured neighbours; None outside the measured sizes."""
    sizes = sorted(points)
    if not sizes or not sizes[0] <= tokens <= sizes[-1]:
        return None
    for low, high in zip(sizes, sizes[1:] or sizes, strict=False):
        if low <= tokens <= high:
            share = 0.0 if high == low else (tokens - low) / (high - low)
            return points[low] + share * (points[high] - points[low])
    return points[sizes[0]]


def allreduce_times(receipts: Sequence[Receipt], host: str | None, rehearsal: bool) -> dict[int, float]:
    """Return seconds an all-reduce by number of tokens, from the newest probe receipt of this host that
    measured any: of the setting chosen for the host where it was measured, else of the fastest that can be
    deployed. Empty when there is none."""
    for receipt in reversed(receipts):
        if (
            receipt.kind == "allreduce"
            and receipt.host.name == host
            and receipt.rehearsal == rehearsal
            and (found := read_allreduce(receipt.summary))
        ):
            return found
    return {}


def read_allreduce(summary: Mapping[str, Any]) -> dict[int, float]:
    """Given the summary of a probe receipt (`deploy-kit probe allreduce`), return seconds by tokens.

    >>> read_allreduce({"sizes": {"4": {"latency_us": {"LL": {"median": 24.4}}, "fastest": "LL"}}})
    {4: 2.44e-05}
    """
    sizes, setting = summary.get("sizes"), summary.get("host_setting")
    chosen = setting.get("candidate") if isinstance(setting, Mapping) else None
    found: dict[int, float] = {}
    for tokens, size in sizes.items() if isinstance(sizes, Mapping) else ():
        if not isinstance(size, Mapping) or not str(tokens).isdecimal():
            continue
        latencies = size.get("latency_us")
        if not isinstance(latencies, Mapping):
            continue
        entry = latencies.get(chosen) or latencies.get(size.get("fastest"))
        median = entry.get("median") if isinstance(entry, Mapping) else None
        if isinstance(median, (int, float)) and median > 0:
            found[int(tokens)] = round(median * 1e-6, 12)
    return found
