"""What a run's samples mean: the fastest correct candidate per size, the setting for the host, the forwards.

Pure: a run goes in, plain JSON values come out. What cannot be known is None with a reason beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import median
from typing import Any

from deploy_kit.probe.runner import ANCHOR, ProbeRun, Record
from deploy_kit.probe.sampling import Interval, median_interval, ratio_interval

STORY_NAME = "story-2ch-128k"
VERIFY_TOKENS = 4
_ELEMENT_BYTES = 2


def summarize(
    run: ProbeRun, *, decode_step_ms: float | None = None, cycle_ms: float | None = None
) -> dict[str, Any]:
    """Return the summary of a run: one entry per size and per candidate, the chosen settings, forward costs.

    `decode_step_ms` and `cycle_ms` are the measured step of plain decoding and the measured draft-and-verify
    cycle (from bench receipts); without them the break-even stays unknown, as its formula needs both.
    """
    finals = [record for record in run.records.values() if record.is_ok and "final" in record.samples]
    sizes = {str(tokens): _size(tokens, run, finals) for tokens in run.settings.tokens}
    setting = _host_setting(run, finals)
    return {
        "verdict": _verdict(run, finals),
        "sizes": sizes,
        "candidates": {name: _candidate(record, run) for name, record in run.records.items()},
        "host_setting": setting,
        "forwards": _forwards(run, finals, sizes, setting, decode_step_ms, cycle_ms),
        "notes": list(run.notes),
        "left_out": list(run.left_out),
        "seconds": run.seconds,
    }


def _verdict(run: ProbeRun, finals: Sequence[Record]) -> str:
    if run.settings.shared_gpu:
        bad = any(record.outcome.status in ("wrong", "hang", "crash") for record in run.records.values())
        return "fail" if bad else "unknown"
    if not finals:
        all_unsupported = all(
            record.outcome.status in ("unsupported", "not-run") for record in run.records.values()
        )
        return "unknown" if all_unsupported else "fail"
    anchor = run.records.get(ANCHOR)
    return "ok" if anchor is None or anchor.is_ok else "warn"


def _size(tokens: int, run: ProbeRun, finals: Sequence[Record]) -> dict[str, Any]:
    """Return one size's result: every finalist's median and interval, the fastest, and what ties with it."""
    measured = {
        record.candidate.name: median_interval(record.rounds(tokens))
        for record in finals
        if record.rounds(tokens)
    }
    entry: dict[str, Any] = {
        "bytes": tokens * run.settings.hidden * _ELEMENT_BYTES,
        "latency_us": {name: interval.as_dict() for name, interval in sorted(measured.items())},
        "eager_us": {
            record.candidate.name: median_interval(record.rounds(tokens, "eager")).as_dict()
            for record in finals
            if record.rounds(tokens, "eager")
        },
    }
    eligible = {
        name: interval for name, interval in measured.items() if run.records[name].candidate.deployable
    }
    if not eligible:
        return entry | {"fastest": None, "unknown": "no candidate was measured and correct at this size"}
    fastest = min(eligible, key=lambda name: (eligible[name].median, name))
    ties = [
        name
        for name in eligible
        if name != fastest and _ratio(run, name, fastest, tokens).low <= 1.0  # not surely slower
    ]
    entry |= {
        "fastest": fastest,
        "ties": sorted(ties),
        "sure": not ties,
        "use": run.records[fastest].candidate.use,
    }
    for key, name in (("to_default", ANCHOR), ("to_story", STORY_NAME)):
        if name in measured:
            entry[f"ratio_{key}"] = _ratio(run, fastest, name, tokens).as_dict()
    return entry


def _host_setting(run: ProbeRun, finals: Sequence[Record]) -> dict[str, Any]:
    """Return the one NCCL setting for the host file: the best geometric mean over the sizes, if surely better
    than NCCL's default; a host runs one setting for all sizes."""
    nccl = [record for record in finals if record.candidate.is_nccl and record.candidate.deployable]
    anchor = run.records.get(ANCHOR)
    if anchor is None or anchor not in nccl:
        if not nccl:
            return {"candidate": None, "unknown": "no NCCL setting was measured and correct"}
        best = min(nccl, key=lambda record: _geometric_mean(record, run.settings.tokens))
        return {
            "candidate": best.candidate.name,
            "environment": dict(best.candidate.environment),
            "unknown": "NCCL's default was not correct here, so there is no ratio to it",
        }
    ratios = {record.candidate.name: _overall_ratio(record, anchor, run.settings.tokens) for record in nccl}
    best_name = min(ratios, key=lambda name: (ratios[name].median, name != ANCHOR))
    surely = ratios[best_name].high < 1.0
    chosen = run.records[best_name] if surely else anchor
    ratio = ratios[chosen.candidate.name]
    return {
        "candidate": chosen.candidate.name,
        "environment": dict(chosen.candidate.environment),
        "ratio_to_default": ratio.as_dict(),
        "best_measured": best_name,
        "best_measured_ratio_to_default": ratios[best_name].as_dict(),
        "why": "surely faster than NCCL's default over these sizes"
        if surely
        else "no setting is surely faster than NCCL's default over these sizes",
        "slower_than_default_at_tokens": [
            tokens
            for tokens in run.settings.tokens
            if chosen is not anchor and _ratio(run, chosen.candidate.name, ANCHOR, tokens).low > 1.0
        ],
    }


def _forwards(
    run: ProbeRun,
    finals: Sequence[Record],
    sizes: Mapping[str, Any],
    setting: Mapping[str, Any],
    decode_step_ms: float | None,
    cycle_ms: float | None,
) -> dict[str, Any]:
    """Return what the all-reduces of a decode (1 token) and a verify forward cost: count * latency."""
    count = run.settings.count
    found: dict[str, Any] = {
        "allreduces_per_forward": count,
        "verify_tokens": VERIFY_TOKENS,
        "candidates": {},
    }
    wanted = {ANCHOR, STORY_NAME, str(setting.get("candidate"))}
    wanted |= {str(size["fastest"]) for size in sizes.values() if size.get("fastest")}
    for record in finals:
        if record.candidate.name not in wanted:
            continue
        entry: dict[str, Any] = {}
        for label, tokens in (("decode_ms", 1), ("verify_ms", VERIFY_TOKENS)):
            rounds = record.rounds(tokens)
            entry[label] = round(median_interval(rounds).median * count / 1000, 3) if rounds else None
        found["candidates"][record.candidate.name] = entry
    found["break_even"] = _break_even(found["candidates"], setting, sizes, decode_step_ms, cycle_ms)
    return found


def _break_even(
    forwards: Mapping[str, Mapping[str, float | None]],
    setting: Mapping[str, Any],
    sizes: Mapping[str, Any],
    decode_step_ms: float | None,
    cycle_ms: float | None,
) -> dict[str, Any]:
    formula = "accept length must exceed cycle time * baseline tokens/s"
    if decode_step_ms is None or cycle_ms is None:
        return {
            "formula": formula,
            "unknown": "it needs the measured decode step and cycle: --decode-step-ms, --cycle-ms",
        }
    today = break_even(decode_step_ms, cycle_ms)
    result: dict[str, Any] = {"formula": formula, "measured_accept_length": round(today, 3), "with": {}}
    base = forwards.get(ANCHOR, {})
    verify_winner = sizes.get(str(VERIFY_TOKENS), {}).get("fastest")
    for name in dict.fromkeys([setting.get("candidate"), verify_winner]):
        mine = forwards.get(str(name), {})
        numbers = [base.get("decode_ms"), base.get("verify_ms"), mine.get("decode_ms"), mine.get("verify_ms")]
        if name is None or name == ANCHOR or any(number is None for number in numbers):
            continue
        decode, verify, own_decode, own_verify = (float(number or 0) for number in numbers)
        step, cycle = decode_step_ms - decode + own_decode, cycle_ms - verify + own_verify
        if step <= 0 or cycle <= 0:
            result["with"][name] = {
                "unknown": "the given step or cycle is shorter than its all-reduces here: another host"
            }
            continue
        result["with"][name] = {
            "decode_step_ms": round(step, 3),
            "cycle_ms": round(cycle, 3),
            "baseline_tokens_per_second": round(1000 / step, 1),
            "accept_length": round(break_even(step, cycle), 3),
        }
    result["assumption"] = (
        "given times were measured with NCCL's default; the drafter's own all-reduces are not counted"
    )
    return result


def break_even(decode_step_ms: float, cycle_ms: float) -> float:
    """Given the decode step and the draft-and-verify cycle, return the accept length from which speculation
    pays: cycle time * baseline tokens per second. The story's 30 ms and 12.2 ms give 2.46.

    >>> round(break_even(1000 / 82, 30), 2)
    2.46
    """
    return cycle_ms / decode_step_ms


def _candidate(record: Record, run: ProbeRun) -> dict[str, Any]:
    stages = [stage for stage in record.samples if stage not in ("eager", "unfused")]
    return {
        **record.outcome.as_dict(),
        "path": record.candidate.path,
        "environment": dict(record.candidate.environment),
        "use": record.candidate.use,
        "deployable": record.candidate.deployable,
        "ranks_bit_identical": record.ranks_agree,
        "seconds": round(record.seconds, 2),
        "steps_seconds": record.steps_seconds,
        "screening_us": {
            str(tokens): round(
                median([sample for samples in record.rounds(tokens, stages[0]) for sample in samples]), 2
            )
            for tokens in run.settings.tokens
            if stages and record.rounds(tokens, stages[0])
        },
    }


def _ratio(run: ProbeRun, name: str, baseline: str, tokens: int) -> Interval:
    return ratio_interval(run.records[name].rounds(tokens), run.records[baseline].rounds(tokens))


def _overall_ratio(record: Record, anchor: Record, tokens: Sequence[int]) -> Interval:
    per_round: list[list[float]] = []
    rounds = min(len(record.rounds(size)) for size in tokens)
    rounds = min(rounds, *(len(anchor.rounds(size)) for size in tokens))
    for number in range(rounds):
        ratios = [
            median(record.rounds(size)[number]) / median(anchor.rounds(size)[number]) for size in tokens
        ]
        per_round.append([exp(sum(map(log, ratios)) / len(ratios))])
    return ratio_interval(per_round, [[1.0]] * len(per_round))


def _geometric_mean(record: Record, tokens: Sequence[int]) -> float:
    return exp(sum(log(median_interval(record.rounds(size)).median) for size in tokens) / len(tokens))
