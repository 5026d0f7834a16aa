"""What a first light is asked to do, what this machine allows, and what is already known of each step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import read_text, write_atomically

STATE_FILE = "firstlight.json"
Outcome = Literal["pending", "done", "failed", "skipped", "interrupted"]


class Settings(BaseModel):
    """What was asked for. A work folder belongs to one of these; another one is refused there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str | None = None
    model: str | None = None
    stack: str | None = None
    profiles: tuple[str, ...] = ("baseline", "eagle3")
    servers: dict[str, str] = {}  # profile → URL of a running server, measured instead of one we start
    api_key_file: str | None = None  # of those servers
    starts: int = Field(default=1, ge=1, le=20)
    concurrencies: tuple[int, ...] = (1, 8, 32)
    rounds: int = Field(default=3, ge=1)
    requests: int = Field(default=4, ge=1)
    output_tokens: int = Field(default=256, ge=2)
    probe_seconds: int = Field(default=120, ge=1)
    traffic: str | None = None


@dataclass(frozen=True)
class Situation:
    """What this machine is: it decides which steps can run. `image`: the engine image, once built."""

    gpus: int
    host: str  # the plan's host
    model: str
    torch: bool  # an interpreter with torch is at hand
    image: str | None = None

    @property
    def rehearsal(self) -> bool:
        """Whether nothing found here says anything about real hardware."""
        return self.gpus == 0


class StepState(BaseModel):
    """What became of one step."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    outcome: Outcome = "pending"
    exit_code: int | None = None
    seconds: float | None = None
    why: str | None = None  # of a failed or skipped step; the verdict of a done one
    command: str | None = None


class State(BaseModel):
    """The work folder's memory: written after every step."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal[1] = 1
    settings: Settings
    engine: str | None = None  # the engine step that has a server up, so that a resume knows it is ours
    steps: dict[str, StepState] = {}

    def write(self, folder: Path) -> None:
        """Write the state, whole or not at all."""
        write_atomically(folder / STATE_FILE, self.model_dump_json(indent=1) + "\n")


def read_state(folder: Path, settings: Settings) -> State:
    """Return the work folder's state, or a new one; a folder of another first light is refused."""
    path = folder / STATE_FILE
    if not path.exists():
        return State(settings=settings)
    try:
        state = State.model_validate(json.loads(read_text(path, what="first light's state")))
    except (ValidationError, ValueError, RecursionError) as error:
        raise DeployKitError(
            "this is not a first light's state",
            file=path,
            remedy="move the folder away to begin anew; its receipts stay good",
            exit_code=ExitCode.INPUT,
        ) from error
    if state.settings != settings:
        changed = sorted(
            name for name in Settings.model_fields if getattr(state.settings, name) != getattr(settings, name)
        )
        raise DeployKitError(
            "this work folder belongs to a first light with other options",
            file=folder,
            key=", ".join(changed),
            remedy="give the same options to go on with it, or another --work folder to begin anew",
            exit_code=ExitCode.USAGE,
        )
    return state
