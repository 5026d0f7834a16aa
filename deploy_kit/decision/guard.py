"""Whether speculation has been losing for long enough to say so, and whether now is a moment to act. Pure.

Two edges (hysteresis), beyond the noise, held for a while, and one latch: losing begins when the mean ratio
has been below `losing_ratio` by three standard errors at every look for half a window, and ends above
`winning_ratio` likewise; acting happens at most once. There is no way back to speculation here: plain
decoding shows no verify, so nobody can know from the running engine whether speculation would pay again.
`deploy-kit decide` is for that.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

PARTS = 6  # of a window

Action = Literal["none", "alert", "recovered", "redeploy"]


@dataclass(frozen=True)
class GuardRules:
    """When speculation counts as losing, and when the engine is quiet. Times in seconds."""

    losing_ratio: float = 0.97
    winning_ratio: float = 1.03
    # The ratio is judged over this long, and the judgement must hold for half as long again.
    window_seconds: float = 1800.0
    min_samples: int = 20  # of the window (at least 2), or it says nothing
    quiet_requests: float = 0.0  # at most so many running …
    quiet_seconds: float = 120.0  # … for so long
    may_redeploy: bool = False


@dataclass(frozen=True)
class Look:
    """One look at the engine. `ratio` is the measured speed-up (above 1 speculation pays), None when nothing
    was verified or no baseline is known; `running` is None when the engine did not answer."""

    at_seconds: float
    ratio: float | None
    running: float | None


@dataclass
class Guard:
    """The guard's memory; feed it looks in order of time."""

    rules: GuardRules = field(default_factory=GuardRules)
    losing: bool = False
    acted: bool = False
    _window: deque[Look] = field(default_factory=deque)
    _quiet_since: float | None = None
    _crossed_since: float | None = None
    _sum: float = 0.0
    _squares: float = 0.0

    def see(self, look: Look) -> Action:
        """Given the next look, return what to do: nothing, alert (losing began), recovered (it ended), or
        redeploy the baseline (losing, allowed, quiet; at most once)."""
        if look.ratio is not None:
            self._window.append(look)
            self._sum += look.ratio
            self._squares += look.ratio * look.ratio
        while self._window and self._window[0].at_seconds <= look.at_seconds - self.rules.window_seconds:
            gone = self._window.popleft().ratio or 0.0
            self._sum -= gone
            self._squares -= gone * gone
        self._note_quiet(look)
        if self.acted:
            return "none"
        if self._turned(look):
            self.losing = not self.losing
            return "alert" if self.losing else "recovered"
        if self.losing and self.rules.may_redeploy and self._is_quiet(look):
            self.acted = True
            return "redeploy"
        return "none"

    def _turned(self, look: Look) -> bool:
        """Whether the mean has been beyond the other edge for half a window."""
        # The parts are looked at only where the looks alone say that it is beyond.
        if not (self._beyond(self._edges(of_parts=False)) and self._beyond(self.ratio_between())):
            self._crossed_since = None
            return False
        if self._crossed_since is None:
            self._crossed_since = look.at_seconds
        if look.at_seconds - self._crossed_since < self.rules.window_seconds / 2:
            return False
        self._crossed_since = None
        return True

    def _beyond(self, edges: tuple[float, float] | None) -> bool:
        if edges is None:
            return False
        return edges[0] > self.rules.winning_ratio if self.losing else edges[1] < self.rules.losing_ratio

    def ratio_between(self) -> tuple[float, float] | None:
        """The mean ratio over the window, less and plus three standard errors (a month has a thousand
        windows: two would be passed by chance); None while it holds too few samples or too short a time.
        The error is that of the looks or of the window's parts, whichever is larger: traffic drifts over
        minutes, and neighbouring looks then err alike."""
        return self._edges(of_parts=True)

    def _edges(self, *, of_parts: bool) -> tuple[float, float] | None:
        count = len(self._window)
        if count < max(2, self.rules.min_samples):
            return None
        if self._window[-1].at_seconds - self._window[0].at_seconds < self.rules.window_seconds / 2:
            return None
        mean = self._sum / count
        error = math.sqrt(max(0.0, self._squares - count * mean * mean) / (count - 1) / count)
        if of_parts:
            error = max(error, _standard_error(self._part_means()))
        return mean - 3 * error, mean + 3 * error

    def _part_means(self) -> list[float]:
        first = self._window[0].at_seconds
        parts: dict[int, list[float]] = {}
        for look in self._window:
            place = int((look.at_seconds - first) / self.rules.window_seconds * PARTS)
            parts.setdefault(place, []).append(look.ratio or 0.0)
        return [sum(values) / len(values) for values in parts.values()]

    def samples(self) -> list[tuple[float, float]]:
        """The window's (seconds, ratio), for the record."""
        return [(look.at_seconds, look.ratio) for look in self._window if look.ratio is not None]

    def _note_quiet(self, look: Look) -> None:
        # An engine that does not answer is not known to be quiet.
        if look.running is None or look.running > self.rules.quiet_requests:
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = look.at_seconds

    def _is_quiet(self, look: Look) -> bool:
        since = self._quiet_since
        return since is not None and look.at_seconds - since >= self.rules.quiet_seconds


def _standard_error(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
