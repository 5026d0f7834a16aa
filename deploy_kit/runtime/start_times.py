"""The times of this plan's starts and how they ended: what earlier ones let expect, and keeping them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from deploy_kit.errors import DeployKitError
from deploy_kit.plan.model import Plan
from deploy_kit.startup.exits import keep_exits, read_exits
from deploy_kit.startup.history import Expectation, Start, add_start, expect, read_starts
from deploy_kit.startup.status import PHASES


def expect_start(plan: Plan, folder: Path | None, say: Callable[[str], None]) -> Expectation | None:
    """Given the folder of earlier starts' times, return what to expect; None when nothing is known."""
    if folder is None:
        return None
    try:
        starts = read_starts(folder)
    except DeployKitError as error:
        say(f"earlier starts cannot be read: {error.summary}")
        return None
    return expect(starts, plan_id=plan.plan_id, profile=plan.profile, model=plan.model, host=plan.host)


def keep_start(
    plan: Plan,
    folder: Path | None,
    say: Callable[[str], None],
    *,
    ready_at_seconds: float,
    ready_seconds: float,
    phase_seconds: Mapping[str, float],
) -> None:
    """Add a start that became ready to the history; that it cannot be written is said, and nothing more."""
    if folder is None:
        return
    before_ready = PHASES[: PHASES.index("ready")]
    start = Start(
        at_seconds=ready_at_seconds,
        plan_id=plan.plan_id,
        profile=plan.profile,
        model=plan.model,
        host=plan.host,
        ready_seconds=round(ready_seconds, 2),
        phase_seconds={
            phase: round(phase_seconds[phase], 2) for phase in before_ready if phase in phase_seconds
        },
    )
    try:
        add_start(folder, start)
    except DeployKitError as error:
        say(f"this start's times are not kept: {error.summary}")


def earlier_exits(folder: Path | None, say: Callable[[str], None]) -> dict[str, int]:
    """Return how earlier engines ended, by cause id; empty when nothing is known."""
    if folder is None:
        return {}
    try:
        return read_exits(folder)
    except DeployKitError as error:
        say(f"earlier ends cannot be read: {error.summary}")
        return {}


def keep_exit(folder: Path | None, exits: Mapping[str, int], say: Callable[[str], None]) -> None:
    """Keep how engines ended; that it cannot be written is said, and nothing more."""
    if folder is None:
        return
    try:
        keep_exits(folder, exits)
    except DeployKitError as error:
        say(f"how it ended is not kept: {error.summary}")
