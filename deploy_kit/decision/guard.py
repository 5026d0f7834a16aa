"""Whether speculation has been losing for long enough to say so, and whether now is a moment to act. Pure.

Two edges (hysteresis), beyond the noise, and one latch: losing begins when the mean ratio is below
`losing_ratio` by three standard errors, and ends above `winning_ratio` likewise; acting happens at most once.
There is no way back to speculation here: plain decoding shows no verify, so nobody
can know from the running engine whether speculation would pay again. `deploy-kit decide` is for that.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

Action = Literal["none", "alert", "recovered", "redeploy"]


@dataclass(frozen=True)
class GuardRules:
    """When speculation counts as losing, and when the engine is quiet. Times in seconds."""

    losing_ratio: float = 0.97
    winning_ratio: float = 1.03
    window_seconds: float = 1800.0  # the ratio is judged over this long
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
        edges = self.ratio_between()
        if edges is not None:
            if not self.losing and edges[1] < self.rules.losing_ratio:
                self.losing = True
                return "alert"
            if self.losing and edges[0] > self.rules.winning_ratio:
                self.losing = False
                return "recovered"
        if self.losing and self.rules.may_redeploy and self._is_quiet(look):
            self.acted = True
            return "redeploy"
        return "none"

    def ratio_between(self) -> tuple[float, float] | None:
        """The mean ratio over the window, less and plus three standard errors (a month has a thousand
        windows: two would be passed by chance); None while it holds too few samples or too short a time."""
        count = len(self._window)
        if count < max(2, self.rules.min_samples):
            return None
        if self._window[-1].at_seconds - self._window[0].at_seconds < self.rules.window_seconds / 2:
            return None
        mean = self._sum / count
        variance = max(0.0, self._squares - count * mean * mean) / (count - 1)
        error = 3 * math.sqrt(variance / count)
        return mean - error, mean + error

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
