"""Traceback blocks: what was raised, where, in which rank, and whether that ended the engine.

A block may have other ranks' lines between its own, may be chained ("During handling …"), and may go on after
the exception's own line. Never is a word in a line enough: a block must have its beginning and its exception.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from deploy_kit.startup.lines import Line

BEGIN = "Traceback (most recent call last):"
_BEGIN = re.compile(r"(?P<header>.*?)Traceback \(most recent call last\):\s*$")
FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<function>\S+)')
_RAISED = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*|\w+(?:Error|Exception)))(?::\s?(?P<message>.*))?$"
)
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
ENDED_BY = re.compile(r"\s*(?:[\w /().-]+:\s*)?\d{1,3}%(?:\||\s*Completed)|INFO:|WARNING:|ERROR:")
# What the engine prints before the traceback of an exception that ends one of its processes.
_FATAL_HEADER = re.compile(
    r"(?:\w*(?:Scheduler|DetokenizerManager|TokenizerManager|DataParallelController|MultiDetokenizerRouter"
    r"|MultiTokenizerRouter))(?: \w+)? hit an exception:|Initialization failed\. warmup error:"
)
# What comes before the traceback of something that was handled.
_HANDLED_HEADER = re.compile(
    r"Exception in ASGI application|Exception ignored in|Task exception was never retrieved"
    r"|Exception in callback|--- Logging error ---|Error (?:getting|in) |Future exception was never"
    r"|Unhandled exception in event loop|.*\b(?:ignored|skipp(?:ed|ing)|fall(?:ing)? back|retry(?:ing)?)\b",
    re.IGNORECASE,
)
_HANDLED_OPENERS = re.compile(
    r"ERROR:\s+Exception in ASGI application|Exception ignored in|Task exception was never retrieved"
    r"|Exception in callback|--- Logging error ---|Future exception was never|OpenAIServingResponses init"
    r"|post-warmup freeze_gc failed"
)
MAX_FRAMES = 24
MAX_MESSAGE = 6_000
MAX_CONTINUATION_LINES = 40
MAX_FOREIGN_LINES = 400
MAX_OPEN = 32


@dataclass
class Raised:
    """One exception of a chain."""

    type: str
    message: str

    @property
    def text(self) -> str:
        """Return type and message as the interpreter prints them."""
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass
class Failure:
    """One traceback, complete or not. `fatal`: True when its header says that a process ends by it, False
    when it says that it was handled, None when nothing says either."""

    header: str
    rank: int | None
    stamp: str | None
    fatal: bool | None
    phase: str = "starting"
    percent: float | None = None
    second_load: bool = False
    ready_before: bool = False
    order: int = 0
    chain: list[Raised] = field(default_factory=list)
    frames: list[tuple[str, str]] = field(default_factory=list)

    @property
    def raised(self) -> Raised | None:
        """The exception that came out at the end of the chain."""
        return self.chain[-1] if self.chain else None

    @property
    def frame_text(self) -> str:
        """The frames as "file:function" lines, for the rules."""
        return "\n".join(f"{file}:{function}" for file, function in self.frames)


class BlockReader:
    """Follows the blocks of one log. `feed` says whether the line belonged to a block."""

    def __init__(self) -> None:
        self._open: dict[str, list[Failure]] = {}
        self._ended: dict[str, tuple[Failure, int]] = {}
        self._foreign: dict[str, int] = {}
        self._opener: dict[str, str] = {}
        self.begun: Failure | None = None
        self.completed: Failure | None = None

    @property
    def idle(self) -> bool:
        """Whether no block is open or may go on (then most lines need no look)."""
        return not self._open and not self._ended

    def feed(self, line: Line) -> bool:
        """Given the next line, return whether it is part of a block.

        `begun` is the failure that it began, `completed` the one whose exception it named (else None).
        """
        self.begun = self.completed = None
        key = line.stream
        text = line.text
        if BEGIN in text:
            match = _BEGIN.match(text)
            if match is not None and not line.indented:
                self._begin(line, match["header"].strip())
                return True
        self.note_opener(line)
        waiting = self._open.get(key)
        if waiting:
            return self._inside(line, waiting)
        ended = self._ended.get(key)
        if ended is not None:
            return self._after(line, ended)
        return False

    def note_opener(self, line: Line) -> None:
        """Remember a line after which a traceback is of something that was handled."""
        text = line.text
        if not text or line.indented:
            return
        if text[0] in "EFTO-p" and _HANDLED_OPENERS.match(text):
            if len(self._opener) < MAX_OPEN:
                self._opener[line.stream] = text[:200]
        elif line.headed and line.stream in self._opener:
            del self._opener[line.stream]

    def _begin(self, line: Line, header: str) -> None:
        key = line.stream
        opener = self._opener.pop(key, "")
        ended = self._ended.pop(key, None)
        waiting = self._open.setdefault(key, [])
        if not header and not line.headed and ended is not None and ended[1] < 0:
            # A traceback without a header directly after a chain's words goes on with the same failure.
            waiting.append(ended[0])
            return
        fatal: bool | None = None
        if _FATAL_HEADER.search(header):
            fatal = True
        elif opener or (header and _HANDLED_HEADER.match(header)):
            fatal = False
        failure = Failure(header or opener, line.rank, line.stamp, fatal)
        if len(waiting) < MAX_OPEN:
            waiting.append(failure)
        self._foreign[key] = 0
        self.begun = failure

    def _inside(self, line: Line, waiting: list[Failure]) -> bool:
        key = line.stream
        if line.headed or ENDED_BY.match(line.text):
            self._foreign[key] = self._foreign.get(key, 0) + 1
            if self._foreign[key] > MAX_FOREIGN_LINES:
                self._open.pop(key, None)
            return False
        text = line.text
        if line.indented or not text or text.startswith(("^", "~", "[Previous line repeated")):
            frame = FRAME.match(text)
            if frame is not None:
                target = waiting[0]
                target.frames.append((frame["file"], frame["function"]))
                if len(target.frames) > MAX_FRAMES:
                    del target.frames[MAX_FRAMES // 2]
            return True
        raised = _RAISED.match(text)
        if raised is None:
            self._foreign[key] = self._foreign.get(key, 0) + 1
            if self._foreign[key] > MAX_FOREIGN_LINES:
                self._open.pop(key, None)
            return False
        failure = waiting.pop(0)
        if not waiting:
            self._open.pop(key, None)
        failure.chain.append(Raised(raised["type"], (raised["message"] or "")[:MAX_MESSAGE]))
        if len(failure.chain) > 6:
            del failure.chain[1]
        self._ended[key] = (failure, 0)
        self.completed = failure
        return True

    def _after(self, line: Line, ended: tuple[Failure, int]) -> bool:
        failure, count = ended
        key = line.stream
        text = line.text
        if text.startswith(_CHAIN):
            self._ended[key] = (failure, -1)
            return True
        if count < 0:
            raised = _RAISED.match(text) if not line.headed and not line.indented else None
            if raised is not None:  # some loggers leave the second "Traceback" out
                failure.chain.append(Raised(raised["type"], (raised["message"] or "")[:MAX_MESSAGE]))
                self._ended[key] = (failure, 0)
                self.completed = failure
                return True
            return not line.headed and not text
        if line.headed or ENDED_BY.match(text) or count >= MAX_CONTINUATION_LINES or _UNRELATED.match(text):
            # Other ranks' lines may stand before the chain's words; the message itself has ended.
            self._ended.pop(key, None)
            return False
        last = failure.raised
        if last is not None and text and len(last.message) < MAX_MESSAGE:
            last.message += "\n" + text[:1_000]
        self._ended[key] = (failure, count + 1)
        return True


# Lines without a time stamp that other programs write, and that end an exception's text.
_UNRELATED = re.compile(
    r"(?:Exception ignored in|--- Logging error|Task exception was|Exception in callback|\[Gloo\]|NCCL "
    r"|\S+:\d+:\d+ \[\d+\] (?:\S+:\d+ )?NCCL |\S+: line \d+: |NVRM: "
    r"|setting (?:membind|cpunodebind|cpubind|physcpubind): |Killed$|terminate called|Fatal Python error"
    r"|Rank \d+ scheduler died|RuntimeError: Rank \d+ scheduler died|usage: |\[[WEI]\d{3,4} |---|# cmd"
    r"|[\w.-]+ exited with code|\[\s*\d+\.\d+\] |\*\*\* |/\S+\.py:\d+: \w*Warning)"
)
