import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.probe.sampling import median_interval, ratio_interval

positive = st.floats(min_value=0.1, max_value=1e6, allow_nan=False)


@given(st.lists(st.lists(positive, min_size=1, max_size=6), min_size=1, max_size=5))
def test_the_interval_holds_the_median_and_stays_inside_the_samples(rounds: list[list[float]]) -> None:
    interval = median_interval(rounds, resamples=40)
    every = [sample for samples in rounds for sample in samples]
    assert min(every) <= interval.low <= interval.median <= interval.high <= max(every)


@given(st.lists(st.lists(positive, min_size=1, max_size=4), min_size=1, max_size=4))
def test_a_candidate_against_itself_is_exactly_one(rounds: list[list[float]]) -> None:
    interval = ratio_interval(rounds, rounds, resamples=40)
    assert (interval.low, interval.median, interval.high) == (1.0, 1.0, 1.0)


def test_the_same_samples_give_the_same_interval() -> None:
    rounds = [[10.0, 11.0, 30.0], [9.0, 12.0]]
    assert median_interval(rounds) == median_interval(rounds)


def test_the_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    draw = random.Random(3)
    covered = 0
    for attempt in range(100):
        rounds = [[draw.gauss(100, 5) for _ in range(8)] for _ in range(6)]
        interval = median_interval(rounds, resamples=120, seed=attempt)
        covered += interval.low <= 100 <= interval.high
    assert 85 <= covered <= 100


def test_rounds_that_differ_widen_the_interval() -> None:
    draw = random.Random(4)
    steady = [[draw.gauss(100, 1) for _ in range(10)] for _ in range(5)]
    shifting = [
        [value + shift for value in samples] for samples, shift in zip(steady, range(0, 50, 10), strict=True)
    ]
    narrow, wide = median_interval(steady), median_interval(shifting)
    assert wide.high - wide.low > 5 * (narrow.high - narrow.low)


def test_a_drift_of_the_machine_cancels_in_the_paired_ratio() -> None:
    baseline = [[100.0 * drift] * 3 for drift in (1, 2, 3, 4)]
    faster = [[80.0 * drift] * 3 for drift in (1, 2, 3, 4)]
    interval = ratio_interval(faster, baseline)
    assert interval.low == interval.high == pytest.approx(0.8)


@pytest.mark.parametrize("rounds", [[], [[]], [[], []]])
def test_no_samples_is_an_error_not_a_number(rounds: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="no samples"):
        median_interval(rounds)
    with pytest.raises(ValueError, match="no round"):
        ratio_interval(rounds, rounds)
