"""Which NCCL settings to try next: coordinate search from measured ratios, for each size by itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from deploy_kit.probe.candidates import AXES, DEFAULT, Point, point_of

# point → size in tokens → latency as a ratio to NCCL's default of the same rounds
Ratios = Mapping[Point, Mapping[int, float]]

# A value counts as better only by more than measuring noise of a first pass.
_WORTH = 0.98
# A neighbour is not tried when its axis values, each by itself, predict more than this over the best.
_HOPELESS = 1.25


def best_points(ratios: Ratios, sizes: Sequence[int]) -> dict[int, Point]:
    """Given measured ratios, return each size's fastest point."""
    found: dict[int, Point] = {}
    for size in sizes:
        measured = {point: values[size] for point, values in ratios.items() if size in values}
        if measured:
            found[size] = min(measured, key=lambda point: (measured[point], len(point), point))
    return found


def predicted(point: Point, size: int, ratios: Ratios) -> float:
    """Return a point's ratio if its axis values acted independently; 1 for what is unmeasured."""
    return prod(ratios.get((pair,), {}).get(size, 1.0) for pair in point)


def next_points(
    ratios: Ratios, sizes: Sequence[int], axes: Sequence[str], failed: Sequence[Point] = ()
) -> list[Point]:
    """Given what is measured, return untried points worth measuring, the most promising first.

    For each size: the combination of every axis value that helped by itself, then the neighbours of the
    fastest point along each axis. Points that contain a failed axis value are left out. An empty list means
    that the search has converged.
    """
    promise: dict[Point, float] = {}
    bad_pairs = {pair for point in failed if len(point) == 1 for pair in point}
    best = best_points(ratios, sizes)
    for size, point in best.items():
        now = ratios[point][size]
        for rank, other in enumerate([_combination(ratios, size, axes), *_neighbours(point, axes)]):
            if other in ratios or other in failed or bad_pairs.intersection(other):
                continue
            expected = predicted(other, size, ratios) / now
            # The combination is always worth a try: it is what the first pass asks for.
            if rank and expected > _HOPELESS:
                continue
            promise[other] = min(promise.get(other, expected), expected - (1 if rank == 0 else 0))
    return sorted(promise, key=lambda point: (promise[point], len(point), point))


def _combination(ratios: Ratios, size: int, axes: Sequence[str]) -> Point:
    values: dict[str, str] = {}
    for axis in axes:
        singles = {
            value: ratios[((axis, value),)][size]
            for value in AXES[axis]
            if ((axis, value),) in ratios and size in ratios[((axis, value),)]
        }
        if singles:
            value = min(singles, key=lambda name: singles[name])
            if singles[value] < _WORTH:
                values[axis] = value
    return point_of(values)


def _neighbours(point: Point, axes: Sequence[str]) -> list[Point]:
    values = dict(point)
    return [
        point_of({**values, axis: value})
        for axis in axes
        for value in AXES[axis]
        if value != values.get(axis, DEFAULT)
    ]
