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


# What carried the log writes before each line: Compose and `docker service logs` (the service and a bar),
# Docker and Kubernetes (a time stamp, the stream), `kubectl logs --prefix` (the pod in brackets), stern
# (pod and container), Ray (the actor in parentheses), journald and syslog (date, host, unit), klog. Each
# asks for so much of its carrier's form that a line of the engine's own cannot be taken for it: the host
# after an ISO stamp needs a process id behind the unit, klog a Go file, stern the random endings of a
# Deployment's pod. The looks ahead at one or two characters are for speed: most lines have no carrier.
_ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d(?::?\d\d)?)"
_HOST_AND_UNIT = r"[\w.-]+ (?:[\w.@/\\()-]+\[\d+\]|kernel):"
_END = r"(?:[ \t]|$)"
_RANDOM = "[bcdfghjklmnpqrstvwxz2456789]"
_CARRIER = re.compile(
    r"(?P<service>[\w.-]+(?:@[\w.-]+)?[ \t]*\|[ \t]?)"
    rf"|(?P<time>(?=[<\[\d])(?:<\d{{1,3}}>)?\[?{_ISO}\]?{_END}"
    rf"(?:std(?:out|err)[ \t][FP]{_END}|{_HOST_AND_UNIT}{_END})?)"
    rf"|(?P<pod>\[pod/[\w.-]+/[\w.-]+\]{_END})"
    r"|(?P<actor>\([\w:.-]+ pid=\d+(?:, ip=[\d.]+)?\)[ \t]?)"
    r"|(?P<journal>(?=[A-Z][a-z]|<)(?:<\d{1,3}>)?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?"
    r" [\w.-]+ [\w.@/-]+(?:\[\d+\])?:[ \t]?)"
    rf"|(?P<full>[A-Z][a-z]{{2}} \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? [\w+:-]+ {_HOST_AND_UNIT}{_END})"
    rf"|(?P<syslog>(?=[<1])(?:<\d{{1,3}}>)?1 {_ISO} \S+ \S+ \S+ \S+"
    rf" (?:-|(?:\[(?:[^\]\\]|\\.)*\])+){_END}\ufeff?)"
    rf"|(?P<klog>[IWEF]\d{{4}} \d\d:\d\d:\d\d\.\d{{6}} +\d+ [\w./-]+\.go:\d+\]{_END})"
    rf"|(?P<stern>[a-z][a-z0-9-]{{0,62}}-{_RANDOM}{{8,10}}-{_RANDOM}{{5}} [a-z0-9][a-z0-9-]{{0,62}}{_END})"
)
# Those that say which of several processes wrote the line.
_NAMED = frozenset({"service", "pod", "actor", "stern"})
# No carrier begins so; the lines inside a traceback do.
_NEVER_CARRIED = frozenset(" \t|#=~^*'\"")
_RANK_PREFIX = re.compile(r"\[rank(\d+)\]:[ \t]?")
_TAG = re.compile(
    r"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)((?: [A-Z]{2,6}\d+| [a-z_]+[:=]?\d+)*)\][ \t]?"
)
_TP = re.compile(r"\bTP(\d+)")


# The keys under which a collector keeps the line, and of which one at least it must stand beside (None: the
# key alone is enough), for engines and clients write objects with a "message" themselves.
_LINE_KEYS: tuple[tuple[str, frozenset[str] | None], ...] = (
    ("log", None),
    ("MESSAGE", frozenset({"__REALTIME_TIMESTAMP"})),
    ("message", frozenset({"stream", "kubernetes", "docker", "container_name", "container_id"})),
    ("msg", frozenset({"stream", "kubernetes", "docker", "container_name", "container_id"})),
)


def _of_json(text: str) -> str:
    """A line that is an object (Docker's json-file driver, a collector, `journalctl -o json`): its text."""
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for key, beside in _LINE_KEYS if isinstance(entry, dict) else ():
        said = entry.get(key)
        if isinstance(said, str) and (beside is None or not beside.isdisjoint(entry)):
            return ESCAPES.sub("", said).strip("\r\n")
    return text


def parse_line(raw: bytes | str) -> Line:
    """Given a raw line, return its text, rank and time stamp; bad bytes are replaced, escapes removed."""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    if "\x1b" in text:
        text = ESCAPES.sub("", text)
    if "\0" in text:
        text = text.replace("\0", "")
    if text.startswith("{") and text.rstrip().endswith("}"):
        text = _of_json(text)
    stream = ""
    rank: int | None = None
    match = _TAG.match(text)
    if match is None:
        for _ in range(3):
            carrier = None if text[:1] in _NEVER_CARRIED else _CARRIER.match(text)
            if carrier is None:
                break
            if carrier.lastgroup in _NAMED:
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
