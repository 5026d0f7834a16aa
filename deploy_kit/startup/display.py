"""The progress display of a start for people: phases with their times, the bar, elapsed and expected time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deploy_kit.startup.status import PHASES

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN_PHASES = PHASES[: PHASES.index("ready") + 1]
_BAR_WIDTH = 60


@dataclass(frozen=True)
class View:
    """What is shown of one moment. Seconds; the expected ones come from earlier starts."""

    phase: str
    elapsed_seconds: float
    text: str = ""
    progress_ratio: float | None = None
    progress_text: str | None = None
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    expected_seconds: float | None = None
    expected_phase_seconds: Mapping[str, float] = field(default_factory=dict)
    expected_from: str | None = None
    stalled_checks: tuple[str, ...] = ()
    over: bool = False  # ready or ended: nothing is waited for


def elapsed_text(
    elapsed_seconds: float, expected_seconds: float | None, expected_from: str | None, *, over: bool = False
) -> str:
    """Return the time since the start beside the expected one.

    >>> elapsed_text(31.4, 62.0, "about 62 s expected (2 earlier starts of this plan)")
    '31 s since the start; about 62 s expected (2 earlier starts of this plan), 31 s left'
    """
    words = f"it took {elapsed_seconds:.0f} s" if over else f"{elapsed_seconds:.0f} s since the start"
    if expected_seconds is None:
        return words
    words = f"{words}; {expected_from or f'about {expected_seconds:.0f} s expected'}"
    if over:
        return words
    left = expected_seconds - elapsed_seconds
    late = f"{left:.0f} s left" if left >= 0 else f"{-left:.0f} s over it"
    return f"{words}, {late}"


def render(view: View) -> RenderableType:
    """Return the display as Rich draws it."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    reached = PHASES.index(view.phase)
    line = Text()
    for index, phase in enumerate(SHOWN_PHASES):
        style = "green" if index < reached else ("bold yellow" if index == reached else "dim")
        line.append(("✔ " if index < reached else "· ") + phase + _times(view, phase) + "  ", style=style)
    parts: list[RenderableType] = [line]
    if view.progress_ratio is not None:
        parts.append(ProgressBar(total=1.0, completed=view.progress_ratio, width=_BAR_WIDTH))
    if view.progress_text:
        parts.append(Text(view.progress_text))
    if view.text:
        parts.append(Text(view.text))
    parts.extend(Text(f"  {check}", style="yellow") for check in view.stalled_checks)
    times = elapsed_text(view.elapsed_seconds, view.expected_seconds, view.expected_from, over=view.over)
    parts.append(Text(times, style="dim"))
    return Group(*parts)


def _times(view: View, phase: str) -> str:
    spent, expected = view.phase_seconds.get(phase), view.expected_phase_seconds.get(phase)
    if spent is None and expected is None:
        return ""
    words = "" if spent is None else f" {spent:.0f}"
    return words + (f" of ~{expected:.0f} s" if expected is not None else " s")
