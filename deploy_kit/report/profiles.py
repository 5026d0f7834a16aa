"""The decision's part of a report: effects of profiles, cycles, break-even, the sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deploy_kit.decision.choose import BandChoice, Comparison, Decision
from deploy_kit.decision.describe import margin, percent
from deploy_kit.decision.evidence import Band, Cell, Method
from deploy_kit.report.charts import (
    NARROW,
    WIDE,
    BreakEven,
    Cycle,
    Effect,
    Series,
    anatomy,
    break_even,
    forest_plot,
)
from deploy_kit.report.content import Block, Figure, FigureRow, Paragraph, Section, bullets, section, table

_OUTCOMES = {
    "faster": "faster",
    "slower": "slower",
    "tie": "no measurable effect",
    "not enough evidence": "not enough evidence",
}


def answer(decision: Decision) -> tuple[str, str]:
    """Return the decision in a line, and the reason with the margin."""
    if decision.ratio is None:
        return "Undecided: stay with the baseline until it is measured.", _sentence(decision.reason)
    if not decision.choice.speculates:
        return "Run the baseline.", _sentence(decision.reason)
    return f"Run {decision.choice.label}: {margin(decision)} tokens/s.", _sentence(decision.reason)


def question(decision: Decision) -> str:
    """Return what the receipts were made to find out."""
    evidence = decision.evidence
    profiles = ", ".join(method.label for method in evidence.methods)
    loads = "; ".join(
        f"{band.label} ({share * 100:.0f} %)" for band, share in sorted(decision.traffic.items())
    )
    return (
        f"Which of {profiles} should serve {evidence.model or 'the model'} on "
        f"{evidence.host or 'this host'}, when the time is spent at: {loads or 'no known load'}?"
    )


def decision_section(decision: Decision) -> Section | None:
    """Return the sum to check by hand, the table of all loads, and what is open."""
    rows: list[tuple[str, ...]] = []
    for band in decision.bands:
        rows += _rows(band, decision)
    return section(
        "Decision, and its sum",
        Paragraph(f"{decision.sum_line}.", strong=True),
        Paragraph(
            "To check by hand: tokens/s of one stream = accept length / cycle time; break-even accept length "
            "= cycle time x the baseline's tokens/s of one stream. The measured total tokens/s decides, the "
            "sum explains it."
        ),
        table(
            "Every load and profile; ▸ marks what to run there",
            ("load", "share", "profile", "tok/s", "per stream", "accept", "cycle", "break-even", "verdict"),
            rows,
        ),
        *_titled("What would change the answer", decision.would_change),
        *_titled("To look at", decision.flags),
        *_titled("Not measured", decision.missing),
        *_titled("Estimates, only to rank what to measure next", decision.estimates),
        *_titled("Set aside", decision.evidence.set_aside),
    )


def tried_figure(decision: Decision) -> Figure | None:
    """Return each profile's effect against the baseline under each load."""
    effects: list[Effect] = []
    rows: list[tuple[str, ...]] = []
    for band in decision.bands:
        for comparison in band.comparisons:
            effect = _effect(comparison, decision)
            effects.append(effect)
            interval = "unknown" if comparison.interval is None else _interval_text(comparison.interval)
            ratio = "unknown" if comparison.ratio is None else f"{(comparison.ratio - 1) * 100:+.1f} %"
            rows.append(
                (band.band.label, comparison.method.label, ratio, interval, effect.outcome, comparison.reason)
            )
    if not effects:
        return None
    confidence = f"{decision.rules.confidence * 100:g} %"
    even = decision.rules.min_gain_ratio
    return Figure(
        f"Profiles against the baseline: total tokens/s, with {confidence} intervals. "
        f"In the grey band (±{even * 100:g} %) there is no measurable effect.",
        forest_plot(effects, width=WIDE, even_ratio=even),
        forest_plot(effects, width=NARROW, even_ratio=even),
        table(
            "Effect of each profile on total tokens/s",
            ("load", "profile", "effect", f"{confidence} interval", "outcome", "why"),
            rows,
        ),
    )


def cycles_of(decision: Decision) -> list[Cycle]:
    """Return the baseline's step and every profile's cycle, load by load."""
    found: list[Cycle] = []
    for band in decision.bands:
        plain = None if band.baseline is None else band.baseline.mean("stream_speed")
        if band.baseline is not None and plain:
            label = f"{band.band.label} · {band.baseline.method.label}"
            found.append(Cycle(label, (("decode", 1 / plain),)))
        for comparison in sorted(band.comparisons, key=lambda c: c.method):
            cycle = parts_of(comparison.cycle_seconds, comparison.draft_seconds, comparison.verify_seconds)
            if cycle:
                found.append(Cycle(f"{band.band.label} · {comparison.method.label}", cycle))
    return found


def parts_of(cycle: float | None, draft: float | None, verify: float | None) -> tuple[tuple[str, float], ...]:
    """Given a cycle and what is known of it in seconds, return its parts; they sum to the cycle when it is
    known. Nothing is invented: what cannot be told apart is one part."""
    if cycle is None:
        known = (("draft", draft), ("verify", verify))
        return tuple((name, value) for name, value in known if value)
    if verify is None:
        return (("other", cycle),)
    if draft is None:
        return (("verify", verify), ("other", max(cycle - verify, 0.0)))
    return (("draft", draft), ("verify", verify), ("gap", max(cycle - verify - draft, 0.0)))


def anatomy_figure(cycles: Sequence[Cycle], caption: str) -> Figure | None:
    """Return the stacked bars of cycles and their table."""
    if not cycles:
        return None
    named = {
        "draft": "draft",
        "verify": "verify",
        "gap": "gaps and waits",
        "other": "not told apart",
        "decode": "decode step",
    }
    names = [name for name in named if any(name == part for cycle in cycles for part, _ in cycle.parts)]
    rows = []
    for cycle in cycles:
        parts = dict(cycle.parts)
        cells = [f"{parts[name] * 1000:.2f} ms" if name in parts else "-" for name in names]
        rows.append((cycle.label, *cells, f"{cycle.seconds * 1000:.2f} ms"))
    headers = ("load and profile", *(named[name] for name in names), "whole")
    return Figure(
        caption,
        anatomy(cycles, width=WIDE),
        anatomy(cycles, width=NARROW),
        table("Cycles in milliseconds, means over rounds", headers, rows),
    )


def break_even_row(
    decision: Decision | None, extra: Mapping[str, Sequence[Series]] | None = None
) -> FigureRow | None:
    """Return one chart for each load with every measured round; `extra` adds a campaign's cells, which have
    no context band."""
    extra = dict(extra or {})
    loads: list[BreakEven] = []
    rows: list[tuple[str, ...]] = []
    for band in [] if decision is None else decision.bands:
        plain = None if band.baseline is None else band.baseline.mean("stream_speed")
        series = _series(decision, band.band)
        if plain or series:
            loads.append(BreakEven(band.band.label, tuple(series), plain))
    loads += [
        BreakEven(
            label,
            tuple(series),
            None,
            "The baseline is not measured under this load: no break-even line.",
        )
        for label, series in extra.items()
        if series
    ]
    for load in loads:
        plain = load.baseline_tokens_per_second
        for one in load.series:
            for index, (cycle, accept) in enumerate(one.points, start=1):
                needed = f"{cycle * plain:.2f}" if plain else "unknown"
                rows.append(
                    (
                        load.label,
                        one.label,
                        str(index),
                        f"{accept:.2f}",
                        f"{cycle * 1000:.2f} ms",
                        needed,
                        f"{accept / cycle:.1f}",
                    )
                )
    order = list(dict.fromkeys(one.label for load in loads for one in load.series))
    headers = ("load", "profile", "round", "accept length", "cycle", "break-even", "tok/s by the sum")
    points = table("Every measured round: tok/s of one stream = accept length / cycle", headers, rows)
    if points is None:
        return None
    return FigureRow(
        "Accept length against cycle time, one chart for each load. On a thin dashed line every point has "
        "the tokens/s written at its end; the thick line is the baseline's own speed. Above it a profile "
        "pays, in the grey below it does not.",
        tuple(break_even(load, shapes_of=order) for load in loads),
        points,
    )


def _series(decision: Decision | None, band: Band) -> list[Series]:
    if decision is None:
        return []
    found = []
    for (method, where), cell in sorted(decision.evidence.cells.items(), key=lambda entry: entry[0]):
        points = _points(method, cell)
        if where == band and points:
            found.append(Series(method.label, points))
    return found


def _points(method: Method, cell: Cell) -> tuple[tuple[float, float], ...]:
    if not method.speculates:
        return ()
    return tuple(
        (round_.cycle_seconds, round_.accept_length)
        for round_ in cell.rounds
        if round_.cycle_seconds and round_.accept_length
    )


def _effect(comparison: Comparison, decision: Decision) -> Effect:
    label = f"{comparison.method.label} · {comparison.band.label}"
    outcome = _OUTCOMES[comparison.verdict]
    if comparison.ratio is None:
        return Effect(label, outcome, comparison.reason)
    text = f"{percent(comparison.ratio, comparison.interval, decision.rules.confidence)} {outcome}"
    return Effect(label, outcome, text, comparison.ratio, comparison.interval)


def _rows(band: BandChoice, decision: Decision) -> list[tuple[str, ...]]:
    share = f"{decision.traffic.get(band.band, 0.0) * 100:.0f} %"
    rows: list[tuple[str, ...]] = []
    plain = band.baseline
    if plain is None:
        rows.append((band.band.label, share, "baseline", *["not measured"] * 2, *["-"] * 3, band.reason))
    else:
        stream = plain.mean("stream_speed") or 0.0
        rows.append(
            (
                band.band.label,
                share,
                _marked(plain.method.label, chosen=not band.choice.speculates),
                f"{plain.mean('tokens_per_second') or 0.0:.1f}",
                f"{stream:.1f}",
                "1",
                f"{1000 / stream:.2f} ms" if stream else "unknown",
                "-",
                band.reason if not band.choice.speculates else "",
            )
        )
    rows.extend(
        (
            band.band.label,
            share,
            _marked(c.method.label, chosen=c.method == band.choice),
            f"{c.tokens_per_second:.1f}",
            f"{c.stream_tokens_per_second:.1f}",
            "unknown" if c.accept_length is None else f"{c.accept_length:.2f}",
            "unknown" if c.cycle_seconds is None else f"{c.cycle_seconds * 1000:.2f} ms",
            "unknown" if c.break_even_accept_length is None else f"{c.break_even_accept_length:.2f}",
            f"{c.verdict}: {c.reason}",
        )
        for c in band.comparisons
    )
    return rows


def _titled(title: str, entries: Sequence[str]) -> list[Block]:
    found = bullets(entries)
    return [] if found is None else [Paragraph(f"{title}:"), found]


def _interval_text(interval: tuple[float, float]) -> str:
    low, high = ((edge - 1) * 100 for edge in interval)
    return f"{low:+.1f} to {high:+.1f} %" if abs(high) < 1000 else f"{low:+.1f} % to very large"


def _marked(label: str, *, chosen: bool) -> str:
    return f"▸ {label}" if chosen else label


def _sentence(text: str) -> str:
    return text + ("" if text.endswith(".") else ".")
