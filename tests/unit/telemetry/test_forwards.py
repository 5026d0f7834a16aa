"""Phases, joined draft steps and cycles."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.telemetry.forwards import ForwardStream, Observed, accepted_positions, phase_of


def feed(*forwards: tuple[str | None, float, float | None]) -> list[Observed]:
    stream = ForwardStream()
    return [observed for forward in forwards for observed in stream.add(*forward)]


@pytest.mark.parametrize(
    ("category", "drafter", "phase"),
    [
        ("target_verify", False, "verify"),
        ("decode", False, "decode"),
        ("decode", True, "draft"),
        ("eagle_draft", True, "draft"),
        ("eagle_draft_extend", True, "draft_extend"),
        ("draft_extend_v2", True, "draft_extend"),
        ("extend", False, "prefill"),
        ("idle", False, None),
        ("something_new", False, None),
    ],
)
def test_phases(category: str, drafter: bool, phase: str | None) -> None:
    assert phase_of(category, drafter=drafter) == phase


def test_draft_steps_are_one_draft() -> None:
    found = feed(("draft", 0.001, None), ("draft", 0.002, None), ("verify", 0.012, None))
    assert [o.phase for o in found] == ["draft", "verify"]
    assert found[0].seconds == pytest.approx(0.003)


def test_cycle_runs_from_verify_to_verify() -> None:
    found = feed(
        ("verify", 0.012, 10.0),
        ("draft_extend", 0.001, 10.013),
        ("draft", 0.002, 10.014),
        ("verify", 0.012, 10.020),
    )
    cycles = [o.seconds for o in found if o.phase is None]
    assert cycles == [pytest.approx(0.020)]


@pytest.mark.parametrize("between", ["prefill", "decode", None])
def test_another_batch_starts_a_new_cycle(between: str | None) -> None:
    found = feed(("verify", 0.012, 10.0), (between, 0.5, 10.1), ("verify", 0.012, 10.7))
    assert not [o for o in found if o.phase is None]


def test_a_pause_is_no_cycle() -> None:
    assert len(feed(("verify", 0.012, 10.0), ("verify", 0.012, 70.0))) == 2


@given(st.lists(st.integers(0, 15), max_size=40))
def test_positions_add_up_to_the_drafts(drafts: list[int]) -> None:
    counts = accepted_positions(Counter(drafts))
    assert sum(counts) == sum(drafts)
    assert counts == sorted(counts, reverse=True)
