"""A line parser for metrics text that survives what servers, proxies and copies do to it.

prometheus_client's own parser stops at the first bad line; a scrape that is half good must still give its
good half, with the bad lines counted. Both the Prometheus text format and OpenMetrics are read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:.]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|(?=\}))')
_VALUE = re.compile(r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|[Ii]nf(?:inity)?|[Nn]a[Nn])")
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
MOST_PROBLEMS_KEPT = 20


@dataclass(frozen=True)
class Sample:
    """One line of a scrape. `value` may be NaN or infinite here; readers decide what that means."""

    name: str
    labels: Mapping[str, str]
    value: float
    line: int

    def without(self, *names: str) -> tuple[tuple[str, str], ...]:
        """Return the labels as a sortable key, leaving out `names`."""
        return tuple(sorted((key, value) for key, value in self.labels.items() if key not in names))


@dataclass(frozen=True)
class Problem:
    """Something wrong with a scrape: `kind` is countable, `text` is for people."""

    kind: str
    text: str


@dataclass
class Scrape:
    """What one metrics text holds."""

    samples: list[Sample] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    helps: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    problem_counts: dict[str, int] = field(default_factory=dict)
    ended: bool = False  # an OpenMetrics "# EOF" was seen
    text_start: str = ""

    def report(self, kind: str, text: str) -> None:
        """Count a problem; its text is kept for the first few of them."""
        self.problem_counts[kind] = self.problem_counts.get(kind, 0) + 1
        if len(self.problems) < MOST_PROBLEMS_KEPT:
            self.problems.append(Problem(kind, text))

    def named(self, name: str) -> list[Sample]:
        """Return the samples of one metric."""
        return [sample for sample in self.samples if sample.name == name]


def parse(text: str) -> Scrape:
    """Given metrics text, return what can be read of it. Never raises; what cannot be read is counted.

    A last line without a line end is dropped: its number may have lost digits.
    """
    scrape = Scrape(text_start=text[:2000])
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    cut = lines.pop() if lines else ""
    for number, line in enumerate(lines, start=1):
        _read_line(scrape, line.strip(), number)
    cut = cut.strip()
    if cut == "# EOF":
        scrape.ended = True
    elif cut and not cut.startswith("#"):
        scrape.report("truncated", f"the text ends inside a line: {_shown(cut)}")
    _refuse_contradictions(scrape)
    return scrape


def _read_line(scrape: Scrape, line: str, number: int) -> None:
    if not line:
        return
    if line.startswith("#"):
        words = line[1:].split(None, 2)
        if words[:1] == ["EOF"]:
            scrape.ended = True
        elif len(words) >= 2 and words[0] == "TYPE":
            scrape.types.setdefault(words[1], words[2].strip() if len(words) > 2 else "untyped")
        elif len(words) >= 2 and words[0] == "HELP":
            scrape.helps.setdefault(words[1], words[2] if len(words) > 2 else "")
        return
    sample = _sample(line, number)
    if isinstance(sample, str):
        scrape.report("unreadable line", f"line {number}: {sample}: {_shown(line)}")
    else:
        scrape.samples.append(sample)


def _sample(line: str, number: int) -> Sample | str:
    matched = _NAME.match(line)
    if matched is None:
        return "no metric name"
    name, position = matched.group(), matched.end()
    labels: dict[str, str] = {}
    rest = line[position:].lstrip()
    if rest.startswith("{"):
        position = 1
        while not rest[position:].lstrip().startswith("}"):
            pair = _LABEL.match(rest, position)
            if pair is None:
                return "labels that cannot be read"
            if pair.group(1) in labels:
                return f"label {pair.group(1)} twice"
            labels[pair.group(1)] = re.sub(
                r"\\.", lambda found: _ESCAPES.get(found.group(), found.group()), pair.group(2)
            )
            position = pair.end()
        rest = rest[rest.index("}", position) + 1 :]
    elif position < len(line) and not line[position].isspace():
        return "no space after the metric name"
    rest = rest.split(" # ", 1)[0]  # an OpenMetrics exemplar
    words = rest.split()
    if not words or len(words) > 2 or _VALUE.fullmatch(words[0]) is None:
        return "no number"
    if len(words) == 2 and _VALUE.fullmatch(words[1]) is None:
        return "no timestamp after the number"
    return Sample(name, labels, float(words[0]), number)


def _refuse_contradictions(scrape: Scrape) -> None:
    """Drop series that are there twice with different values: neither can be trusted."""
    seen: dict[tuple[str, tuple[tuple[str, str], ...]], list[Sample]] = {}
    for sample in scrape.samples:
        seen.setdefault((sample.name, sample.without()), []).append(sample)
    kept: list[Sample] = []
    for (name, _labels), samples in seen.items():
        first = samples[0]
        same = all(
            other.value == first.value or (math.isnan(other.value) and math.isnan(first.value))
            for other in samples
        )
        if same:
            kept.append(first)
        else:
            lines = ", ".join(str(sample.line) for sample in samples[:4])
            scrape.report(
                "contradicting series", f"{name} is there {len(samples)} times (lines {lines}), not the same"
            )
    scrape.samples = kept


def _shown(line: str) -> str:
    return repr(line if len(line) <= 100 else line[:97] + "...")
