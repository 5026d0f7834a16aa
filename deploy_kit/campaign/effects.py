"""From a lever's cells to its effect: paired ratios with an interval, and what they amount to. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from deploy_kit.campaign.model import Cell, Effect, LeverResult, Measure, Metric, Schedule, Verdict
from deploy_kit.decision.statistics import LogRatio, paired_log_ratio, student_quantile

METRICS: tuple[Metric, ...] = (
    "tokens_per_second",
    "stream_tokens_per_second",
    "cycle_seconds",
    "verify_seconds",
    "draft_seconds",
    "accept_length",
)
Pair = tuple[Cell, Cell]  # base, lever
# An interval around 1 that is wider than so many times the least effect that counts tells nothing.
_TELLING = 5
_TELLING_AT_LEAST = 0.05


def pairs_of(cells: Sequence[Cell], step: str) -> list[Pair]:
    """Given all finished cells, return the step's pairs whose both sides were measured, in order."""
    found: dict[int, dict[str, Cell]] = {}
    for cell in cells:
        if cell.step == step and cell.outcome == "measured":
            found.setdefault(cell.repeat, {})[cell.side] = cell
    return [
        (sides["base"], sides["lever"])
        for _, sides in sorted(found.items())
        if {"base", "lever"} <= set(sides)
    ]


def effects_of(pairs: Sequence[Pair], schedule: Schedule) -> list[Effect]:
    """Given a step's pairs, return the effect on every quantity that both sides have: over all loads (the
    geometric mean of the loads' ratios within each pair), then at each load."""
    if not pairs:
        return []
    loads = sorted({measure.concurrency for pair in pairs for cell in pair for measure in cell.measures})
    found: list[Effect] = []
    for metric in METRICS:
        at_load = {load: [_values(pair, load, metric) for pair in pairs] for load in loads}
        whole = {load: values for load, values in at_load.items() if None not in values}
        if len(whole) == len(loads):
            together = [
                _geometric([values[number] for values in whole.values()]) for number in range(len(pairs))
            ]
            found.append(_effect(metric, None, together, schedule))
        found += [_effect(metric, load, values, schedule) for load, values in whole.items() if len(loads) > 1]
    return found


def _values(pair: Pair, load: int, metric: Metric) -> tuple[float, float] | None:
    sides = [
        next((getattr(m, metric) for m in cell.measures if m.concurrency == load), None) for cell in pair
    ]
    base, lever = sides
    return None if base is None or lever is None else (float(base), float(lever))


def _geometric(values: Sequence[tuple[float, float] | None]) -> tuple[float, float]:
    known = [value for value in values if value is not None]
    return (
        math.exp(statistics.fmean(math.log(base) for base, _ in known)),
        math.exp(statistics.fmean(math.log(lever) for _, lever in known)),
    )


def _effect(
    metric: Metric, load: int | None, values: Sequence[tuple[float, float] | None], schedule: Schedule
) -> Effect:
    known = [value for value in values if value is not None]
    ratio: LogRatio = paired_log_ratio([(lever, base) for base, lever in known])
    return Effect(
        metric=metric,
        concurrency=load,
        ratio=ratio.ratio,
        interval=ratio.interval(schedule.confidence),
        pairs=len(known),
        pair_ratios=[lever / base for base, lever in known],
        base_mean=statistics.fmean(base for base, _ in known),
        lever_mean=statistics.fmean(lever for _, lever in known),
    )


def judge(effects: Sequence[Effect], schedule: Schedule) -> tuple[Verdict, str]:
    """Given a step's effects, return the verdict and its reason.

    Tokens/s over all loads decides. A gain is only accepted when the accept length holds: a fused all-reduce
    without its barrier is fast, and its answers are wrong.
    """
    speed = next((e for e in effects if e.metric == "tokens_per_second" and e.concurrency is None), None)
    if speed is None:
        return "unknown", "no pair was measured"
    percent = f"{(speed.ratio - 1) * 100:+.1f} % tokens/s"
    if speed.interval is None:
        return "unknown", f"{percent} in one pair: the spread is unknown"
    low, high = ((edge - 1) * 100 for edge in speed.interval)
    text = f"{percent} ({schedule.confidence * 100:g} %: {low:+.1f} to {high:+.1f})"
    least = schedule.min_effect_ratio
    if speed.interval[0] > 1 and speed.ratio >= 1 + least:
        accept = next((e for e in effects if e.metric == "accept_length" and e.concurrency is None), None)
        if accept is not None and accept.ratio < 1 - schedule.max_accept_length_loss_ratio:
            fell = f"fell from {accept.base_mean:.2f} to {accept.lever_mean:.2f}"
            return "not accepted", f"{text}, but the accept length {fell}: suspect wrong results"
        return "helps", text
    if speed.interval[1] < 1 and speed.ratio <= 1 - least:
        return "hurts", text
    if speed.interval[0] > 1 or speed.interval[1] < 1:
        kind = "gain" if speed.ratio >= 1 else "loss"
        return "no measurable effect", f"{text}: a {kind} of less than the {least * 100:g} % that counts"
    telling = max(_TELLING * least, _TELLING_AT_LEAST)
    if speed.interval[0] < 1 - telling or speed.interval[1] > 1 + telling:
        return "unknown", f"{text}: too wide to tell from {speed.pairs} pairs{_sure_of_the_cycle(effects)}"
    cycle = _sure_of_the_cycle(effects, least)
    if cycle:
        return "unknown", f"{text}: with the prefills in it, that cannot tell{cycle}; measure longer answers"
    return "no measurable effect", text


def _sure_of_the_cycle(effects: Sequence[Effect], least_ratio: float = 0.0) -> str:
    """Return what is sure of the cycle where tokens/s are not; nothing for a change of less than so much."""
    cycle = next((e for e in effects if e.metric == "cycle_seconds" and e.concurrency is None), None)
    if cycle is None or cycle.interval is None or cycle.interval[0] <= 1 <= cycle.interval[1]:
        return ""
    if abs(cycle.ratio - 1) < least_ratio:
        return ""
    low, high = ((edge - 1) * 100 for edge in cycle.interval)
    return f"; the cycle surely changed, by {(cycle.ratio - 1) * 100:+.1f} % ({low:+.1f} to {high:+.1f})"


def cycle_saving(
    pairs: Sequence[Pair], schedule: Schedule
) -> tuple[float | None, tuple[float, float] | None, int | None]:
    """Given pairs, return what the lever takes off a cycle in ms (mean over the pairs), its interval, and the
    load it was taken at: the lightest. None when the cycle is not known on both sides."""
    loads = sorted({measure.concurrency for pair in pairs for cell in pair for measure in cell.measures})
    if not loads:
        return None, None, None
    values = [_values(pair, loads[0], "cycle_seconds") for pair in pairs]
    savings = [(value[0] - value[1]) * 1000 for value in values if value is not None]
    if len(savings) != len(values) or not savings:
        return None, None, None
    mean = statistics.fmean(savings)
    if len(savings) < 2:
        return mean, None, loads[0]
    error = statistics.stdev(savings) / math.sqrt(len(savings))
    half = student_quantile(0.5 + schedule.confidence / 2, len(savings) - 1) * error
    return mean, (mean - half, mean + half), loads[0]


def updated(result: LeverResult, cells: Sequence[Cell], schedule: Schedule) -> LeverResult:
    """Given a step's result so far and all finished cells, return it with its effects worked out anew, and
    its outcome: failed when its own side failed, done when every pair is there, pending otherwise."""
    pairs = pairs_of(cells, result.name)
    effects = effects_of(pairs, schedule)
    saving, interval, load = cycle_saving(pairs, schedule)
    changes: dict[str, object] = {
        "effects": effects,
        "measured_cycle_saving_ms": saving,
        "measured_cycle_saving_interval_ms": interval,
        "measured_at_concurrency": load,
    }
    failed = next(
        (c for c in cells if c.step == result.name and c.side == "lever" and c.outcome == "failed"), None
    )
    if failed is not None:
        changes |= {
            "outcome": "failed",
            "verdict": "unknown",
            "reason": f"the engine did not run with it: {failed.cause}",
            "cause": failed.cause,
            "cause_id": failed.cause_id,
            "remedy": failed.remedy,
        }
    elif len(pairs) >= schedule.repeats:
        verdict, reason = judge(effects, schedule)
        changes |= {"outcome": "done", "verdict": verdict, "reason": reason}
    return result.model_copy(update=changes)


def winners_of(results: Sequence[LeverResult]) -> list[LeverResult]:
    """Given every lever's result, return those that help, strongest first."""
    helping = [result for result in results if result.outcome == "done" and result.verdict == "helps"]

    def strength(result: LeverResult) -> float:
        effect = result.effect("tokens_per_second")
        return effect.ratio if effect is not None else 0.0

    return sorted(helping, key=strength, reverse=True)


def mean_measures(rounds: Sequence[Measure]) -> list[Measure]:
    """Given one measure for each round, return one for each load: the means of what every round has."""
    found: list[Measure] = []
    for load in sorted({measure.concurrency for measure in rounds}):
        at_load = [measure for measure in rounds if measure.concurrency == load]
        means: dict[str, float | None] = {}
        for metric in METRICS:
            values = [getattr(measure, metric) for measure in at_load]
            known = [float(value) for value in values if value is not None]
            means[metric] = statistics.fmean(known) if len(known) == len(values) else None
        found.append(
            Measure(
                concurrency=load,
                requests=sum(measure.requests for measure in at_load),
                errors=sum(measure.errors for measure in at_load),
                **means,
            )
        )
    return found
