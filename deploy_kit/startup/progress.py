"""Progress bars and the numbers of the phase lines."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

# tqdm's own form (a bar between two upright strokes) and the loaders' form (the word Completed).
_BAR = re.compile(
    r"\s*(?P<what>[^|\[\]]{0,160}?):?\s*(?P<percent>\d{1,3})%(?: Completed \||\|[^|]{0,200}\|)"
    r"\s*(?P<done>\d+)/(?P<total>\d+)"
    r"\s*\[(?P<elapsed>[\d:]+)<(?P<left>[\d:?]+),\s*(?P<rate>[^\]]*)\]"
)
_RATE = re.compile(r"([\d.]+)\s*(s/it|it/s)")
_CAPTURED_SIZE = re.compile(r"\((?:bs|num_tokens)=(\d+)")


@dataclass(frozen=True)
class Progress:
    """One reading of a bar. `kind`: weights, capture, compile, other; seconds per item, None if unknown."""

    kind: str
    what: str
    done: int
    total: int
    percent: int
    elapsed_seconds: int
    remaining_seconds: int | None
    seconds_per_item: float | None
    batch_size: int | None = None

    @property
    def ratio(self) -> float:
        """The part that is done, 0 to 1."""
        return min(1.0, self.done / self.total) if self.total else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the reading as JSON values."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def read_bar(text: str) -> tuple[Progress, str] | None:
    """Given a line, return the bar that it begins with and whatever was written after the bar."""
    match = _BAR.match(text)
    if match is None:
        return None
    what = match["what"].strip()
    lower = what.lower()
    if "shards" in lower or lower.startswith(("loading safetensors", "loading pt", "loading np")):
        kind = "weights"
    elif lower.startswith("capturing"):
        kind = "capture"
    elif (
        "deepgemm" in lower or "compil" in lower or "autotun" in lower or "jit" in lower or "tuning" in lower
    ):
        kind = "compile"
    else:
        kind = "other"
    rate = _RATE.match(match["rate"].strip())
    per_item = None
    if rate is not None and float(rate.group(1)) > 0:
        per_item = float(rate.group(1)) if rate.group(2) == "s/it" else 1 / float(rate.group(1))
    size = _CAPTURED_SIZE.search(what)
    progress = Progress(
        kind,
        what,
        int(match["done"]),
        int(match["total"]),
        int(match["percent"]),
        clock_seconds(match["elapsed"]) or 0,
        clock_seconds(match["left"]),
        per_item,
        None if size is None else int(size.group(1)),
    )
    return progress, text[match.end() :].lstrip()


def clock_seconds(text: str) -> int | None:
    """Given tqdm's time ("09:10", "1:02:03"), return seconds; None for "?".

    >>> clock_seconds("09:10")
    550
    """
    parts = text.split(":")
    if not all(part.isdecimal() for part in parts):
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return seconds
