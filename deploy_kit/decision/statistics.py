"""The little statistics that decisions need, without heavy libraries: ratios of speeds with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LogRatio:
    """The natural logarithm of a speed ratio, with its standard error and degrees of freedom (None when a
    single round leaves the spread unknown)."""

    mean: float
    standard_error: float | None = None
    degrees: float | None = None

    @property
    def ratio(self) -> float:
        """The ratio itself: 1.0 means as fast."""
        return math.exp(self.mean)

    def interval(self, confidence: float) -> tuple[float, float] | None:
        """Return the two-sided confidence interval of the ratio, or None when the spread is unknown."""
        if self.standard_error is None or self.degrees is None:
            return None
        half = student_quantile(0.5 + confidence / 2, self.degrees) * self.standard_error
        return math.exp(self.mean - half), math.exp(min(self.mean + half, 700.0))


def log_ratio(candidate: Sequence[float], reference: Sequence[float]) -> LogRatio:
    """Given the speeds of each round of two methods (all > 0), return the log of the ratio of their means,
    with its spread (delta method; Welch: the two may vary differently). With one round of either, the
    spread is unknown."""
    a, b = list(candidate), list(reference)
    mean = math.log(_mean(a)) - math.log(_mean(b))
    if len(a) < 2 or len(b) < 2:
        return LogRatio(mean)
    part_a = _variance(a) / len(a) / _mean(a) ** 2
    part_b = _variance(b) / len(b) / _mean(b) ** 2
    total = part_a + part_b
    if total <= 0:
        return LogRatio(mean, 0.0, float(len(a) + len(b) - 2))
    degrees = total**2 / (part_a**2 / (len(a) - 1) + part_b**2 / (len(b) - 1))
    return LogRatio(mean, math.sqrt(total), degrees)


def paired_log_ratio(pairs: Sequence[tuple[float, float]]) -> LogRatio:
    """Given (candidate, reference) speeds measured next to each other, return the log ratio over pairs:
    what drifts slowly (temperature, clocks) cancels."""
    logs = [math.log(candidate) - math.log(reference) for candidate, reference in pairs]
    if len(logs) < 2:
        return LogRatio(_mean(logs))
    return LogRatio(_mean(logs), math.sqrt(_variance(logs) / len(logs)), float(len(logs) - 1))


def weighted(parts: Sequence[tuple[float, LogRatio]]) -> LogRatio:
    """Given (weight, log ratio) of independent bands, weights summing to 1, return the weighted mean
    (a geometric mean of ratios); the spread is unknown when any part's is."""
    mean = sum(weight * part.mean for weight, part in parts)
    spreads: list[tuple[float, float]] = []
    for weight, part in parts:
        if part.standard_error is None or part.degrees is None:
            return LogRatio(mean)
        spreads.append(((weight * part.standard_error) ** 2, part.degrees))
    total = sum(variance for variance, _ in spreads)
    if total <= 0:
        return LogRatio(mean, 0.0, min(degrees for _, degrees in spreads))
    degrees = total**2 / sum(variance**2 / degrees for variance, degrees in spreads)
    return LogRatio(mean, math.sqrt(total), degrees)


def student_quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's t distribution for 0.5 <= probability < 1 and degrees > 0, by
    bisection on its distribution function.

    >>> round(student_quantile(0.975, 4), 3)
    2.776
    """
    low, high = 0.0, 1.0
    while _student_cdf(high, degrees) < probability and high < 1e12:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if _student_cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _student_cdf(t: float, degrees: float) -> float:
    return 1 - 0.5 * _incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    # Regularised; by its continued fraction, on the side where that converges fast.
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(a, b, x) / a
    return 1 - front * _beta_fraction(b, a, 1 - x) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    # Lentz's method.
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    result = d
    for m in range(1, 300):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + factor * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + factor / c
            c = c if abs(c) > tiny else tiny
            result *= d * c
        if abs(d * c - 1) < 1e-14:
            break
    return result


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    middle = _mean(values)
    return math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)
