"""A campaign's part of a report: what each lever did, crashed or was refused for, before and after."""

from __future__ import annotations

from collections.abc import Sequence

from deploy_kit.campaign.model import COMBINED, LEVER_OFF, CampaignState, Effect, LeverResult
from deploy_kit.report import charts
from deploy_kit.report.charts import NARROW, WIDE, Cycle, Series, forest_plot
from deploy_kit.report.content import Code, Figure, Paragraph, Section, section, table
from deploy_kit.report.profiles import anatomy_figure, parts_of

_VERDICTS = {
    "helps": "faster",
    "hurts": "slower",
    "no measurable effect": "no measurable effect",
    "not accepted": "failed",
    "unknown": "not enough evidence",
}


def lever_section(state: CampaignState) -> Section | None:
    """Return what was tried in a campaign, with what effect, and what ended otherwise."""
    return section(
        f"Levers tried: campaign {state.campaign.name}",
        Paragraph(state.campaign.question),
        Paragraph(_progress(state), strong=True),
        _figure(state),
        table(
            "Every lever: claimed, measured, and why it ended as it did",
            ("lever", "outcome", "effect on tok/s", "cycle saved", "claimed", "cause", "what to do"),
            [_row(result, state) for result in _results(state)],
        ),
        anatomy_figure(
            _before_and_after(state), "Verify anatomy: one cycle on the base, and with each lever"
        ),
    )


def series_of(state: CampaignState) -> dict[str, list[Series]]:
    """Return every measured cell as a point, by load: the base's and each lever's."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for cell in state.cells:
        for measure in cell.measures:
            if measure.cycle_seconds and measure.accept_length:
                label = "+".join((state.campaign.base.profile, *sorted(cell.levers)))
                place = found.setdefault(f"C={measure.concurrency}, campaign", {})
                place.setdefault(label, []).append((measure.cycle_seconds, measure.accept_length))
    return {
        load: [Series(label, tuple(points)) for label, points in sorted(by_label.items())]
        for load, by_label in sorted(found.items())
    }


def commands(state: CampaignState) -> Code:
    """Return how to run the campaign again, and each lever's plan by hand."""
    base = state.campaign.base
    named = [
        *(["--host", base.host] if base.host else []),
        *(["--model", base.model] if base.model else []),
        *(["--stack", base.stack] if base.stack else []),
        *(word for lever in base.levers for word in ("--lever", lever)),
    ]
    plan = " ".join(["deploy-kit plan", base.profile, *named])
    lines = [
        f"deploy-kit campaign CAMPAIGN.toml    # the campaign {state.campaign.name}, id {state.campaign_id}",
        f"{plan}    # the base, plan {state.base_plan_id}",
    ]
    for result in _results(state):
        levers = " ".join(f"--lever {lever}" for lever in result.levers)
        lines.append(f"{plan} {levers}    # plan {result.plan_id or 'unknown'}")
    return Code(tuple(lines))


def facts(state: CampaignState) -> dict[str, object]:
    """Return the campaign's result for `--json`."""
    return {
        "name": state.campaign.name,
        "campaign_id": state.campaign_id,
        "finished": state.finished,
        "winners": state.winners,
        "conclusion": state.conclusion,
        "levers": {
            result.name: {"outcome": result.outcome, "verdict": result.verdict, "cause": result.cause}
            for result in _results(state)
        },
    }


def _progress(state: CampaignState) -> str:
    if state.finished:
        return state.conclusion or "Finished."
    done = sum(result.outcome != "pending" for result in state.levers)
    return f"Not finished: {done} of {len(state.levers)} levers are known. What follows may change."


def _results(state: CampaignState) -> list[LeverResult]:
    return [*state.levers, *([state.combined] if state.combined is not None else [])]


def _figure(state: CampaignState) -> Figure | None:
    effects = [effect for result in _results(state) for effect in _effects(result, state)]
    if not effects:
        return None
    even = state.campaign.schedule.min_effect_ratio
    confidence = state.campaign.schedule.confidence * 100
    rows = [
        (
            effect.label,
            "-" if effect.ratio is None else f"{(effect.ratio - 1) * 100:+.1f} %",
            "-" if effect.interval is None else _between(effect.interval),
            effect.outcome,
        )
        for effect in effects
    ]
    return Figure(
        f"Each lever against the base, in turns: total tokens/s, with {confidence:g} % intervals. "
        f"In the grey band (±{even * 100:g} %) there is no effect worth a lever.",
        forest_plot(effects, width=WIDE, even_ratio=even),
        forest_plot(effects, width=NARROW, even_ratio=even),
        table(
            "Effect of each lever on total tokens/s",
            ("lever", "effect", f"{confidence:g} % interval", "outcome"),
            rows,
        ),
    )


def _effects(result: LeverResult, state: CampaignState) -> list[charts.Effect]:
    name = result.name if result.name != COMBINED else f"all winners together ({', '.join(result.levers)})"
    if result.outcome == "failed":
        return [charts.Effect(name, "failed", f"{_failure(result)}: {result.cause or 'cause unknown'}")]
    if result.outcome == "refused-by-probe":
        return [
            charts.Effect(name, "refused", f"refused by probe, never loaded: {result.cause or 'no cause'}")
        ]
    if result.outcome == "pending":
        return [charts.Effect(name, "not enough evidence", "not tried yet")]
    outcome = _VERDICTS[result.verdict]
    found = [effect for effect in result.effects if effect.metric == "tokens_per_second"]
    if not found:
        return [charts.Effect(name, outcome, result.reason or "tokens/s not measured")]
    single = [effect for effect in found if effect.concurrency is not None]
    return [
        charts.Effect(
            f"{name} · {_load(effect)}",
            outcome if outcome != "failed" else "failed",
            f"{_percent(effect, state)} {result.verdict}"
            + (f": {result.reason}" if result.verdict == "not accepted" and result.reason else ""),
            effect.ratio,
            effect.interval,
        )
        for effect in ([e for e in found if e.concurrency is None] or single)
    ]


def _failure(result: LeverResult) -> str:
    return "left off by the engine" if result.cause_id == LEVER_OFF else "crashed or hung"


def _row(result: LeverResult, state: CampaignState) -> tuple[str, ...]:
    overall = result.effect("tokens_per_second")
    saving = result.measured_cycle_saving_ms
    spread = result.measured_cycle_saving_interval_ms
    saved = "unknown" if saving is None else f"{saving:+.2f} ms"
    if spread is not None:
        saved += f" ({spread[0]:+.2f} to {spread[1]:+.2f})"
    claim = result.claimed_cycle_saving_ms
    claimed = result.claimed or ("-" if claim is None else f"{claim[0]:g} to {claim[1]:g} ms a cycle")
    outcome = {
        "failed": _failure(result),
        "refused-by-probe": "refused by probe",
        "pending": "not tried yet",
    }
    return (
        " + ".join(result.levers) or result.name,
        outcome.get(result.outcome, result.verdict),
        "unknown" if overall is None else _percent(overall, state),
        saved,
        claimed + (f" ({result.claimed_by})" if result.claimed_by else ""),
        result.cause or result.reason or "-",
        result.remedy or "-",
    )


def _before_and_after(state: CampaignState) -> list[Cycle]:
    found: list[Cycle] = []
    loads = sorted({measure.concurrency for cell in state.cells for measure in cell.measures})
    for load in loads:
        for side, step, label in (
            ("base", None, "base"),
            *(("lever", result.name, " + ".join(result.levers)) for result in _results(state)),
        ):
            measures = [
                measure
                for cell in state.cells
                if cell.side == side and step in (None, cell.step)
                for measure in cell.measures
                if measure.concurrency == load
            ]
            means = {
                name: _mean([getattr(measure, name) for measure in measures])
                for name in ("cycle_seconds", "draft_seconds", "verify_seconds")
            }
            parts = parts_of(means["cycle_seconds"], means["draft_seconds"], means["verify_seconds"])
            if parts:
                found.append(Cycle(f"C={load} · {label}", parts))
    return found


def _percent(effect: Effect, state: CampaignState) -> str:
    text = f"{(effect.ratio - 1) * 100:+.1f} %"
    if effect.interval is None:
        return f"{text} (one pair: spread unknown)"
    return f"{text} ({state.campaign.schedule.confidence * 100:g} %: {_between(effect.interval, unit='')})"


def _between(interval: tuple[float, float], unit: str = " %") -> str:
    low, high = ((edge - 1) * 100 for edge in interval)
    return f"{low:+.1f} to {high:+.1f}{unit}" if high < 1000 else f"{low:+.1f}{unit} to very large"


def _load(effect: Effect) -> str:
    return "all loads" if effect.concurrency is None else f"C={effect.concurrency}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
