"""What a log ends with when its traceback is not in it: people paste the last line alone.

Read only when the log is over. While an engine lives, a line like these may be of something that was handled;
at the end of a log, with nothing after it that goes on, and in words that name a cause, it is the end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from deploy_kit.startup.blocks import ENDED_BY, FRAME
from deploy_kit.startup.causes import CAUSES, classify
from deploy_kit.startup.journal import Journal
from deploy_kit.startup.lines import Line
from deploy_kit.startup.lines_of_system import read_refused_binding
from deploy_kit.startup.rule import Place

TAIL_LINES = 48
MOST_LINES_AFTER = 16
# [TP3], TP3:, (rank 3): what people's own launchers write before a rank's words.
_RANK = re.compile(r"[\[(]?(?:TP|DP|PP|EP|[Rr]ank)[ _:-]?(?P<rank>\d{1,4})(?: \w+\d+)*[\])]?:?\s+(?=\S)")
# An exception's name ends in Error or Exception by custom; Hugging Face's and Triton's here do not.
_RAISED = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*"
    r"(?:[A-Za-z_]\w*(?:Error|Exception)(?:_\w+)?|OfflineModeIsEnabled|OutOfResources)): (?P<message>\S.*)$",
    re.DOTALL,
)
# Whoever prints an exception and goes on says so.
_HANDLED = re.compile(
    r"\b(?:ignor(?:ed|ing)|skipp(?:ed|ing)|fall(?:s|ing)?[ -]?back|retrying|trying again|continu(?:es|ing)"
    r"|harmless|non-?fatal|not fatal|deprecated|to silence|(?:will be|is) (?:used|disabled)"
    r"|us(?:ed|ing) .{0,60}instead|optional|warning|this is expected|using (?:the )?defaults?|defaulting to"
    r"|will (?:not )?be (?:un)?available)\b|[,;(-] ?(?:using|skip|disabling)\b",
    re.IGNORECASE,
)
_ACCESS = re.compile(r'"(?:GET|POST|PUT|HEAD|OPTIONS|DELETE) \S+ HTTP/')
_GOES_ON = re.compile(r"NCCL INFO|\[\d+/\d+\]|\d{1,3}%")


def read_last_words(journal: Journal, tail: Sequence[Line | None]) -> None:
    """Given the log's last lines (None: a line of a traceback or of the arguments), write down the failure
    that they tell, when nothing else has told one."""
    run = journal.run
    if run.ready or run.draining or run.finished or run.ended_code in (0, -9, 137):
        return
    if any(line is not None and _ACCESS.search(line.text[:300]) for line in tail):
        return  # it serves: whatever is raised is a request's
    for at in range(len(tail) - 1, max(-1, len(tail) - 1 - MOST_LINES_AFTER), -1):
        line = tail[at]
        if line is None:
            return
        if not line.indented and _read_last(journal, line, tail[:at], tail[at + 1 :]):
            return
        if _shows_progress(line):
            return


def _shows_progress(line: Line) -> bool:
    return (
        line.headed or ENDED_BY.match(line.text) is not None or _GOES_ON.search(line.text[:240]) is not None
    )


def _read_last(
    journal: Journal, line: Line, before: Sequence[Line | None], after: Sequence[Line | None]
) -> bool:
    """Return whether this line told the failure; what comes after it belongs to its message."""
    if not line.headed and read_refused_binding(journal, line):
        return True
    text = line.text
    prefix = _RANK.match(text)
    rank = line.rank
    if prefix is not None:
        text, rank = text[prefix.end() :], int(prefix["rank"])
    raised = _RAISED.match(text)
    if raised is None or _HANDLED.search(text[:2_000]):
        return False
    message = "\n".join([raised["message"], *(other.text for other in after if other is not None)])[:6_000]
    frames = _frames(before, line.stream)
    place = Place(
        frames="\n".join(f"{file}:{function}" for file, function in frames), phase=journal.run.phase
    )
    finding = classify(f"{raised['type']}: {message}", place)
    if finding is None or CAUSES[finding.id].secondary or finding.id in ("unknown", "assertion"):
        return False
    failure = journal.failure_of_line(line, raised["type"], message, None)
    failure.header = ""  # the line is the exception itself
    failure.rank = rank
    failure.frames = frames
    return True


def _frames(before: Sequence[Line | None], stream: str) -> list[tuple[str, str]]:
    """Return the frames of a traceback whose beginning is not in the log."""
    frames: list[tuple[str, str]] = []
    for line in reversed(before):
        if line is None or line.stream != stream or not line.indented:
            break
        frame = FRAME.match(line.text)
        if frame is not None:
            frames.append((frame["file"], frame["function"]))
    return frames[::-1]
