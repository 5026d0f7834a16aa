"""The story this project started from, and two published sets, through the real decision."""

from __future__ import annotations

import pytest

from deploy_kit.decision import physics
from deploy_kit.decision.choose import Decision, EvidenceRules, decide
from deploy_kit.decision.describe import as_dict, describe
from deploy_kit.decision.evidence import Band, Method, Observation, evidence_of

ONE = Band(1)


def measured(
    profile: str, speed: float, *, band: Band = ONE, rounds: int = 3, **parts: float
) -> list[Observation]:
    # Rounds a third of a percent apart, as a quiet server gives them.
    return [
        Observation(
            method=Method(profile),
            band=band,
            tokens_per_second=speed * (1 + 0.003 * (number - (rounds - 1) / 2)),
            requests=8,
            receipt_id=f"{profile}-{number}",
            **parts,  # type: ignore[arg-type]
        )
        for number in range(rounds)
    ]


def decided(*groups: list[Observation], rules: EvidenceRules | None = None) -> Decision:
    return decide(evidence_of([o for group in groups for o in group]), rules=rules)


STORY = (
    measured("baseline", 82),
    measured("eagle3", 60, accept_length=2.0, cycle_seconds=0.030, verify_seconds=0.025),
    measured("eagle3-k2", 52, accept_length=1.5),
    measured("ngram", 41, accept_length=1.9, verify_seconds=0.045),
    measured("eagle3-2step", 58),
)


def test_the_five_measured_methods_give_the_baseline() -> None:
    decision = decided(*STORY)
    assert decision.choice == Method("baseline")
    (band,) = decision.bands
    assert [c.verdict for c in band.comparisons] == ["slower"] * 4
    eagle = next(c for c in band.comparisons if c.method.profile == "eagle3")
    assert eagle.break_even_accept_length == pytest.approx(2.46, abs=0.005)
    assert "2.46" in decision.sum_line
    assert "30.0 ms x 82.0 tok/s" in decision.sum_line


def test_an_accept_length_of_two_is_flagged_as_inconsistent() -> None:
    (flag,) = [flag for flag in decided(*STORY).flags if "inconsistent" in flag]
    assert "1.80" in flag
    assert "2.00" in flag
    assert "eagle3 at C=1" in flag


def test_what_would_change_the_answer() -> None:
    decision = decided(*STORY, rules=EvidenceRules(min_gain_ratio=0.0))
    (line,) = [line for line in decision.would_change if line.startswith("eagle3 ")]
    assert "accept length above 2.46" in line
    assert "cycle below 24.4 ms" in line
    assert "verify below 19.4 ms" in line
    # What the other methods lack is said, not guessed.
    assert any("ngram" in line and "cycle time unknown" in line for line in decision.missing)
    assert any("eagle3-2step" in line and "accept length unknown" in line for line in decision.missing)


@pytest.mark.parametrize(("cycle", "speed", "gain"), [(0.015, 133, 62.6), (0.012, 167, 103.3)])
def test_a_faster_verify_turns_it_round(cycle: float, speed: int, gain: float) -> None:
    predicted = physics.speed(2.0, cycle)
    assert round(predicted) == speed
    decision = decided(
        measured("baseline", 82), measured("eagle3", predicted, accept_length=2.0, cycle_seconds=cycle)
    )
    assert decision.choice == Method("eagle3")
    assert decision.ratio is not None
    assert (decision.ratio - 1) * 100 == pytest.approx(gain, abs=0.1)
    assert decision.interval is not None
    assert decision.interval[0] < decision.ratio < decision.interval[1]
    assert f"= {speed} tok/s" in decision.sum_line
    assert not [flag for flag in decision.flags if "inconsistent" in flag]
    assert "eagle3" in describe(decision)


def test_published_k26_set_wins_at_low_load_and_nearly_ties_at_high() -> None:
    low, high = Band(1), Band(128)
    decision = decided(
        measured("baseline", 92.4, band=low, rounds=1),
        measured("eagle3", 122.0, band=low, rounds=1),
        measured("baseline", 2222.6, band=high, rounds=1),
        measured("eagle3", 2245.8, band=high, rounds=1),
        rules=EvidenceRules(min_rounds=1, min_requests=1),
    )
    by_band = {band.band: band for band in decision.bands}
    assert by_band[low].choice == Method("eagle3")
    assert by_band[high].choice == Method("baseline")
    assert by_band[high].comparisons[0].verdict == "tie"
    assert (by_band[high].comparisons[0].ratio or 0) == pytest.approx(1.0104, abs=1e-4)
    assert any("adaptive" in line for line in decision.missing)


@pytest.mark.parametrize(
    ("speeds", "words"), [((88.0, 103.0), "not told apart"), ((101.0, 101.8), "less than the 3 %")]
)
def test_a_tie_says_why_it_is_one(speeds: tuple[float, float], words: str) -> None:
    low = Band(1)
    decision = decided(
        measured("baseline", 97.0, band=low), measured("baseline", 103.0, band=low),
        *(measured("eagle3", speed, band=low) for speed in speeds),
    )  # fmt: skip
    comparison = decision.bands[0].comparisons[0]
    assert comparison.verdict == "tie"
    assert words in comparison.reason
    if (comparison.ratio or 1) < 1:  # a loss is never "less than the gain that counts"
        assert "that counts" not in comparison.reason


def test_published_numbers_alone_never_switch_on() -> None:
    # The same numbers under the standing rules: one round each is no evidence.
    decision = decided(measured("baseline", 92.4, rounds=1), measured("eagle3", 122.0, rounds=1))
    assert decision.choice == Method("baseline")
    assert decision.bands[0].comparisons[0].verdict == "not enough evidence"
    assert any("1 of 2 rounds" in line for line in decision.missing)
    assert as_dict(decision)["choice"] == {"profile": "baseline", "levers": []}
