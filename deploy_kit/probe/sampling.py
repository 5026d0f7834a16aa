"""Medians, their confidence intervals, paired ratios. Pure and seeded: same samples, same answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

Rounds = Sequence[Sequence[float]]  # samples of one candidate and size, grouped by measuring round


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % confidence interval."""

    median: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        """Return the interval for JSON, rounded to a nanosecond when the unit is microseconds."""
        return {"median": round(self.median, 3), "low": round(self.low, 3), "high": round(self.high, 3)}


def median_interval(rounds: Rounds, *, resamples: int = 400, seed: int = 7) -> Interval:
    """Given samples grouped by round, return the median of all and its bootstrap interval.

    Rounds are drawn first and samples inside them second, since samples of one round share the machine's
    state: treating them as independent would claim too much. Raises `ValueError` without samples.
    """
    filled = [list(samples) for samples in rounds if samples]
    if not filled:
        raise ValueError("no samples")
    middle = median([sample for samples in filled for sample in samples])
    draw = random.Random(seed)  # noqa: S311
    found = sorted(_resampled_median(filled, draw) for _ in range(resamples))
    return Interval(middle, min(middle, _quantile(found, 0.025)), max(middle, _quantile(found, 0.975)))


def ratio_interval(rounds: Rounds, baseline: Rounds, *, resamples: int = 400, seed: int = 7) -> Interval:
    """Given two candidates measured in the same rounds, return the median of the per-round ratios and its
    interval: below 1 means faster than the baseline. Raises `ValueError` when no round has both."""
    pairs = [
        median(mine) / median(theirs)
        for mine, theirs in zip(rounds, baseline, strict=False)
        if mine and theirs
    ]
    if not pairs:
        raise ValueError("no round has both")
    draw = random.Random(seed)  # noqa: S311
    found = sorted(median(draw.choices(pairs, k=len(pairs))) for _ in range(resamples))
    middle = median(pairs)
    return Interval(middle, min(middle, _quantile(found, 0.025)), max(middle, _quantile(found, 0.975)))


def _resampled_median(rounds: list[list[float]], draw: random.Random) -> float:
    chosen = draw.choices(rounds, k=len(rounds))
    return median([sample for samples in chosen for sample in draw.choices(samples, k=len(samples))])


def _quantile(ordered: list[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
