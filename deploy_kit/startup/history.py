"""How long earlier starts took: one line of JSON a start that became ready, and what to expect from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from deploy_kit.files import file_error, read_text, write_atomically

FILE_NAME = "starts.jsonl"
KEPT_STARTS = 200
# Older ones were of another disk, another cache, another driver.
NEWEST_STARTS = 5


@dataclass(frozen=True)
class Start:
    """One start that became ready. Seconds; `at_seconds` since the epoch."""

    at_seconds: float
    plan_id: str
    profile: str
    model: str
    host: str
    ready_seconds: float
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    schema_version: int = 1


@dataclass(frozen=True)
class Expectation:
    """What earlier starts say: medians of the newest ones in seconds, how many, and how like this one they
    were."""

    ready_seconds: float
    phase_seconds: Mapping[str, float]
    starts: int
    of: str

    @property
    def text(self) -> str:
        """The expectation in words."""
        number = "1 earlier start" if self.starts == 1 else f"{self.starts} earlier starts"
        return f"about {self.ready_seconds:.0f} s expected ({number} of {self.of})"


def read_starts(folder: Path) -> tuple[Start, ...]:
    """Return the starts written in `folder`, oldest first; lines that are none are left out."""
    path = folder / FILE_NAME
    if not path.is_file():
        return ()
    starts = []
    for line in read_text(path).splitlines():
        start = _parse(line)
        if start is not None:
            starts.append(start)
    return tuple(starts)


def add_start(folder: Path, start: Start) -> Path:
    """Add a start to the history in `folder` (made when absent); the newest `KEPT_STARTS` are kept.

    Raises `DeployKitError` when the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise file_error("cannot make the folder of the starts", folder, error) from error
    kept = [*read_starts(folder), start][-KEPT_STARTS:]
    path = folder / FILE_NAME
    write_atomically(path, "".join(json.dumps(asdict(one), sort_keys=True) + "\n" for one in kept))
    return path


def expect(
    starts: Iterable[Start], *, plan_id: str, profile: str, model: str, host: str
) -> Expectation | None:
    """Given earlier starts, return what a start of this plan may take: from the same plan's, else from the
    same profile's, else from the same model's on this host; None when there is none."""
    here = [start for start in starts if (start.model, start.host) == (model, host)]
    for of, alike in (
        ("this plan", [start for start in here if start.plan_id == plan_id]),
        ("this profile", [start for start in here if start.profile == profile]),
        ("this model", here),
    ):
        if alike:
            return _summarise(alike[-NEWEST_STARTS:], of)
    return None


def _summarise(starts: Sequence[Start], of: str) -> Expectation:
    phases = dict.fromkeys(phase for start in starts for phase in start.phase_seconds)
    return Expectation(
        ready_seconds=median(start.ready_seconds for start in starts),
        phase_seconds={
            phase: median(start.phase_seconds.get(phase, 0.0) for start in starts) for phase in phases
        },
        starts=len(starts),
        of=of,
    )


def _parse(line: str) -> Start | None:
    try:
        value = json.loads(line)
        start = Start(**value)
        good = (
            start.schema_version == 1
            and 0 < float(start.ready_seconds) < 1e7
            and all(isinstance(text, str) for text in (start.plan_id, start.profile, start.model, start.host))
            and all(float(seconds) >= 0 for seconds in start.phase_seconds.values())
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    return start if good else None
