"""How long a campaign still takes, and what it found."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from deploy_kit.campaign.model import COMBINED, SIDES, CampaignState


@dataclass(frozen=True)
class Estimate:
    """How long what is left takes. `cells` counts the winners' run as if there will be one."""

    cells: int
    seconds: float | None
    why: str  # what the seconds rest on, or why they are not known
    cell_seconds: float | None = None  # of one cell: a start and its measuring


def estimate(state: CampaignState) -> Estimate:
    """Given a state, return how long the rest takes: from what its own cells took, else from the schedule."""
    schedule = state.campaign.schedule
    whole = len(SIDES) * schedule.repeats
    cells = sum(
        whole - sum(1 for cell in state.cells if cell.step == result.name)
        for result in state.levers
        if result.outcome == "pending"
    )
    open_levers = sum(1 for r in state.levers if r.outcome == "pending" or r.verdict == "helps")
    if state.combined is not None and state.combined.outcome == "pending":
        cells += whole - sum(1 for cell in state.cells if cell.step == COMBINED)
    elif state.combined is None and not state.finished and open_levers > 1:
        cells += whole
    starts = [cell.start_seconds for cell in state.cells if cell.start_seconds is not None]
    benches = [cell.bench_seconds for cell in state.cells if cell.bench_seconds is not None]
    start = statistics.median(starts) if starts else schedule.expected_start_seconds
    run = statistics.median(benches) if benches else schedule.expected_bench_seconds
    if start is None or run is None:
        missing = "expected_start_seconds" if start is None else "expected_bench_seconds"
        return Estimate(cells, None, f"no cell was measured yet, and the schedule has no {missing}")
    return Estimate(
        cells,
        cells * (start + run),
        f"{start:.0f} s a start ({'measured' if starts else 'given'}) and "
        f"{run:.0f} s of measuring ({'measured' if benches else 'given'}) for each of {cells} cells",
        start + run,
    )


def conclusion(state: CampaignState) -> str:
    """Given a state with nothing left to do, return what was found in one sentence."""
    if not state.winners:
        tried = sum(1 for result in state.levers if result.outcome == "done")
        untold = [
            result.name for result in state.levers if result.verdict == "unknown" and result.outcome == "done"
        ]
        rest = f"; too uncertain to tell: {', '.join(untold)}" if untold else ""
        return f"no lever is known to help: {tried} of {len(state.levers)} were measured{rest}"
    if state.combined is None:
        best = next(result for result in state.levers if result.name == state.winners[0])
        only = (
            "it alone helps"
            if len(state.winners) == 1
            else "the strongest that can run; the others exclude it"
        )
        return f"use {best.name}: {best.reason} ({only})"
    combined = state.combined
    names = " + ".join(combined.levers)
    if combined.outcome == "done" and combined.verdict == "helps":
        return f"use {names} together: {combined.reason}"
    best = next(result for result in state.levers if result.name == state.winners[0])
    return f"use {best.name}: {best.reason}; together, {names}: {combined.verdict}, {combined.reason}"
