"""A log as it arrives: bytes cut anywhere, carriage returns, endless lines, prefixes of Docker and ranks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from deploy_kit.pasted import ESCAPES

# Of a line longer than HEAD + TAIL only its beginning and its end are kept.
HEAD_BYTES = 24_576
TAIL_BYTES = 4_096
_GAP = b" [...] "
_ENDS = re.compile(rb"[\r\n]")


class LineSplitter:
    """Turns chunks into lines. Where the chunks were cut never changes the lines; empty lines are left out.

    A line ends at a line feed or a carriage return (progress bars). Memory is bounded by HEAD + TAIL.
    """

    def __init__(self) -> None:
        self._begun = bytearray()
        self._cut = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Given the next bytes, yield each line that they complete."""
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r", b"\n")
        first, *rest = chunk.split(b"\n")
        self._extend(first)
        if not rest:
            return
        line = self.take_rest()
        if line:
            yield line
        last = rest.pop()
        for piece in rest:
            if piece:
                yield piece if len(piece) <= HEAD_BYTES + TAIL_BYTES else _shorten(piece)
        self._extend(last)

    def unfinished(self) -> bytes:
        """Return the line that has begun but not ended."""
        if self._cut or len(self._begun) > HEAD_BYTES + TAIL_BYTES:
            return bytes(self._begun[:HEAD_BYTES]) + _GAP + bytes(self._begun[-TAIL_BYTES:])
        return bytes(self._begun)

    def take_rest(self) -> bytes:
        """Return the unfinished line and forget it (the end of the stream)."""
        line = self.unfinished()
        self._begun.clear()
        self._cut = False
        return line

    def _extend(self, piece: bytes) -> None:
        self._begun += piece
        if len(self._begun) > HEAD_BYTES + 2 * TAIL_BYTES:
            del self._begun[HEAD_BYTES:-TAIL_BYTES]
            self._cut = True


_MARGIN = re.compile(rb"(?:> ?)+|[ \t]+")


def margin_of(beginning: bytes) -> bytes:
    """Given the beginning of a pasted log, return what stands before each of its lines: a quote's `> ` or
    the indentation of a code block; nothing when a line is without it."""
    margin: bytes | None = None
    for line in beginning.split(b"\n"):
        if not line.strip(b"> \t\r"):
            continue
        found = _MARGIN.match(line)
        if found is None:
            return b""
        own = found.group()
        if margin is None:
            margin = own
        while not own.startswith(margin):
            margin = margin[:-1]
    return margin or b""


def _shorten(line: bytes) -> bytes:
    return line[:HEAD_BYTES] + _GAP + line[-TAIL_BYTES:]


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its prefixes.

    `rank` is the tensor-parallel rank of the tag (None when it has none), `tag` the whole ("DP0 TP3 EP3"),
    `stamp` the text of the engine's own time stamp, `stream` whatever came before it (the Compose service,
    `[rank3]`), so that blocks of different streams are not mixed. `indented` says that the text began with
    white space, as the inner lines of a traceback do.
    """

    text: str
    rank: int | None = None
    tag: str | None = None
    stamp: str | None = None
    stream: str = ""
    indented: bool = False

    @property
    def headed(self) -> bool:
        """Whether the engine's logger wrote the beginning of this line (it has a time stamp)."""
        return self.stamp is not None


# What carried the log writes before each line: Compose (the service and a bar), Docker and Kubernetes (a time
# stamp, the stream), Ray (the actor in parentheses), journald (date, host, unit).
_CARRIER = re.compile(
    r"(?P<service>[\w.-]+[ \t]*\|[ \t]?)"
    r"|(?P<time>\[?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)\]?[ \t]"
    r"(?:std(?:out|err)[ \t][FP][ \t])?)"
    r"|(?P<actor>\([\w:.-]+ pid=\d+(?:, ip=[\d.]+)?\)[ \t]?)"
    r"|(?P<journal>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]+ [\w.@/-]+(?:\[\d+\])?:[ \t]?)"
)
_RANK_PREFIX = re.compile(r"\[rank(\d+)\]:[ \t]?")
_TAG = re.compile(
    r"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)((?: [A-Z]{2,6}\d+| [a-z_]+[:=]?\d+)*)\][ \t]?"
)
_TP = re.compile(r"\bTP(\d+)")


def _of_json_file(text: str) -> str:
    """Docker's json-file driver: each line is an object, its text the value of "log"."""
    try:
        said = json.loads(text)["log"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return text
    return ESCAPES.sub("", said).rstrip("\r\n") if isinstance(said, str) else text


def parse_line(raw: bytes | str) -> Line:
    """Given a raw line, return its text, rank and time stamp; bad bytes are replaced, escapes removed."""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    if "\x1b" in text:
        text = ESCAPES.sub("", text)
    if "\0" in text:
        text = text.replace("\0", "")
    if text.startswith('{"log":"'):
        text = _of_json_file(text)
    stream = ""
    rank: int | None = None
    match = _TAG.match(text)
    if match is None:
        for _ in range(3):
            carrier = _CARRIER.match(text)
            if carrier is None:
                break
            if carrier.lastgroup in ("service", "actor"):
                stream += carrier.group().strip(" \t|")
            text = text[carrier.end() :]
        prefix = _RANK_PREFIX.match(text)
        if prefix is not None:
            rank = int(prefix.group(1))
            stream += f"[rank{rank}]"
            text = text[prefix.end() :]
        match = _TAG.match(text)
    if match is None:
        indented = text[:1] in (" ", "\t")
        return Line(text.rstrip(), rank=rank, stream=stream, indented=indented)
    tag = match.group(2).strip() or None
    if tag is not None:
        tp = _TP.search(tag)
        rank = int(tp.group(1)) if tp is not None else rank
    return Line(text[match.end() :].rstrip(), rank, tag, match.group(1), stream)


_LIMIT_SECONDS = 60 * 60 * 24 * 30


def seconds_between(earlier: str | None, later: str | None) -> float | None:
    """Given two time stamps of the log, return the seconds between them; None when the clock jumped back
    or far ahead, or one is missing."""
    from datetime import datetime

    if earlier is None or later is None:
        return None
    try:
        a, b = (datetime.fromisoformat(stamp.replace(",", ".")) for stamp in (earlier, later))
    except ValueError:
        return None
    seconds = (b - a).total_seconds()
    return seconds if 0 <= seconds < _LIMIT_SECONDS else None
