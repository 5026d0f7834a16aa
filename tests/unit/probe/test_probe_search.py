"""The search is held against exhaustive grids of made-up landscapes, with the noise that a first pass has."""

import random
from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy_kit.probe.candidates import AXES, Point, nccl_candidate, point_of
from deploy_kit.probe.search import best_points, next_points, predicted

AXIS_NAMES = ["protocol", "algorithm", "channels", "buffer"]
SIZES = [1, 4, 64]


def every_point() -> list[Point]:
    return [
        point_of(dict(zip(AXIS_NAMES, values, strict=True)))
        for values in product(*(AXES[axis] for axis in AXIS_NAMES))
    ]


class Landscape:
    """Latencies with a factor for each axis value and size, some interaction of pairs, and noise."""

    def __init__(self, seed: int, interaction: float, noise: float) -> None:
        draw = random.Random(seed)
        self._draw = random.Random(seed + 1)
        self._noise = noise
        self._factors = {
            (size, axis, value): 1.0 if value == "default" else draw.uniform(0.7, 1.6)
            for size in SIZES
            for axis in AXIS_NAMES
            for value in AXES[axis]
        }
        self._pairs = {
            (size, one, other): draw.uniform(1 - interaction, 1 + interaction)
            for size in SIZES
            for one, other in product(AXES["protocol"], AXES["channels"])
        }

    def true(self, point: Point, size: int) -> float:
        values = {**dict.fromkeys(AXIS_NAMES, "default"), **dict(point)}
        pair = self._pairs[size, values["protocol"], values["channels"]]
        return pair * prod(self._factors[size, axis, values[axis]] for axis in AXIS_NAMES)

    def measured(self, point: Point) -> dict[int, float]:
        return {size: self.true(point, size) * self._draw.uniform(1, 1 + self._noise) for size in SIZES}


def search(landscape: Landscape, limit: int) -> dict[Point, dict[int, float]]:
    singles = [((axis, value),) for axis in AXIS_NAMES for value in AXES[axis] if value != "default"]
    ratios = {point: landscape.measured(point) for point in [(), *singles]}
    while len(ratios) < limit:
        points = next_points(ratios, SIZES, AXIS_NAMES)[: min(8, limit - len(ratios))]
        if not points:
            break
        ratios |= {point: landscape.measured(point) for point in points}
    return ratios


@pytest.mark.parametrize("seed", range(8))
def test_independent_axes_are_found_at_once(seed: int) -> None:
    landscape = Landscape(seed, interaction=0, noise=0.01)
    found = search(landscape, limit=26)
    for size in SIZES:
        chosen = best_points(found, SIZES)[size]
        best = min(landscape.true(point, size) for point in every_point())
        assert landscape.true(chosen, size) <= 1.05 * best


@pytest.mark.parametrize("seed", range(8))
def test_interacting_axes_are_found_by_going_on(seed: int) -> None:
    landscape = Landscape(seed, interaction=0.15, noise=0.01)
    found = search(landscape, limit=70)
    assert len(found) < len(every_point()) / 4
    for size in SIZES:
        chosen = best_points(found, SIZES)[size]
        best = min(landscape.true(point, size) for point in every_point())
        assert landscape.true(chosen, size) <= 1.05 * best


def test_the_search_ends_by_itself() -> None:
    landscape = Landscape(1, interaction=0.1, noise=0)
    found = search(landscape, limit=10_000)
    assert len(found) < len(every_point())
    assert next_points(found, SIZES, AXIS_NAMES) == []


def test_what_failed_by_itself_is_not_tried_in_combination() -> None:
    ratios = {(): {1: 1.0}, (("protocol", "LL"),): {1: 0.5}, (("channels", "8"),): {1: 0.6}}
    failed = [(("algorithm", "tree"),)]
    points = next_points(ratios, [1], AXIS_NAMES, failed)
    assert points[0] == (("protocol", "LL"), ("channels", "8"))
    assert not any(("algorithm", "tree") in point for point in points)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(every_point()), st.fixed_dictionaries({1: st.floats(0.1, 10)}), max_size=30
    )
)
def test_next_points_are_new_valid_and_never_repeat(ratios: dict[Point, dict[int, float]]) -> None:
    points = next_points(ratios, [1], AXIS_NAMES)
    assert len(points) == len(set(points))
    assert not set(points) & set(ratios)
    for point in points:
        assert nccl_candidate(dict(point)).point == point


def test_prediction_multiplies_what_each_value_did_alone() -> None:
    ratios: dict[Point, dict[int, float]] = {(("protocol", "LL"),): {1: 0.5}, (("channels", "8"),): {1: 0.8}}
    assert predicted((("protocol", "LL"), ("channels", "8")), 1, ratios) == pytest.approx(0.4)
    assert predicted((("algorithm", "ring"),), 1, ratios) == 1.0
