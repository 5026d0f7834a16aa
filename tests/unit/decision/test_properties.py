"""What must hold for any numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deploy_kit.decision import physics
from deploy_kit.decision.choose import decide
from deploy_kit.decision.evidence import Band, Method, Observation, evidence_of
from deploy_kit.decision.statistics import log_ratio, paired_log_ratio, student_quantile, weighted

speeds = st.floats(min_value=0.5, max_value=5000)
rounds = st.lists(speeds, min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("probability", "degrees", "value"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.30265),
        (0.975, 4, 2.77645),
        (0.95, 10, 1.81246),
        (0.995, 30, 2.75000),
        (0.975, 1e6, 1.95997),
        (0.5, 3, 0.0),
    ],
)
def test_student_quantiles_are_those_of_the_tables(probability: float, degrees: float, value: float) -> None:
    assert student_quantile(probability, degrees) == pytest.approx(value, rel=1e-4, abs=1e-9)


@given(accept=st.floats(1, 16), cycle=st.floats(1e-4, 1), plain=speeds)
def test_break_even_is_where_speeds_are_equal(accept: float, cycle: float, plain: float) -> None:
    at = physics.break_even_accept_length(cycle, plain)
    assert physics.speed(at, cycle) == pytest.approx(plain)
    assert physics.speed(accept, physics.break_even_cycle(accept, plain)) == pytest.approx(plain)
    assert (accept > at) == (physics.speed(accept, cycle) > plain) or math.isclose(accept, at)
    verify = physics.break_even_verify(accept, plain, cycle / 2)
    if verify is not None:
        assert physics.speed(accept, verify + cycle / 2) == pytest.approx(plain)


@settings(max_examples=150, deadline=None)
@given(base=rounds, others=st.lists(rounds, max_size=4))
def test_the_choice_is_never_much_worse_than_the_surely_best(
    base: list[float], others: list[list[float]]
) -> None:
    found = [
        Observation(Method(name), Band(1), speed, requests=8, receipt_id=f"{name}{number}")
        for name, values in [("baseline", base), *((f"p{i}", v) for i, v in enumerate(others))]
        for number, speed in enumerate(values)
    ]
    decision = decide(evidence_of(found))
    (band,) = decision.bands
    sure = [c for c in band.comparisons if c.verdict == "faster"]
    assert (decision.choice in [c.method for c in sure]) == bool(sure)
    if sure:
        best = max(c.ratio or 0 for c in sure)
        chosen = next(c.ratio or 0 for c in sure if c.method == decision.choice)
        assert chosen >= best * (1 - 1e-9)
        assert all(len(values) >= 2 for values in (base,))
    for comparison in band.comparisons:
        if comparison.interval is not None and comparison.ratio is not None:
            low, high = comparison.interval
            assert low <= comparison.ratio * (1 + 1e-9)
            assert high >= comparison.ratio * (1 - 1e-9) or high == math.exp(700)


@given(a=st.lists(speeds, min_size=2, max_size=6), b=st.lists(speeds, min_size=2, max_size=6))
def test_swapping_the_two_inverts_the_ratio(a: list[float], b: list[float]) -> None:
    assume(max(a) > min(a) * 1.001 and max(b) > min(b) * 1.001)
    forth, back = log_ratio(a, b), log_ratio(b, a)
    assert forth.mean == pytest.approx(-back.mean, abs=1e-9)
    assert forth.standard_error == pytest.approx(back.standard_error)
    one = weighted([(1.0, forth)])
    assert one.mean == forth.mean
    assert one.degrees == pytest.approx(forth.degrees)


def test_pairs_cancel_a_drift_that_hides_the_effect() -> None:
    drift = [1.0, 0.8, 0.64, 0.51]
    candidate, reference = [105 * d for d in drift], [100 * d for d in drift]
    loose = log_ratio(candidate, reference).interval(0.95)
    tight = paired_log_ratio(list(zip(candidate, reference, strict=True))).interval(0.95)
    assert loose is not None
    assert tight is not None
    assert loose[0] < 1 < loose[1]
    assert 1.049 < tight[0] <= tight[1] < 1.051
