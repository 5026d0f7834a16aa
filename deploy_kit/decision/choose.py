"""The choice: per load and over all, from evidence only; ties and thin evidence go to the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from deploy_kit.decision import physics
from deploy_kit.decision.evidence import Band, Cell, Evidence, Method
from deploy_kit.decision.statistics import LogRatio, log_ratio, weighted

Verdict = Literal["faster", "slower", "tie", "not enough evidence"]
BASELINE = Method("baseline")
PREFILL_RATIO = 0.05  # a smaller share of the time explains no gap


class EvidenceRules(BaseModel):
    """How much must be known before speculation is switched on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_rounds: int = Field(default=2, ge=1)  # of each cell, of both the profile and the baseline
    min_requests: int = Field(default=8, ge=1)  # finished requests of a cell, over its rounds
    max_error_ratio: float = Field(default=0.01, ge=0, lt=1)
    min_gain_ratio: float = Field(default=0.03, ge=0, lt=1)  # less than this is a tie
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    inconsistency_ratio: float = Field(default=0.05, gt=0, lt=1)


@dataclass(frozen=True)
class Comparison:
    """One method against the baseline under one load. Speeds in tokens/s of one stream while decoding,
    unless `tokens_per_second` (all streams, whole requests), which decides."""

    method: Method
    band: Band
    tokens_per_second: float
    stream_tokens_per_second: float
    log_ratio: LogRatio | None  # None when the baseline is not measured here
    interval: tuple[float, float] | None
    verdict: Verdict
    reason: str
    accept_length: float | None = None
    cycle_seconds: float | None = None
    verify_seconds: float | None = None
    draft_seconds: float | None = None
    break_even_accept_length: float | None = None
    predicted_tokens_per_second: float | None = None  # of one stream: accept length / cycle
    inconsistency: str | None = None
    waiting: str | None = None  # when streams see a longer cycle than the engine's mean
    thin: str | None = None  # what the rules of evidence ask for and it does not have

    @property
    def ratio(self) -> float | None:
        """Speed over the baseline's, 1.0 being equal."""
        return None if self.log_ratio is None else self.log_ratio.ratio


@dataclass(frozen=True)
class BandChoice:
    """What to run under one load."""

    band: Band
    baseline: Cell | None
    comparisons: tuple[Comparison, ...]  # fastest first, the baseline not among them
    choice: Method
    reason: str


@dataclass(frozen=True)
class Decision:
    """The whole answer."""

    choice: Method
    reason: str
    ratio: float | None  # of the choice over the baseline, weighted over the traffic; None without baseline
    interval: tuple[float, float] | None
    bands: tuple[BandChoice, ...]
    sum_line: str
    would_change: tuple[str, ...]
    missing: tuple[str, ...]
    flags: tuple[str, ...]  # inconsistencies and other things to look at
    evidence: Evidence
    traffic: dict[Band, float]
    rules: EvidenceRules
    estimates: tuple[str, ...] = field(default=())

    @property
    def profile(self) -> str:
        """The chosen profile's name, as `deploy-kit plan` takes it."""
        return self.choice.profile


def decide(
    evidence: Evidence,
    *,
    traffic: Mapping[Band, float] | None = None,
    rules: EvidenceRules | None = None,
    wanted_profiles: Sequence[str] = (),
) -> Decision:
    """Given evidence, the shares of the traffic by band (default: every measured band alike) and the rules
    of evidence, return the decision. `wanted_profiles` not measured are listed as missing."""
    rules = rules or EvidenceRules()
    reference = _reference(evidence)
    shares = _shares(evidence, traffic)
    bands = tuple(_choose_in_band(evidence, band, reference, rules) for band in _all_bands(evidence, shares))
    choice, reason, total = _overall(bands, shares, rules)
    flags = tuple(
        text
        for band in bands
        for comparison in band.comparisons
        for text in (comparison.inconsistency, comparison.waiting)
        if text is not None
    )
    return Decision(
        choice=choice if choice.speculates else reference or BASELINE,
        reason=reason,
        ratio=None if total is None else total.ratio,
        interval=None if total is None else total.interval(rules.confidence),
        bands=bands,
        sum_line=_sum_line(bands, shares, choice),
        would_change=tuple(_would_change(bands, shares, choice, rules)),
        missing=tuple(_missing(evidence, bands, rules, wanted_profiles)),
        flags=flags + _single_start(evidence),
        evidence=evidence,
        traffic=dict(shares),
        rules=rules,
    )


def _reference(evidence: Evidence) -> Method | None:
    # Plain decoding may have been measured with several levers: the fastest of them is what must be beaten.
    plain = [method for method in evidence.methods if not method.speculates]

    def rank(method: Method) -> tuple[int, float]:
        cells = [cell for (other, _), cell in evidence.cells.items() if other == method]
        return len(cells), sum(cell.mean("tokens_per_second") or 0.0 for cell in cells)

    return max(plain, key=rank, default=None)


def _shares(evidence: Evidence, traffic: Mapping[Band, float] | None) -> dict[Band, float]:
    given = dict(traffic) if traffic else dict.fromkeys(evidence.bands, 1.0)
    total = sum(given.values())
    return {band: share / total for band, share in given.items() if share > 0} if total > 0 else {}


def _all_bands(evidence: Evidence, shares: Mapping[Band, float]) -> list[Band]:
    return sorted({*evidence.bands, *shares})


def _choose_in_band(
    evidence: Evidence, band: Band, reference: Method | None, rules: EvidenceRules
) -> BandChoice:
    baseline = None if reference is None else evidence.cells.get((reference, band))
    comparisons = sorted(
        (
            compare(cell, baseline, rules)
            for (method, where), cell in evidence.cells.items()
            if where == band and method.speculates
        ),
        key=lambda comparison: -comparison.tokens_per_second,
    )
    plain = reference or BASELINE
    winners = [comparison for comparison in comparisons if comparison.verdict == "faster"]
    if baseline is None:
        return BandChoice(band, None, tuple(comparisons), plain, "the baseline is not measured here")
    if winners:
        best = max(winners, key=lambda comparison: comparison.ratio or 0.0)
        return BandChoice(band, baseline, tuple(comparisons), best.method, best.reason)
    ahead = [c for c in comparisons if c.verdict == "not enough evidence" and (c.ratio or 0) > 1]
    if ahead:
        reason = f"{ahead[0].method.label} looks faster, but: {ahead[0].reason}"
    elif any(comparison.verdict == "tie" for comparison in comparisons):
        reason = "a tie goes to the baseline"
    elif comparisons:
        reason = "every measured profile is slower"
    else:
        reason = "nothing else is measured here"
    return BandChoice(band, baseline, tuple(comparisons), plain, reason)


def compare(cell: Cell, baseline: Cell | None, rules: EvidenceRules) -> Comparison:
    """Given a method's cell and the baseline's under the same load, return how they compare."""
    accept, cycle = cell.mean("accept_length"), cell.mean("cycle_seconds")
    stream = cell.mean("stream_speed") or 0.0
    ratio = None if baseline is None else log_ratio(cell.speeds, baseline.speeds)
    interval = None if ratio is None else ratio.interval(rules.confidence)
    verdict, reason = _verdict(cell, baseline, ratio, interval, rules)
    plain = None if baseline is None else baseline.mean("stream_speed")
    return Comparison(
        method=cell.method,
        band=cell.band,
        tokens_per_second=cell.mean("tokens_per_second") or 0.0,
        stream_tokens_per_second=stream,
        log_ratio=ratio,
        interval=interval,
        verdict=verdict,
        reason=reason,
        accept_length=accept,
        cycle_seconds=cycle,
        verify_seconds=cell.mean("verify_seconds"),
        draft_seconds=cell.mean("draft_seconds"),
        break_even_accept_length=(
            None if plain is None or cycle is None else physics.break_even_accept_length(cycle, plain)
        ),
        predicted_tokens_per_second=None if not accept or not cycle else physics.speed(accept, cycle),
        inconsistency=_inconsistency(cell, accept, cycle, stream, rules),
        waiting=_waiting(cell, rules),
        thin=_thin(cell, rules) or (None if baseline is None else _thin(baseline, rules)),
    )


def _verdict(
    cell: Cell,
    baseline: Cell | None,
    ratio: LogRatio | None,
    interval: tuple[float, float] | None,
    rules: EvidenceRules,
) -> tuple[Verdict, str]:
    if baseline is None or ratio is None:
        return "not enough evidence", "the baseline is not measured under this load"
    percent = f"{(ratio.ratio - 1) * 100:+.1f} %"
    thin = _thin(cell, rules) or _thin(baseline, rules)
    if ratio.ratio < 1 and (interval is None or interval[1] < 1):
        return "slower", f"{percent} against the baseline"
    if thin:
        return "not enough evidence", thin
    if ratio.ratio < 1 and interval is not None:
        low, high = ((edge - 1) * 100 for edge in interval)
        sure = f"{rules.confidence * 100:g} % confident of {low:+.1f} to {high:+.1f} %"
        return "tie", f"{percent}, not told apart from no effect: {sure}"
    if ratio.ratio - 1 < rules.min_gain_ratio:
        return "tie", f"{percent}: less than the {rules.min_gain_ratio * 100:g} % that counts"
    if interval is not None and interval[0] <= 1:
        low, high = ((edge - 1) * 100 for edge in interval)
        return (
            "not enough evidence",
            f"{percent}, but {rules.confidence * 100:g} % confident only of {low:+.1f} to {high:+.1f} %",
        )
    return "faster", f"{percent} against the baseline"


def _thin(cell: Cell, rules: EvidenceRules) -> str | None:
    label = cell.method.label
    if len(cell.rounds) < rules.min_rounds:
        return f"{label} has {len(cell.rounds)} of {rules.min_rounds} rounds"
    if cell.requests < rules.min_requests:
        return f"{label} has {cell.requests} of {rules.min_requests} finished requests"
    if cell.errors > rules.max_error_ratio * (cell.requests + cell.errors):
        return f"{label} had {cell.errors} failed requests of {cell.requests + cell.errors}"
    return None


def _inconsistency(
    cell: Cell, accept: float | None, cycle: float | None, stream: float, rules: EvidenceRules
) -> str | None:
    if accept is None or cycle is None or stream <= 0:
        return None
    # Round by round: an average speed times an average cycle is not the average of the products.
    products = [
        physics.implied_accept_length(round_.stream_speed, round_.cycle_seconds)
        for round_ in cell.rounds
        if round_.cycle_seconds is not None
    ]
    implied = sum(products) / len(products)
    gap = 1 - implied / accept
    if abs(gap) <= rules.inconsistency_ratio:
        return None
    prefill = cell.mean("prefill_ratio") or 0.0
    if 0 < gap <= prefill + rules.inconsistency_ratio and prefill > PREFILL_RATIO:
        return None  # streams wait for other streams' prefills, which no cycle holds: `_waiting` says so
    return (
        f"{cell.method.label} at {cell.band.label}: {stream:.1f} tok/s x {cycle * 1000:.1f} ms is an accept "
        f"length of {implied:.2f}, inconsistent with the {accept:.2f} reported: one of the three is wrong "
        "(a cycle is draft + verify + gaps, not verify alone)"
    )


def _waiting(cell: Cell, rules: EvidenceRules) -> str | None:
    """Return a remark when a stream gets its tokens in longer steps than the engine's mean cycle."""
    engine, accept = cell.mean("engine_cycle_seconds"), cell.mean("accept_length")
    stream = cell.mean("stream_speed")
    if not engine or not accept or not stream:
        return None
    seen = accept / stream
    if seen / engine - 1 <= rules.inconsistency_ratio:
        return None
    prefill = cell.mean("prefill_ratio")
    share = "unknown" if prefill is None else f"{prefill * 100:.0f} % of the time"
    return (
        f"{cell.method.label} at {cell.band.label}: a stream's cycle is {seen * 1000:.1f} ms, the engine's "
        f"mean {engine * 1000:.1f} ms: fuller batches take longer, and streams wait for prefills ({share})"
    )


def _overall(
    bands: Sequence[BandChoice], shares: Mapping[Band, float], rules: EvidenceRules
) -> tuple[Method, str, LogRatio | None]:
    counted = [band for band in bands if band.band in shares]
    if not counted:
        return BASELINE, "nothing is measured: the baseline, until something is", None
    unmeasured = [band.band.label for band in counted if band.baseline is None]
    if unmeasured:
        return BASELINE, f"the baseline is not measured at {'; '.join(unmeasured)}: nothing to compare", None
    results: list[tuple[LogRatio, Method]] = []
    thin: list[str] = []
    for method in sorted({c.method for band in counted for c in band.comparisons}):
        parts: list[tuple[float, LogRatio]] = []
        problem: str | None = None
        for band in counted:
            found = next((c for c in band.comparisons if c.method == method), None)
            if found is None or found.log_ratio is None or band.baseline is None:
                problem = f"not measured at {band.band.label}"
                break
            # A wide interval in one band is judged over the whole traffic; missing rounds never are.
            if found.thin is not None:
                problem = f"{found.thin} at {band.band.label}"
            parts.append((shares[band.band], found.log_ratio))
        if problem is not None:
            thin.append(f"{method.label}: {problem}")
        else:
            results.append((weighted(parts), method))
    results.sort(key=lambda entry: -entry[0].mean)
    for total, method in results:
        interval = total.interval(rules.confidence)
        if total.ratio - 1 >= rules.min_gain_ratio and (interval is None or interval[0] > 1):
            return method, f"{method.label} is faster over this traffic", total
    equal = LogRatio(0.0, 0.0, 1.0)
    if results:
        best, method = results[0]
        if best.ratio < 1:
            reason = f"the best other profile, {method.label}, is {(1 - best.ratio) * 100:.1f} % slower"
        elif best.ratio - 1 < rules.min_gain_ratio:
            reason = f"a tie with {method.label} ({(best.ratio - 1) * 100:+.1f} %) goes to the baseline"
        else:
            reason = (
                f"{method.label} may be {(best.ratio - 1) * 100:+.1f} %, not confidently: measure more rounds"
            )
        return BASELINE, reason, equal
    return (
        BASELINE,
        "not enough evidence for any other profile: " + ("; ".join(thin) or "none measured"),
        equal,
    )


def _heaviest(bands: Sequence[BandChoice], shares: Mapping[Band, float]) -> BandChoice | None:
    # The band the sum is shown for: the one with most traffic, the lightest load among equals.
    counted = [band for band in bands if band.baseline is not None]
    return max(counted, key=lambda b: (shares.get(b.band, 0.0), -b.band.concurrency), default=None)


def _sum_line(bands: Sequence[BandChoice], shares: Mapping[Band, float], choice: Method) -> str:
    main = _heaviest(bands, shares)
    if main is None or main.baseline is None:
        return "no sum: the baseline is not measured"
    plain = main.baseline.mean("stream_speed") or 0.0
    shown = next((c for c in main.comparisons if c.method == choice), None)
    if shown is None:  # the baseline won: show the strongest loser whose cycle is known
        shown = next((c for c in main.comparisons if c.cycle_seconds), None) or next(
            iter(main.comparisons), None
        )
    if shown is None:
        return f"{main.band.label}: baseline {plain:.1f} tok/s a stream; nothing to compare it with"
    head = f"{main.band.label}: "
    if shown.cycle_seconds is None or shown.accept_length is None or shown.break_even_accept_length is None:
        return (
            f"{head}{shown.method.label} {shown.stream_tokens_per_second:.1f} tok/s a stream against "
            f"baseline {plain:.1f} (cycle time unknown, so no break-even)"
        )
    sign = ">" if shown.accept_length > shown.break_even_accept_length else "<"
    cycle = f"{shown.cycle_seconds * 1000:.1f} ms"
    return (
        f"{head}{shown.method.label} accept length {shown.accept_length:.2f} / cycle {cycle} = "
        f"{physics.speed(shown.accept_length, shown.cycle_seconds):.0f} tok/s (measured "
        f"{shown.stream_tokens_per_second:.1f}); break-even {cycle} x "
        f"{plain:.1f} tok/s = {shown.break_even_accept_length:.2f}; "
        f"{shown.accept_length:.2f} {sign} {shown.break_even_accept_length:.2f}"
    )


def _would_change(
    bands: Sequence[BandChoice], shares: Mapping[Band, float], choice: Method, rules: EvidenceRules
) -> list[str]:
    main = _heaviest(bands, shares)
    if main is None or main.baseline is None:
        return []
    lines: list[str] = []
    # A profile must not only reach the baseline but pass it by what counts.
    plain = (main.baseline.mean("stream_speed") or 0.0) * (1 + rules.min_gain_ratio)
    for comparison in main.comparisons:
        cycle, accept, verify = comparison.cycle_seconds, comparison.accept_length, comparison.verify_seconds
        if cycle is None or accept is None or plain <= 0:
            continue
        name = f"{comparison.method.label} at {main.band.label}"
        needed_accept = physics.break_even_accept_length(cycle, plain)
        needed_cycle = physics.break_even_cycle(accept, plain)
        chosen = comparison.method == choice
        if not chosen and comparison.verdict == "faster":
            continue
        word = ("below", "above") if chosen else ("above", "below")
        effect = "back to the baseline" if chosen else "would win"
        text = f"{name} {effect} with accept length {word[0]} {needed_accept:.2f}"
        text += f", or cycle {word[1]} {needed_cycle * 1000:.1f} ms"
        if verify is not None:
            rest = max(cycle - verify, 0.0)
            needed_verify = physics.break_even_verify(accept, plain, rest)
            text += (
                f" (verify {word[1]} {needed_verify * 1000:.1f} ms)"
                if needed_verify is not None
                else " (not by verify alone: draft and gaps already take longer)"
            )
        lines.append(text)
    return lines


def _missing(
    evidence: Evidence, bands: Sequence[BandChoice], rules: EvidenceRules, wanted: Sequence[str]
) -> list[str]:
    methods = evidence.methods
    lines = [
        f"{profile}: not measured at all"
        for profile in wanted
        if profile not in {method.profile for method in methods}
    ]
    if BASELINE.profile not in wanted and not any(not method.speculates for method in methods):
        lines.append("baseline: not measured at all")
    for method in methods:
        plain = Method("baseline", method.levers)
        if method.speculates and method.levers and plain not in methods:
            lines += [f"{plain.label}: without it, {method.label} may owe its gain to the levers"]
    for band in bands:
        for method in methods:
            cell = evidence.cells.get((method, band.band))
            if cell is None:
                lines.append(f"{method.label} at {band.band.label}")
                continue
            thin = _thin(cell, rules)
            if thin:
                lines.append(f"{band.band.label}: {thin}")
            if method.speculates and cell.mean("cycle_seconds") is None:
                lines.append(f"{method.label} at {band.band.label}: cycle time unknown")
            if method.speculates and cell.mean("accept_length") is None:
                lines.append(f"{method.label} at {band.band.label}: accept length unknown")
    winners = {band.choice for band in bands if band.baseline is not None}
    if len(winners) > 1 and not any(method.profile == "eagle3-adaptive" for method in methods):
        lines.append(
            "eagle3-adaptive: the best profile changes with load, and adaptive speculation follows it"
        )
    return lines


def _single_start(evidence: Evidence) -> tuple[str, ...]:
    once = sorted(
        {
            cell.method.label
            for cell in evidence.cells.values()
            if len(cell.rounds) > 1 and len({r.server_start or r.receipt_id for r in cell.rounds}) == 1
        }
    )
    if not once:
        return ()
    return (
        f"all rounds from one server start ({', '.join(once)}): spread between starts is not in the interval",
    )
