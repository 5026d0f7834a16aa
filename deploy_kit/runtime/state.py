"""The state file: what `serve` knows about its engine, for `deploy-kit health`, `status` and Ansible."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from deploy_kit.files import read_text, write_atomically

FILE_NAME = "state.json"


@dataclass(frozen=True)
class EngineState:
    """One moment of a serve process. Times are seconds since the epoch."""

    phase: str
    plan_id: str
    profile: str
    model: str
    served_model_name: str
    rehearsal: bool
    pid: int
    engine_pid: int | None
    started_at_seconds: float
    ready_at_seconds: float | None = None
    cause: str | None = None
    exit_code: int | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether a real completion has come back, and the engine has not ended or begun to drain since."""
        return self.ready_at_seconds is not None and self.phase in ("ready", "serving")


def write_state(folder: Path, state: EngineState) -> None:
    """Write the state file, whole or not at all."""
    write_atomically(folder / FILE_NAME, json.dumps(asdict(state), indent=2, sort_keys=True) + "\n")


def read_state(folder: Path) -> EngineState | None:
    """Return the state written last; None when there is none or it is not one of ours."""
    path = folder / FILE_NAME
    if not path.exists():
        return None
    try:
        return EngineState(**json.loads(read_text(path)))
    except (ValueError, TypeError, RecursionError):
        return None


def process_alive(pid: int) -> bool:
    """Return whether a process with this id exists and is not a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return True
