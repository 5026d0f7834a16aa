"""What a scrape says, in words: verdict, what was read, what is absent and why, what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from deploy_kit.metrics.names import ROUTER_PREFIXES
from deploy_kit.metrics.reading import (
    LOAD_QUANTITIES,
    SPEC_QUANTITIES,
    Absent,
    Engine,
    Reading,
    read,
)
from deploy_kit.metrics.sections import split_sections
from deploy_kit.metrics.text import parse
from deploy_kit.pasted import plain

Verdict = Literal["ok", "partial", "no-data"]
TIMER_REMEDY = (
    "set the environment variable SGLANG_ENABLE_METRICS_DEVICE_TIMER=1 (with --enable-metrics) and restart"
)


@dataclass
class Explanation:
    """The answer for one scrape (or for several: then `sections` holds one each, and this their sum)."""

    verdict: Verdict
    cause: str
    remedy: str | None = None
    title: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: dict[str, int] = field(default_factory=dict)
    problem_texts: list[str] = field(default_factory=list)
    sections: list[Explanation] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return it for `--json`."""
        result: dict[str, Any] = {
            "verdict": self.verdict,
            "cause": self.cause,
            "action": self.remedy,
            "facts": self.facts,
            "absent": self.absent,
            "notes": self.notes,
            "problems": self.problems,
            "problem_lines": self.problem_texts,
        }
        if self.title:
            result = {"title": self.title, **result}
        if self.sections:
            result["scrapes"] = [section.as_dict() for section in self.sections]
        return result


def explain(text: str) -> Explanation:
    """Given the text of one scrape, or of several under `--- title` lines, return what it says."""
    parts = split_sections(plain(text))
    readings = [(title, read(parse(part))) for title, part in parts]
    explained = [_explain_one(title, reading) for title, reading in readings]
    return explained[0] if len(explained) == 1 else _join(readings, explained)


def _explain_one(title: str, reading: Reading) -> Explanation:
    scrape = reading.scrape
    if not reading.engines or reading.prefix is None:
        cause, remedy = _why_nothing(reading)
        return Explanation(
            "no-data", cause, remedy, title,
            absent={"engine": cause, "spec": cause},
            problems=dict(scrape.problem_counts), problem_texts=[p.text for p in scrape.problems],
        )  # fmt: skip
    answer = Explanation("ok", "", title=title)
    shortfalls: list[tuple[str, str | None]] = []
    if len(reading.engines) == 1:
        facts, absent = _facts(reading.engines[0], reading, answer.notes, shortfalls)
        answer.facts, answer.absent = facts, absent
    else:
        _explain_many(reading, answer, shortfalls)
    _explain_text(reading, answer, shortfalls)
    answer.problems = dict(scrape.problem_counts)
    answer.problem_texts = [problem.text for problem in scrape.problems]
    if shortfalls:
        answer.verdict = "partial"
        answer.cause = "; ".join(dict.fromkeys(cause for cause, _ in shortfalls))
        answer.remedy = "; ".join(dict.fromkeys(remedy for _, remedy in shortfalls if remedy)) or None
    else:
        answer.cause = _good_cause(reading)
    return answer


def _explain_text(reading: Reading, answer: Explanation, shortfalls: list[tuple[str, str | None]]) -> None:
    """Add what the text itself shows: another prefix, damage."""
    if reading.prefix == "sglang_":
        answer.notes.append(
            "prefix sglang_ instead of sglang:: a gateway's aggregation or a relabelled copy; read the same"
        )
    elif reading.prefix == "":
        shortfalls.append(
            (
                "prefix missing: the names are SGLang's without sglang: (relabelled on the way?)",
                "keep the engine's own metric names: dashboards and rules ask for sglang:…",
            )
        )
    counts = reading.scrape.problem_counts
    if counts.get("truncated"):
        shortfalls.append(
            ("the text is truncated: it ends inside a line, what follows is missing", "scrape again")
        )
    if counts.get("unreadable line"):
        number = counts["unreadable line"]
        shortfalls.append((f"{number} line{'s' if number > 1 else ''} unreadable and left out", None))
    if counts.get("contradicting series"):
        shortfalls.append(
            ("duplicated series with different values were left out: neither can be trusted", None)
        )
    if counts.get("broken histogram"):
        shortfalls.append(("a histogram is not whole and was left out, or gives no mean", None))


def _facts(
    engine: Engine, reading: Reading, notes: list[str], shortfalls: list[tuple[str, str | None]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Given one engine, return its facts and what is absent, adding remarks and shortfalls."""
    facts: dict[str, Any] = {}
    if engine.model is not None:
        facts["model"] = engine.model
    if engine.engine_type is not None:
        facts["engine_type"] = engine.engine_type
    if engine.worker is not None:
        facts["worker"] = engine.worker
    facts.update({name: _tidy(value) for name, value in engine.values.items()})
    for name, parts in engine.per_part.items():
        facts[f"{name}_by_part"] = {part: _tidy(value) for part, value in parts.items()}
    absent = {name: reason.reason for name, reason in engine.absent.items()}
    if engine.replicas > 1:
        notes.append(
            f"replicated series: {engine.replicas} tensor-parallel ranks report the same; "
            "only tp_rank 0 is read, nothing is summed over ranks"
        )
    shortfalls.extend(
        (reason.reason, reason.remedy)
        for reason in engine.absent.values()
        if "not a measurement" in reason.reason or "processes report" in reason.reason
    )
    _speculation(engine, reading, facts, absent, notes, shortfalls)
    _forwards(engine, reading, facts, absent, shortfalls)
    _own(engine, facts)
    _load(engine, facts, notes, shortfalls)
    return facts, absent


def _speculation(
    engine: Engine, reading: Reading, facts: dict[str, Any], absent: dict[str, str], notes: list[str],
    shortfalls: list[tuple[str, str | None]],
) -> None:  # fmt: skip
    """Correct what the speculation gauges pretend."""
    values = engine.values
    verified = "target_verify" in engine.forward_seconds or "accept_length" in engine.own
    if not verified and not any(name in values or name in engine.per_part for name in SPEC_QUANTITIES):
        facts["spec"] = "absent"
        absent["spec"] = "no speculation metrics: an old version, or the server does not speculate"
        return
    length = values.get("accept_length")
    if length is not None and length < 1.0:
        # A verify yields at least the bonus token, so 0 is "nothing measured", never a length.
        for name in ("accept_length", "accept_rate"):
            facts.pop(name, None)
        if length != 0.0:
            reason = f"accept length {length:g} is below 1, which cannot be"
            shortfalls.append((reason, None))
        elif engine.engine_type == "prefill":
            reason = "0: a prefill server verifies nothing; ask the decode server"
            facts["spec"] = "absent"
        elif values.get("spec_steps") == 0 or values.get("draft_tokens") == 0:
            reason = "0: the server does not speculate"
            facts["spec"] = "absent"
            absent["spec"] = "the speculation gauges are there and 0: the server does not speculate"
        elif values.get("spec_steps") or values.get("draft_tokens") or values.get("verify_calls"):
            reason = "0: not measured yet, the gauge moves every decode log interval (40 steps)"
            shortfalls.append((f"accept length is {reason}", "send requests long enough, then scrape again"))
        else:
            reason = "0: no speculation, or the first decode log interval (40 steps) is not over"
            facts["spec"] = "unknown"
            if values.get("gen_tok_s"):  # an interval has passed, and no verify was in it
                reason = "0 although tokens are generated: the server does not speculate"
                facts["spec"] = "absent"
            else:
                shortfalls.append((f"accept length is {reason}", "send a long request, then scrape again"))
        absent["accept_length"] = absent["accept_rate"] = reason
    elif length is not None:
        facts["spec"] = "present"
        if length == 1.0:
            notes.append("accept length exactly 1.00: no draft token is ever accepted; look at the drafter")
        _rate(engine, reading, facts, notes)
    else:
        facts.setdefault("spec", "present")
    if values.get("running") == 0 and length is not None and length >= 1.0:
        notes.append("no request runs: the accept length is of the last interval, not of now")


def _rate(engine: Engine, reading: Reading, facts: dict[str, Any], notes: list[str]) -> None:
    """Say what the rate is a ratio of: its meaning has changed between versions."""
    length, rate = engine.values.get("accept_length"), engine.values.get("accept_rate")
    if length is None or not rate:
        return
    definition = reading.rate_definition
    if definition is None:
        facts["accept_rate_definition"] = "unknown"
        notes.append(
            "accept rate: its meaning depends on the version, and no help text is here; compare lengths"
        )
        return
    facts["accept_rate_definition"] = definition
    numerator = length if definition == "length / draft tokens" else length - 1.0
    drafts = numerator / rate
    whole = round(drafts)
    if whole >= 1 and abs(drafts - whole) <= 0.05 * whole + 0.01 / rate * whole:
        shown = f"{length:.2f}" if numerator == length else f"({length:.2f}-1)"
        facts["accept_rate_is"] = f"{rate:.2f} = {shown}/{whole}"
        facts["draft_tokens_in_rate"] = whole


def _forwards(
    engine: Engine, reading: Reading, facts: dict[str, Any], absent: dict[str, str],
    shortfalls: list[tuple[str, str | None]],
) -> None:  # fmt: skip
    """Say whether forwards are timed: absent, empty and 0 all mean that the device timer is off."""
    timed = {name: seconds for name, seconds in engine.forward_seconds.items() if seconds > 0}
    if timed:
        facts["forward_seconds_total"] = {name: _tidy(seconds) for name, seconds in sorted(timed.items())}
    if "verify" in engine.own or timed.get("target_verify"):
        return
    speculates = facts.get("spec") == "present"
    if reading.timer_declared and not timed:
        idle = engine.values.get("generation_tokens") == 0 or engine.values.get("requests") == 0
        if idle:
            absent["verify_seconds"] = "no request has run yet"
            return
        reason = (
            "verify time not measured (device timer off): absent, empty or 0 all mean that while requests run"
        )
        absent["verify_seconds"] = reason
        if speculates or "target_verify" in engine.forward_seconds:
            shortfalls.append((reason, TIMER_REMEDY))
    elif speculates:
        absent["verify_seconds"] = "no verify was timed: the device timer is off, or the version has none"


def _own(engine: Engine, facts: dict[str, Any]) -> None:
    """Add the means of our own histograms: since the engine's start."""
    for name, histogram in engine.own.items():
        if histogram.mean is None:
            continue
        if name == "accept_length":
            facts["accept_length_mean"] = _tidy(histogram.mean)
            facts["verifies_counted"] = _tidy(histogram.count)
        elif name == "cycle_seconds":
            facts["cycle_seconds_mean"] = _tidy(histogram.mean)
        else:
            facts[f"{name}_seconds_mean"] = _tidy(histogram.mean)
    lengths = engine.own.get("accept_length")
    if lengths and lengths.count > 0 and engine.positions:
        facts["accepted_position_rate"] = {
            str(position): round(times / lengths.count, 4)
            for position, times in sorted(engine.positions.items())
        }


def _load(
    engine: Engine, facts: dict[str, Any], notes: list[str], shortfalls: list[tuple[str, str | None]]
) -> None:
    """See whether anything but token counts is there, and whether decode left its CUDA graph."""
    seen = {*engine.values, *engine.per_part}
    if seen & {"prompt_tokens", "generation_tokens"} and not seen & {*LOAD_QUANTITIES, "accept_length"}:
        shortfalls.append(
            (
                "old server: tokens only (no running, queued or throughput gauge)",
                "use a newer SGLang for load and speculation",
            )
        )
    if engine.values.get("running") == 0 and engine.values.get("gen_tok_s"):
        notes.append("no request runs: the throughput is of the last interval, not of now")
    without = sum(n for mode, n in engine.graph_passes.items() if mode in ("decode_none", "none"))
    within = sum(n for mode, n in engine.graph_passes.items() if mode not in ("decode_none", "none")
                 and not mode.startswith("prefill"))  # fmt: skip
    if without + within > 0:
        facts["cuda_graph_share"] = round(within / (without + within), 4)
        if within == 0:
            notes.append("no decode or verify ran in a CUDA graph")


def _explain_many(reading: Reading, answer: Explanation, shortfalls: list[tuple[str, str | None]]) -> None:
    """Several engines: each for itself, and sums only of what adds up within one model and kind."""
    entries = []
    for engine in reading.engines:
        notes: list[str] = []
        facts, absent = _facts(engine, reading, notes, shortfalls)
        entries.append({**facts, "absent": absent, "notes": notes})
    answer.facts["engines"] = entries
    kinds = {(engine.model, engine.engine_type) for engine in reading.engines}
    if len(kinds) == 1:
        answer.facts["model"] = reading.engines[0].model
        for name in ("running", "queued", "gen_tok_s"):
            values = [engine.values.get(name) for engine in reading.engines]
            if all(value is not None for value in values):
                answer.facts[name] = _tidy(sum(value for value in values if value is not None))
        answer.notes.append(
            f"{len(reading.engines)} engines of one model: load is summed, accept length never"
        )
        answer.absent["accept_length"] = "several engines: read each engine's own"
    else:
        reason = "several engines in one scrape (models or kinds differ): each read for itself, none summed"
        answer.notes.append(reason)
        for name in (*LOAD_QUANTITIES, "accept_length"):
            answer.absent[name] = reason


def _good_cause(reading: Reading) -> str:
    if len(reading.engines) > 1:
        return f"{len(reading.engines)} engines read, each for itself"
    engine = reading.engines[0]
    if engine.replicas > 1:
        return (
            f"replicated series: of {engine.replicas} tensor-parallel ranks only tp_rank 0 is read,"
            " ranks are not summed"
        )
    # Counters have parts of other kinds: streaming requests and the others.
    if any("dp_rank=" in part for parts in engine.per_part.values() for part in parts):
        return "data-parallel ranks: load is summed over them, nothing else"
    return "single reporting rank: all that is there was read"


def _why_nothing(reading: Reading) -> tuple[str, str | None]:
    """Given a text without an engine's metrics, say what it is instead, and what to do."""
    scrape = reading.scrape
    start = scrape.text_start.lstrip("\ufeff \n\r\t")
    lowered = start.lower()
    if not start:
        return (
            "empty: the server exports nothing (metrics off, or nothing has been measured since the start)",
            "start the engine with --enable-metrics; if it is on, send one request and scrape again",
        )
    if re.match(r"\[\d{4}-\d\d-\d\d[ T]", start):
        return "an engine's log instead of metrics", "`deploy-kit startup explain` reads it"
    if start.startswith(("{", "[")):
        if any(word in lowered for word in ("unauthorized", "api key", "401", "forbidden")):
            return (
                "JSON instead of metrics: the server refuses without a key (401)",
                "scrape with the API key",
            )
        if "not found" in lowered:
            return (
                "JSON instead of metrics: there is no /metrics here",
                "start the engine with --enable-metrics",
            )
        if '"resulttype"' in lowered or '"status":"success"' in lowered.replace(" ", ""):
            return "JSON instead of metrics: a Prometheus query's answer", "give the engine's own /metrics"
        return "JSON instead of metrics", "give the engine's /metrics"
    if start.startswith("<"):
        return (
            "an HTML page instead of metrics: a proxy's or another server's answer",
            "ask the engine's own port for /metrics",
        )
    if any(word in lowered[:200] for word in ("unauthorized", "forbidden")):
        return "the server refuses without a key (401)", "scrape with the API key"
    if lowered.startswith(("not found", "404")):
        return "there is no /metrics here (404)", "start the engine with --enable-metrics"
    if any(prefix in reading.other_prefixes for prefix in ROUTER_PREFIXES):
        return "a router's metrics: they say nothing about the engine", "scrape the engine itself"
    if lowered.startswith("curl:") or "connection refused" in lowered[:200]:
        return "no connection: nothing listens there, or it is still starting", "deploy-kit status"
    if "internal server error" in lowered[:200]:
        return (
            "the server failed to write its metrics (500)",
            "see the engine's log; a full or cleared PROMETHEUS_MULTIPROC_DIR does this",
        )
    if scrape.samples:
        whose = ", ".join(reading.other_prefixes[:6]) or "only deploy_kit_"
        return (
            f"metrics, but none of an SGLang engine (found: {whose})",
            "scrape an engine started with --enable-metrics; if a proxy renames metrics, keep sglang:",
        )
    if scrape.types or scrape.helps:
        return (
            "only headings: metrics are declared, none has a sample (nothing has run, or the text is cut)",
            "send one request and scrape again",
        )
    if scrape.ended:
        return (
            "an empty OpenMetrics text: the server exports nothing",
            "start the engine with --enable-metrics",
        )
    return "not metrics: no line can be read", "give the engine's /metrics"


def _join(readings: list[tuple[str, Reading]], explained: list[Explanation]) -> Explanation:
    """Several scrapes: the verdict that holds for them together, and what comparing them shows."""
    causes: list[str] = []
    notes: list[str] = []
    definitions = {r.rate_definition for _, r in readings if r.rate_definition}
    compared = [e for e in explained if "accept_rate_is" in e.facts]
    if len(compared) > 1:
        text = "compare the accept LENGTH across versions; the rate has changed meaning"
        drafts = {e.facts["draft_tokens_in_rate"] for e in compared}
        if len(definitions) > 1 or len(drafts) > 1:
            causes.append(text)
            notes.append(
                "a rate can be turned into a length only with the version's definition and draft tokens"
            )
    notes.extend(_restarts(readings))
    verdicts = [e.verdict for e in explained]
    verdict: Verdict = "ok"
    if all(v == "no-data" for v in verdicts):
        verdict = "no-data"
    elif any(v != "ok" for v in verdicts):
        verdict = "partial"
    bad = [e for e in explained if e.verdict != "ok"]
    causes += [e.cause for e in bad]
    remedies = [e.remedy for e in bad if e.remedy]
    facts: dict[str, Any] = {}
    for index, one in enumerate(explained, start=1):
        name = one.title.split()[0] if one.title and one.title.split()[0] not in facts else f"scrape_{index}"
        short = len(compared) == len(explained)
        facts[name] = one.facts["accept_rate_is"] if short else one.facts
    return Explanation(
        verdict,
        "; ".join(dict.fromkeys(causes)) or "all scrapes were read",
        "; ".join(dict.fromkeys(remedies)) or None,
        facts=facts,
        notes=notes,
        absent={name: reason for one in explained for name, reason in one.absent.items()},
        problems=_sum([one.problems for one in explained]),
        sections=explained,
    )


def _restarts(readings: list[tuple[str, Reading]]) -> list[str]:
    """Say where a counter went down between two scrapes of the same engine."""
    notes = []
    for (_, earlier), (title, later) in pairwise(readings):
        for engine in later.engines:
            before = [e for e in earlier.engines if (e.model, e.engine_type, e.worker)
                      == (engine.model, engine.engine_type, engine.worker)]  # fmt: skip
            for name in ("generation_tokens", "prompt_tokens", "requests", "verify_calls"):
                now = engine.values.get(name)
                past = before[0].values.get(name) if before else None
                if now is not None and past is not None and now < past:
                    where = f" ({title})" if title else ""
                    notes.append(
                        f"{name} went down from {past:g} to {now:g}{where}: the engine "
                        "was restarted; no difference or rate is taken across it"
                    )
                    break
    return notes


def _sum(counts: list[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for name, number in one.items():
            total[name] = total.get(name, 0) + number
    return total


def _tidy(value: float) -> float | int:
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


__all__ = ["Absent", "Explanation", "Verdict", "explain"]
