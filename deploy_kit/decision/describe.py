"""A decision as text for people, and as plain values for `--json`."""

from __future__ import annotations

from typing import Any

from deploy_kit.decision.choose import BandChoice, Comparison, Decision


def describe(decision: Decision) -> str:
    """Given a decision, return it as text: the choice, its margin, the sum, the table, what is missing."""
    evidence = decision.evidence
    lines = []
    if evidence.rehearsal:
        lines.append("REHEARSAL: made with the rehearsal engine; says nothing about real hardware")
    lines += [
        f"choice    {decision.choice.label}",
        f"margin    {margin(decision)}",
        f"why       {decision.reason}",
        f"sum       {decision.sum_line}",
        f"where     host {evidence.host or 'unknown'}, model {evidence.model or 'unknown'}"
        + "".join(f", {name} {version}" for name, version in sorted(evidence.versions.items())),
        "",
        *_table(decision),
    ]
    for title, entries in (
        ("look at", decision.flags),
        ("what would change the answer", decision.would_change),
        ("missing measurements", decision.missing),
        ("estimates, only to rank what to measure next", decision.estimates),
        ("set aside", evidence.set_aside),
    ):
        if entries:
            lines += ["", title, *(f"  - {entry}" for entry in entries)]
    return "\n".join(lines)


def margin(decision: Decision) -> str:
    """Given a decision, return its margin over the baseline with its confidence interval, in words."""
    if decision.ratio is None:
        return "unknown (the baseline is not measured)"
    if not decision.choice.speculates:
        return "none: this is the baseline"
    return percent(decision.ratio, decision.interval, decision.rules.confidence)


def percent(ratio: float, interval: tuple[float, float] | None, confidence: float) -> str:
    """Return "+62.2 % (95 %: +58.1 to +66.4)", or that the spread is unknown."""
    text = f"{(ratio - 1) * 100:+.1f} %"
    if interval is None:
        return f"{text} (one round: spread unknown)"
    low, high = ((edge - 1) * 100 for edge in interval)
    return f"{text} ({confidence * 100:g} %: {_edge(low)} to {_edge(high)})"


def _edge(value: float) -> str:
    return f"{value:+.1f}" if abs(value) < 1000 else f"{value:+.0e}"


def _table(decision: Decision) -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("load", "method", "tok/s", "per stream", "accept", "cycle", "break-even", "against baseline")
    ]
    for band in decision.bands:
        rows.extend(_rows(band, decision.rules.confidence))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _rows(band: BandChoice, confidence: float) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    if band.baseline is not None:
        total = band.baseline.mean("tokens_per_second") or 0.0
        stream = band.baseline.mean("stream_speed") or 0.0
        label = band.baseline.method.label
        rows.append(
            (
                band.band.label,
                _marked(label, chosen=not band.choice.speculates),
                f"{total:.1f}",
                f"{stream:.1f}",
                "1",
                f"{1000 / stream:.1f} ms" if stream else "unknown",
                "-",
                band.reason if not band.choice.speculates else "",
            )
        )
    rows.extend(_row(band, comparison, confidence) for comparison in band.comparisons)
    if not rows:
        rows.append((band.band.label, "nothing measured", "", "", "", "", "", ""))
    return rows


def _row(band: BandChoice, c: Comparison, confidence: float) -> tuple[str, ...]:
    against = c.reason if c.ratio is None else f"{percent(c.ratio, c.interval, confidence)} {c.verdict}"
    return (
        band.band.label,
        _marked(c.method.label, chosen=c.method == band.choice),
        f"{c.tokens_per_second:.1f}",
        f"{c.stream_tokens_per_second:.1f}",
        "unknown" if c.accept_length is None else f"{c.accept_length:.2f}",
        "unknown" if c.cycle_seconds is None else f"{c.cycle_seconds * 1000:.1f} ms",
        "unknown" if c.break_even_accept_length is None else f"{c.break_even_accept_length:.2f}",
        against,
    )


def _marked(label: str, *, chosen: bool) -> str:
    return f"* {label}" if chosen else f"  {label}"


def as_dict(decision: Decision) -> dict[str, Any]:
    """Given a decision, return it as JSON values; speeds in tokens/s, times in seconds, unknown is null."""
    evidence = decision.evidence
    return {
        "choice": {"profile": decision.choice.profile, "levers": list(decision.choice.levers)},
        "rehearsal": evidence.rehearsal,
        "reason": decision.reason,
        "ratio": decision.ratio,
        "interval": None if decision.interval is None else list(decision.interval),
        "confidence": decision.rules.confidence,
        "sum": decision.sum_line,
        "host": evidence.host,
        "model": evidence.model,
        "versions": evidence.versions,
        "plans": evidence.plans,
        "bands": [_band_dict(band, decision) for band in decision.bands],
        "flags": list(decision.flags),
        "would_change": list(decision.would_change),
        "missing": list(decision.missing),
        "estimates": list(decision.estimates),
        "set_aside": list(evidence.set_aside),
        "rules": decision.rules.model_dump(),
    }


def _band_dict(band: BandChoice, decision: Decision) -> dict[str, Any]:
    baseline = band.baseline
    return {
        "concurrency": band.band.concurrency,
        "context": band.band.context,
        "traffic_share": decision.traffic.get(band.band, 0.0),
        "choice": {"profile": band.choice.profile, "levers": list(band.choice.levers)},
        "reason": band.reason,
        "baseline": None
        if baseline is None
        else {
            "method": baseline.method.label,
            "tokens_per_second": baseline.mean("tokens_per_second"),
            "stream_tokens_per_second": baseline.mean("stream_speed"),
            "rounds": len(baseline.rounds),
            "requests": baseline.requests,
        },
        "methods": [
            {
                "method": c.method.label,
                "profile": c.method.profile,
                "levers": list(c.method.levers),
                "tokens_per_second": c.tokens_per_second,
                "stream_tokens_per_second": c.stream_tokens_per_second,
                "ratio": c.ratio,
                "interval": None if c.interval is None else list(c.interval),
                "verdict": c.verdict,
                "reason": c.reason,
                "accept_length": c.accept_length,
                "cycle_seconds": c.cycle_seconds,
                "verify_seconds": c.verify_seconds,
                "draft_seconds": c.draft_seconds,
                "break_even_accept_length": c.break_even_accept_length,
                "predicted_stream_tokens_per_second": c.predicted_tokens_per_second,
                "inconsistency": c.inconsistency,
                "waiting": c.waiting,
            }
            for c in band.comparisons
        ],
    }
