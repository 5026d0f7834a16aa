"""From pairs to effects and verdicts."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.campaign.effects import cycle_saving, effects_of, judge, mean_measures, pairs_of
from deploy_kit.campaign.model import Cell, Measure, Schedule, Side, cell_key

SCHEDULE = Schedule()
BASE: Side = "base"
LEVER: Side = "lever"
speeds = st.floats(min_value=1e-3, max_value=1e6)


def cell(side: Side, repeat: int, *measures: Measure) -> Cell:
    return Cell(
        key=cell_key("x", side, repeat),
        step="x",
        side=side,
        repeat=repeat,
        plan_id="p",
        levers=[],
        outcome="measured",
        measures=list(measures),
        ended_at=datetime.now(UTC),
    )


def measure(speed: float, load: int = 1, **more: float) -> Measure:
    return Measure(concurrency=load, tokens_per_second=speed, **more)


def pairs(*values: tuple[float, float]) -> list[tuple[Cell, Cell]]:
    cells = [
        cell(side, repeat, measure(speed))
        for repeat, (base, lever) in enumerate(values)
        for side, speed in ((BASE, base), (LEVER, lever))
    ]
    return pairs_of(cells, "x")


@given(st.lists(st.tuples(speeds, speeds), min_size=2, max_size=8))
def test_the_ratio_is_the_geometric_mean_and_lies_in_its_interval(values: list[tuple[float, float]]) -> None:
    (effect,) = [e for e in effects_of(pairs(*values), SCHEDULE) if e.metric == "tokens_per_second"]
    logs = [math.log(lever / base) for base, lever in values]
    assert math.log(effect.ratio) == pytest.approx(sum(logs) / len(logs), abs=1e-9)
    assert effect.interval is not None
    assert effect.interval[0] <= effect.ratio * (1 + 1e-12)
    assert effect.ratio <= effect.interval[1] * (1 + 1e-12)
    assert effect.pairs == len(effect.pair_ratios) == len(values)


@given(st.lists(st.tuples(speeds, speeds), min_size=2, max_size=6))
def test_lever_and_base_changed_over_turn_the_verdict_round(values: list[tuple[float, float]]) -> None:
    there, _ = judge(
        effects_of(pairs(*values), Schedule(min_effect_ratio=0.0)), Schedule(min_effect_ratio=0.0)
    )
    turned = [(lever, base) for base, lever in values]
    back, _ = judge(
        effects_of(pairs(*turned), Schedule(min_effect_ratio=0.0)), Schedule(min_effect_ratio=0.0)
    )
    opposite = {"helps": "hurts", "hurts": "helps"}
    assert back == opposite.get(there, there)


def test_drift_that_falls_on_both_sides_cancels() -> None:
    # The machine grows 40 % slower over the run; the lever gains 5 % throughout.
    values = [(speed, speed * 1.05 * wobble) for speed, wobble in ((100, 1.002), (80, 0.998), (60, 1.001))]
    verdict, reason = judge(effects_of(pairs(*values), SCHEDULE), SCHEDULE)
    assert verdict == "helps"
    assert "+5.0 %" in reason


def test_without_an_effect_it_seldom_says_there_is_one() -> None:
    draw = random.Random(7)
    wrong = 0
    for _ in range(400):
        values = [(100 * (1 + draw.gauss(0, 0.05)), 100 * (1 + draw.gauss(0, 0.05))) for _ in range(3)]
        verdict, _ = judge(effects_of(pairs(*values), SCHEDULE), SCHEDULE)
        wrong += verdict in ("helps", "hurts")
    assert wrong <= 400 * 0.05 * 1.5


def test_a_sure_gain_below_what_counts_is_no_effect() -> None:
    verdict, reason = judge(effects_of(pairs((100, 101), (100, 101.01), (100, 100.99)), SCHEDULE), SCHEDULE)
    assert verdict == "no measurable effect"
    assert "a gain of less than the 2 %" in reason
    _, reason = judge(effects_of(pairs((101, 100), (101.01, 100), (100.99, 100)), SCHEDULE), SCHEDULE)
    assert "a loss of less than the 2 %" in reason


def test_few_pairs_that_scatter_tell_nothing_but_what_is_sure_of_the_cycle() -> None:
    cells = [
        cell(side, repeat, measure(speed, cycle_seconds=cycle))
        for repeat, both in enumerate((((100, 0.0100), (90, 0.0122)), ((100, 0.0100), (82, 0.0123))))
        for side, (speed, cycle) in zip((BASE, LEVER), both, strict=True)
    ]
    verdict, reason = judge(effects_of(pairs_of(cells, "x"), SCHEDULE), SCHEDULE)
    assert verdict == "unknown"
    assert "too wide to tell from 2 pairs; the cycle surely changed, by +22.5 %" in reason
    verdict, reason = judge(effects_of(pairs((100, 90), (100, 115)), SCHEDULE), SCHEDULE)
    assert verdict == "unknown"
    assert reason.endswith("too wide to tell from 2 pairs")


# Custom all-reduce on two H200: tokens/s and cycle of three pairs, over the base's.
MEASURED = ((1.0377, 0.9246), (1.0238, 0.9104), (1.0559, 0.9039))


@pytest.mark.parametrize(
    ("cycles", "verdict", "says"),
    [
        (
            [cycle for _, cycle in MEASURED],
            "unknown",
            "cannot tell; the cycle surely changed, by -8.7 % (-11.3 to -6.0)",
        ),
        ([1.0, 1.01, 0.99], "no measurable effect", "+3.9 % tokens/s (95 %: -0.0 to +8.0)"),
        ([0.991, 0.990, 0.992], "no measurable effect", ""),  # sure, and less than what counts
    ],
)
def test_no_measurable_effect_is_not_said_where_the_cycle_surely_changed(
    cycles: list[float], verdict: str, says: str
) -> None:
    cells = [
        cell(side, repeat, measure(100 * factor, cycle_seconds=cycle / 100))
        for repeat, ((speed, _), changed) in enumerate(zip(MEASURED, cycles, strict=True))
        for side, factor, cycle in ((BASE, 1.0, 1.0), (LEVER, speed, changed))
    ]
    found, reason = judge(effects_of(pairs_of(cells, "x"), SCHEDULE), SCHEDULE)
    assert found == verdict
    assert says in reason


def test_with_no_least_effect_a_tight_interval_around_one_is_a_result() -> None:
    schedule = Schedule(min_effect_ratio=0.0)
    verdict, _ = judge(effects_of(pairs((100, 100.3), (100, 99.9), (100, 100.1)), schedule), schedule)
    assert verdict == "no measurable effect"


def test_several_loads_count_alike_and_are_shown_each() -> None:
    cells = [
        cell(side, repeat, measure(10 * factor), measure(1000 * factor, 32))
        for repeat in range(2)
        for side, factor in ((BASE, 1.0), (LEVER, 1.2 if repeat else 1.21))
    ]
    found = {(e.metric, e.concurrency): e for e in effects_of(pairs_of(cells, "x"), SCHEDULE)}
    assert set(found) == {("tokens_per_second", None), ("tokens_per_second", 1), ("tokens_per_second", 32)}
    assert found["tokens_per_second", None].ratio == pytest.approx(math.sqrt(1.2 * 1.21))


def test_what_one_side_does_not_know_has_no_effect() -> None:
    cells = [
        cell("base", 0, measure(10, cycle_seconds=0.03)),
        cell("lever", 0, measure(11)),
        cell("base", 1, measure(10, cycle_seconds=0.03)),
        cell("lever", 1, measure(11, cycle_seconds=0.02)),
    ]
    found = pairs_of(cells, "x")
    assert {e.metric for e in effects_of(found, SCHEDULE)} == {"tokens_per_second"}
    assert cycle_saving(found, SCHEDULE) == (None, None, None)


def test_the_saving_of_a_cycle_is_in_milliseconds_at_the_lightest_load() -> None:
    cells = [
        cell("base", 0, measure(10, cycle_seconds=0.030), measure(90, 8, cycle_seconds=0.05)),
        cell("lever", 0, measure(11, cycle_seconds=0.024), measure(91, 8, cycle_seconds=0.05)),
        cell("base", 1, measure(10, cycle_seconds=0.031), measure(90, 8, cycle_seconds=0.05)),
        cell("lever", 1, measure(11, cycle_seconds=0.023), measure(91, 8, cycle_seconds=0.05)),
    ]
    saving, interval, load = cycle_saving(pairs_of(cells, "x"), SCHEDULE)
    assert saving == pytest.approx(7.0)
    assert load == 1
    assert interval is not None
    assert interval[0] < 7.0 < interval[1]


def test_half_a_pair_is_left_out() -> None:
    assert pairs_of([cell("base", 0, measure(1)), cell("lever", 1, measure(1))], "x") == []
    assert effects_of([], SCHEDULE) == []
    assert judge([], SCHEDULE)[0] == "unknown"


def test_a_quantity_that_a_round_lacks_is_not_averaged_over_the_others() -> None:
    (mean,) = mean_measures([measure(10, accept_length=2.0), measure(20)])
    assert mean.tokens_per_second == 15
    assert mean.accept_length is None
