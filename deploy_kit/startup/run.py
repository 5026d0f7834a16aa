"""What the watcher remembers of one start of an engine, and the shape of its answer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from deploy_kit.startup.blocks import Failure
from deploy_kit.startup.causes import Finding
from deploy_kit.startup.progress import Progress
from deploy_kit.startup.status import PHASES

Fact = int | float | str | bool | None

NCCL_WARNINGS = 12
RING_CHARACTERS = 400


@dataclass(frozen=True)
class Explanation:
    """The watcher's answer. `verdict`: starting, loading, capturing, ready, degraded, hung or crashed."""

    verdict: str
    phase: str
    cause: str
    cause_id: str | None
    remedy: str | None
    evidence: tuple[str, ...]
    progress: dict[str, Any] | None
    facts: dict[str, Any]
    remarks: tuple[str, ...]
    exit_code: int

    def as_dict(self) -> dict[str, Any]:
        """Return the answer for `--json`."""
        return {
            "verdict": self.verdict,
            "phase": self.phase,
            "cause": self.cause,
            "cause_id": self.cause_id,
            "remedy": self.remedy,
            "evidence": list(self.evidence),
            "progress": self.progress,
            "facts": self.facts,
            "remarks": list(self.remarks),
            "exit_code": self.exit_code,
        }


@dataclass
class Death:
    """A line by which the engine says that one of its processes ended."""

    kind: str
    text: str
    order: int
    exit_code: int | None = None
    rank: int | None = None


@dataclass
class Run:
    """What is known of one start (a log may hold several, one after another)."""

    args: dict[str, Fact] = field(default_factory=dict)
    stages: dict[int | None, tuple[int, int]] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)
    progress: Progress | None = None
    failures: list[Failure] = field(default_factory=list)
    failures_left_out: int = 0
    deaths: list[Death] = field(default_factory=list)
    hints: dict[str, tuple[int, Finding, str]] = field(default_factory=dict)
    facts: dict[str, Fact] = field(default_factory=dict)
    remarks: dict[str, str] = field(default_factory=dict)
    load_seconds: dict[int | None, float] = field(default_factory=dict)
    capture_seconds: dict[int | None, float] = field(default_factory=dict)
    init_begun: bool = False
    init_ended: bool = False
    nccl_seen: bool = False
    compiling: bool = False
    ready: bool = False
    serving: bool = False
    draining: bool = False
    finished: bool = False
    unhealthy: str | None = None
    soft_watchdog: str | None = None
    watchdog: Death | None = None
    http_errors: int = 0
    accept_lines: int = 0
    accept_useless: int = 0
    ended_code: int | None = None
    oom_killed: bool = False
    life_order: int = 0
    last_stamp: str | None = None
    last_text: str = ""
    warnings: deque[str] = field(default_factory=lambda: deque(maxlen=NCCL_WARNINGS))

    @property
    def stage(self) -> tuple[int, int]:
        """The furthest rank's (number of weight loads begun, phase)."""
        return max(self.stages.values(), default=(0, 0))

    @property
    def phase(self) -> str:
        if self.finished or (self.ended_code is not None and not self.deaths):
            return "exited"
        if self.draining:
            return "draining"
        if self.ready:
            return "serving" if self.serving else "ready"
        return PHASES[self.stage[1]]


def read_fact(text: str) -> Fact:
    """Given a value as Python writes it, return it as a number, a truth value, None, or the text itself."""
    if text in ("None", "True", "False"):
        return {"None": None, "True": True, "False": False}[text]
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text
