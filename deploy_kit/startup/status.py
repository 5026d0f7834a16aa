"""What the watcher tells others about an engine's start: the interface of the exporter and of the state file.

`StartupStatus` is a value: one moment, never changed. The supervisor publishes the newest through
`StatusBoard`; readers in other threads (the exporter) take it with `StatusBoard.read`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# In the order they are passed. "stalled" and "busy" are conditions within a phase, not phases.
PHASES: tuple[str, ...] = (
    "starting",
    "loading",
    "allocating",
    "capturing",
    "warming",
    "ready",
    "serving",
    "draining",
    "exited",
)


@dataclass(frozen=True)
class StartupStatus:
    """One moment of an engine's life.

    `phase` is one of `PHASES`. `progress_ratio` is 0 to 1 within the phase, None when the phase has no
    measure. `phase_seconds` holds the time spent so far in each phase entered (the current one included).
    `exits` counts engine ends by cause id (`deploy_kit_engine_exits_total{cause}`), earlier processes' ends
    included where a folder keeps them. `expected_seconds` until ready (and in each phase) come from earlier
    starts, `expected_from` says which; None when there was none. `stalled` says that nothing observable
    advanced for too long, with what was checked in `stalled_checks`. Times are seconds;
    `updated_at_seconds` is since the epoch.
    """

    phase: str = "starting"
    progress_ratio: float | None = None
    progress_text: str | None = None
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    stalled: bool = False
    stalled_checks: tuple[str, ...] = ()
    busy: bool = False
    cause: str | None = None
    remedy: str | None = None
    exit_code: int | None = None
    exits: Mapping[str, int] = field(default_factory=dict)
    expected_seconds: float | None = None
    expected_phase_seconds: Mapping[str, float] = field(default_factory=dict)
    expected_from: str | None = None
    updated_at_seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the status as plain JSON values."""
        return {
            "phase": self.phase,
            "progress_ratio": self.progress_ratio,
            "progress_text": self.progress_text,
            "phase_seconds": dict(self.phase_seconds),
            "stalled": self.stalled,
            "stalled_checks": list(self.stalled_checks),
            "busy": self.busy,
            "cause": self.cause,
            "remedy": self.remedy,
            "exit_code": self.exit_code,
            "exits": dict(self.exits),
            "expected_seconds": self.expected_seconds,
            "expected_phase_seconds": dict(self.expected_phase_seconds),
            "expected_from": self.expected_from,
            "updated_at_seconds": self.updated_at_seconds,
        }


class StatusBoard:
    """The newest status, safe to read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._status = StartupStatus()

    def publish(self, status: StartupStatus) -> None:
        """Make `status` the newest one."""
        with self._lock:
            self._status = status

    def read(self) -> StartupStatus:
        """Return the newest status."""
        with self._lock:
            return self._status
