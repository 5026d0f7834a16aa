"""The time a campaign may take in one go: a night, a maintenance window."""

from __future__ import annotations

import re
import time

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

_DURATION = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,5})m)?(?:(\d{1,6})s)?", re.ASCII)


def parse_window(text: str) -> int:
    """Given "8h", "90m", "1h30m" or "540s", return seconds; anything else raises `DeployKitError`."""
    found = _DURATION.fullmatch(text.strip().replace(" ", ""))
    hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0)
    if total := hours * 3600 + minutes * 60 + seconds:
        return total
    raise DeployKitError(
        "no such length of time",
        key="--for",
        found=text,
        allowed="8h, 90m, 1h30m, 540s",
        exit_code=ExitCode.USAGE,
    )


class WindowOverError(Exception):
    """The time given is over, or too short for one more cell."""


class Window:
    """The time left, and what a cell of this process really took, its engine's end included."""

    def __init__(self, seconds: float | None) -> None:
        self._ends = None if seconds is None else time.monotonic() + seconds
        self._longest_seconds = 0.0

    def refuse_unless_it_fits(self, expected_seconds: float | None) -> None:
        """Raise `WindowOverError` when a cell of so many seconds would end too late; None: not known."""
        if self._ends is not None:
            needed_seconds = max(expected_seconds or 0.0, self._longest_seconds)
            if time.monotonic() + needed_seconds > self._ends:
                raise WindowOverError

    def cell_took(self, seconds: float) -> None:
        """Note how long a measured cell took; one that failed says nothing about the next."""
        self._longest_seconds = max(self._longest_seconds, seconds)
