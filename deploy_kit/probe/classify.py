"""What became of a candidate's ranks, from what each of them said and how it ended. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["ok", "wrong", "hang", "crash", "unsupported", "not-run"]

# A rank that lost its peer says one of these; the peer's own end is the cause.
_SECOND_HAND = re.compile(
    r"connection (closed|reset|refused)|closed by peer|broken pipe|remote process exited|socket timeout|"
    r"peer|timed out waiting|store|heartbeat",
    re.IGNORECASE,
)
# Folders are of no use to the reader, and differ from machine to machine.
_FOLDERS = re.compile(r"(?<![\w.])(?:/[\w.+@-]+)+/(?=[\w.+@-])")
_NCCL_LINE = re.compile(r"NCCL (WARN|ERROR)\s+(?P<text>.+)")


@dataclass(frozen=True)
class RankView:
    """One rank when the step ended or ran out of time."""

    rank: int
    finished: bool  # it answered the step
    at: str = ""  # the last thing it said it was about to do
    progress: int = 0  # how many such things it said in this step
    failure: dict[str, str] | None = None  # kind, type, message
    exit_code: int | None = None  # negative: killed by that signal
    stderr: Sequence[str] = ()


@dataclass(frozen=True)
class Outcome:
    """What became of a candidate."""

    status: Status
    step: str = ""
    ranks: tuple[int, ...] = ()
    cause: str = ""
    evidence: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        """Leave folders out of what libraries said."""
        object.__setattr__(self, "cause", _FOLDERS.sub("", self.cause))
        object.__setattr__(self, "evidence", tuple(_FOLDERS.sub("", line) for line in self.evidence))

    def as_dict(self) -> dict[str, object]:
        """Return the outcome for JSON."""
        return {
            "status": self.status,
            "step": self.step,
            "ranks": list(self.ranks),
            "cause": self.cause,
            "evidence": list(self.evidence),
        }

    def text(self) -> str:
        """Return the outcome in one line."""
        if self.status == "ok":
            return "ok"
        place = f" in step {self.step}" if self.step else ""
        ranks = f", rank {', '.join(map(str, self.ranks))}" if self.ranks else ""
        return f"{self.status}{place}{ranks}: {self.cause}"


def classify_failure(step: str, views: Sequence[RankView]) -> Outcome:
    """Given the ranks after at least one of them failed or ended, return what happened and to whom first."""
    kinds: tuple[Status, ...] = ("unsupported", "wrong")
    for status in kinds:
        said = [view for view in views if view.failure is not None and view.failure["kind"] == status]
        if said and not any(_died(view) for view in views):
            cause = said[0].failure["message"] if said[0].failure else ""
            return Outcome(status, step, tuple(view.rank for view in said), cause)
    blamed = _most_telling(views)
    return Outcome(
        "crash", step, tuple(view.rank for view in blamed), _cause(blamed[0]), _evidence(blamed[0])
    )


def classify_hang(step: str, limit_seconds: float, views: Sequence[RankView]) -> Outcome:
    """Given the ranks when the step's time was up, return which of them is behind and where.

    When all unfinished ranks are at the same place, none is behind: they wait inside the collective, which
    points to the transport, not to a rank.
    """
    unfinished = [view for view in views if not view.finished]
    least = min(view.progress for view in unfinished)
    behind = [view for view in unfinished if view.progress == least]
    # A rank's Python stack tells one that never entered the collective from those that wait in it.
    outside = [view for view in behind if _stack(view) and not _in_collective(view)]
    if outside and len(outside) < len(unfinished):
        behind = outside
    where = behind[0].at or "no place named"
    limit = f"{limit_seconds:g} s"
    if len(behind) == len(views):
        cause = (
            f"all ranks still at: {where}, after {limit}; no rank is behind, which points to the transport"
        )
    else:
        waiting = ", ".join(str(view.rank) for view in views if view not in behind)
        cause = f"still at: {where}, after {limit}; rank {waiting} waited"
    evidence = tuple(f"rank {view.rank}: {line}" for view in behind for line in _stack(view)[:6])
    return Outcome("hang", step, tuple(view.rank for view in behind), cause, evidence)


def _died(view: RankView) -> bool:
    return view.exit_code is not None and view.exit_code < 0


def _most_telling(views: Sequence[RankView]) -> list[RankView]:
    """Return the ranks that failed first-hand: killed by a signal, else with an error of their own."""
    killed = [view for view in views if _died(view)]
    if killed:
        return killed
    failed = [view for view in views if view.failure is not None]
    first_hand = [
        view for view in failed if not _SECOND_HAND.search(view.failure["message"] if view.failure else "")
    ]
    ended = [view for view in views if view.exit_code is not None]
    return first_hand or failed or ended or list(views)


def _cause(view: RankView) -> str:
    warning = _nccl_warning(view.stderr)
    if _died(view):
        number = -(view.exit_code or 0)
        name = signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"
        hint = "; the kernel does this when memory runs out" if name == "SIGKILL" else ""
        return f"the process was ended by {name}{hint}" + (f"; NCCL said: {warning}" if warning else "")
    if view.failure is not None:
        message = _telling_line(view.failure["message"])
        text = f"{view.failure['type']}: {message}" if message else view.failure["type"]
        return text + (f"; NCCL said: {warning}" if warning and warning not in text else "")
    return f"the process ended with code {view.exit_code} and said nothing" + (
        f"; {warning}" if warning else ""
    )


def _telling_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    for position, line in enumerate(lines):
        if line.startswith("Last error") and position + 1 < len(lines):
            return f"{lines[0][:200]} ({' '.join(lines[position + 1 :])[:300]})"
    return lines[0][:400] if lines else ""


def _nccl_warning(stderr: Sequence[str]) -> str:
    found = [match["text"].strip() for line in stderr if (match := _NCCL_LINE.search(line))]
    return found[0][:300] if found else ""


def _evidence(view: RankView) -> tuple[str, ...]:
    return tuple(line[:300] for line in view.stderr if line.strip())[-6:]


def _stack(view: RankView) -> list[str]:
    return [line.strip() for line in view.stderr if line.strip().startswith("File ")]


def _in_collective(view: RankView) -> bool:
    innermost = _stack(view)[:3]
    return any(
        word in line
        for line in innermost
        for word in (
            "distributed_c10d",
            "c10d_logger",
            "_symmetric_memory",
            "in synchronize",
            "in replay",
            "in reduce",
        )
    )
