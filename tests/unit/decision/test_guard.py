"""The guard over simulated months of traffic: it notices, waits for quiet, acts once, and never flaps."""

from __future__ import annotations

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from deploy_kit.decision.guard import Action, Guard, GuardRules, Look

MINUTE, DAY = 60.0, 86400.0


def month(
    ratio_of_day: list[float], *, noise: float, seed: int = 3, night_is_quiet: bool = True
) -> list[Look]:
    """A look a minute for 30 days: busy by day, idle at night (nothing is verified then)."""
    draw = random.Random(seed)
    looks = []
    for minute in range(30 * 24 * 60):
        at = minute * MINUTE
        hour = at % DAY / 3600
        busy = 8 + 7 * math.sin((hour - 9) / 24 * 2 * math.pi)
        running = 0.0 if night_is_quiet and (hour < 4 or draw.random() < 0.05) else float(max(1, round(busy)))
        ratio = ratio_of_day[int(at // DAY)] + draw.gauss(0, noise) if running else None
        looks.append(Look(at, ratio, running))
    return looks


def actions(guard: Guard, looks: list[Look]) -> list[tuple[float, Action]]:
    return [(look.at_seconds, action) for look in looks if (action := guard.see(look)) != "none"]


def test_a_month_of_winning_is_silent() -> None:
    assert actions(Guard(GuardRules(may_redeploy=True)), month([1.4] * 30, noise=0.3)) == []


def test_a_month_at_break_even_is_silent_and_a_little_below_does_not_flap() -> None:
    assert actions(Guard(GuardRules(may_redeploy=True)), month([1.0] * 30, noise=0.05)) == []
    below = [action for _, action in actions(Guard(), month([0.98] * 30, noise=0.05))]
    assert below in ([], ["alert"])


def test_losing_from_day_ten_is_told_in_time_and_acted_on_once_when_quiet() -> None:
    looks = month([1.3] * 10 + [0.8] * 20, noise=0.1)
    found = actions(Guard(GuardRules(may_redeploy=True)), looks)
    assert [action for _, action in found] == ["alert", "redeploy"]
    (told, _), (acted, _) = found
    assert 10 * DAY < told < 10 * DAY + 6 * 3600
    by_time = {look.at_seconds: look for look in looks}
    assert all(by_time[acted - step * MINUTE].running == 0 for step in range(3))


def test_without_leave_it_only_tells() -> None:
    found = actions(Guard(), month([0.8] * 15 + [1.3] * 15, noise=0.1))
    assert [action for _, action in found] == ["alert", "recovered"]


def test_it_never_acts_while_requests_run() -> None:
    looks = month([0.8] * 30, noise=0.1, night_is_quiet=False)
    assert [action for _, action in actions(Guard(GuardRules(may_redeploy=True)), looks)] == ["alert"]


def test_alternating_days_change_it_once_a_day_at_most() -> None:
    found = actions(Guard(), month([1.3, 0.8] * 15, noise=0.1))
    assert len(found) <= 30
    assert [a for _, a in found] == ["alert", "recovered"] * (len(found) // 2) + ["alert"] * (len(found) % 2)


def test_drifting_traffic_at_break_even_does_not_flap() -> None:
    """Neighbouring looks err alike here: means over ten minutes of noise, a look a minute."""
    draw = random.Random(5)
    errors = [draw.gauss(0, 0.05) for _ in range(10)]
    guard, found = Guard(), []
    for minute in range(30 * 24 * 60):
        errors = [*errors[1:], draw.gauss(0, 0.05)]
        found.append(guard.see(Look(minute * MINUTE, 1.0 + sum(errors) / 10**0.5 / 2, 5.0)))
    assert len([action for action in found if action != "none"]) <= 2


def test_few_samples_and_dead_engines_say_nothing() -> None:
    guard = Guard(GuardRules(may_redeploy=True))
    assert actions(guard, [Look(i * 600.0, 0.5, 0.0) for i in range(500)]) == []
    guard = Guard(GuardRules(may_redeploy=True))
    dead = [Look(i * MINUTE, None, None) for i in range(600)]
    assert actions(guard, [Look(i * MINUTE - 3600, 0.5, 3.0) for i in range(60)] + dead) == [
        (-1560.0, "alert")
    ]


@settings(max_examples=60, deadline=None)
@given(
    ratios=st.lists(st.none() | st.floats(0, 5), min_size=1, max_size=200),
    running=st.lists(st.none() | st.floats(0, 3), min_size=1, max_size=20),
)
def test_whatever_comes_it_acts_at_most_once_and_only_after_an_alert(
    ratios: list[float | None], running: list[float | None]
) -> None:
    guard = Guard(GuardRules(window_seconds=600, min_samples=3, may_redeploy=True))
    looks = [Look(i * MINUTE, ratio, running[i % len(running)]) for i, ratio in enumerate(ratios)]
    found = [action for _, action in actions(guard, looks)]
    assert found.count("redeploy") <= 1
    told = [action for action in found if action != "redeploy"]
    assert told == (["alert", "recovered"] * len(told))[: len(told)]
    if "redeploy" in found:
        assert found[-2:] == ["alert", "redeploy"]
