"""A campaign's state as text for people."""

from __future__ import annotations

from deploy_kit.campaign.model import CampaignState, LeverResult
from deploy_kit.campaign.outlook import Estimate, estimate


def describe(state: CampaignState) -> str:
    """Given a state, return it as text: the question, each lever with its effect, what to do."""
    lines = []
    if state.stand_in:
        lines.append(f"STAND-IN ENGINE ({state.stand_in}): says nothing about an engine")
    elif state.rehearsal:
        lines.append("REHEARSAL: made with the rehearsal engine; says nothing about real hardware")
    profile = "+".join((state.campaign.base.profile, *state.campaign.base.levers))
    lines += [
        f"campaign  {state.campaign.name} ({state.campaign_id}): {state.campaign.question}",
        f"base      {profile} on {state.host}, model {state.model}, plan {state.base_plan_id}",
        f"cells     {len(state.cells)} over"
        + (f", cut off and taken up again {state.resumed} times" if state.resumed else ""),
        "",
        *_table(state),
    ]
    results = [*state.levers, *([state.combined] if state.combined else [])]
    causes = [line for result in results for line in _cause(result)]
    if causes:
        lines += ["", "not measured", *causes]
    lines += [
        "",
        state.conclusion
        if state.finished
        else f"not finished: {_left(state)}; run the same command to go on",
    ]
    return "\n".join(lines)


def _left(state: CampaignState) -> str:
    left = estimate(state)
    about = "" if left.seconds is None else f", about {duration(left.seconds)}"
    return f"at most {left.cells} cells left{about}"


def _table(state: CampaignState) -> list[str]:
    percent = f"{state.campaign.schedule.confidence * 100:g} %"
    rows: list[tuple[str, ...]] = [
        ("lever", "outcome", "tokens/s", f"({percent})", "claimed a cycle", "measured a cycle", "verdict")
    ]
    results = [*state.levers, *([state.combined] if state.combined else [])]
    rows.extend(_row(result) for result in results)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _row(result: LeverResult) -> tuple[str, ...]:
    effect = result.effect("tokens_per_second")
    interval = "" if effect is None or effect.interval is None else _range(effect.interval)
    name = result.name if result.levers == [result.name] else f"{result.name}: {' + '.join(result.levers)}"
    return (
        name,
        result.outcome,
        "" if effect is None else f"{(effect.ratio - 1) * 100:+.1f} %",
        interval,
        claimed(result),
        measured(result),
        result.verdict if result.outcome == "done" else "",
    )


def claimed(result: LeverResult) -> str:
    """Return what is claimed that the lever saves of a cycle."""
    saving = result.claimed_cycle_saving_ms
    if saving is None:
        return result.claimed or "unknown"
    low, high = saving
    return f"{low:g} ms" if low == high else f"{low:g} to {high:g} ms"


def measured(result: LeverResult) -> str:
    """Return what was measured that the lever saves of a cycle."""
    if result.measured_cycle_saving_ms is None:
        return "unknown"
    text = f"{result.measured_cycle_saving_ms:.2f} ms"
    interval = result.measured_cycle_saving_interval_ms
    return text if interval is None else f"{text} ({interval[0]:.2f} to {interval[1]:.2f})"


def _range(interval: tuple[float, float]) -> str:
    low, high = ((edge - 1) * 100 for edge in interval)
    return f"{low:+.1f} to {high:+.1f}"


def _cause(result: LeverResult) -> list[str]:
    lines = []
    if result.outcome in ("failed", "refused-by-probe"):
        where = f" [{result.cause_id}]" if result.cause_id else ""
        lines.append(f"  - {result.name}: {result.cause or 'unknown'}{where}")
        if result.remedy:
            lines.append(f"    remedy: {result.remedy}")
    elif result.probe is not None and result.probe.passed is None:
        lines.append(f"  - {result.name}: its probe could not find out: {result.probe.cause}")
    return lines


def describe_plan(state: CampaignState, left: Estimate) -> str:
    """Given a state and the estimate of the rest, return what a run would do."""
    schedule = state.campaign.schedule
    lines = [
        f"campaign  {state.campaign.name} ({state.campaign_id}): {state.campaign.question}",
        f"base      {state.campaign.base.profile} on {state.host}, plan {state.base_plan_id}",
        f"each      {schedule.repeats} times base and lever in turns, a start of the engine for each",
        "",
    ]
    for result in state.levers:
        if result.outcome == "refused-by-probe":
            lines.append(f"  {result.name}: never loaded: {result.cause}")
        else:
            done = f" ({result.outcome})" if result.outcome != "pending" else ""
            lines.append(f"  {result.name}: plan {result.plan_id}, claimed {claimed(result)}{done}")
    lines += ["", f"left      {time_text(left)}"]
    return "\n".join(lines)


def time_text(left: Estimate) -> str:
    """Given an estimate, return it in words."""
    if left.cells == 0:
        return "nothing"
    if left.seconds is None:
        return f"up to {left.cells} cells, time unknown ({left.why})"
    return f"about {duration(left.seconds)} at most: {left.why}"


def duration(seconds: float) -> str:
    """Given seconds, return "45 s", "12 min" or "6.5 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
