"""Showing a roll on stderr: hosts by steps on a terminal, one line a step elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from deploy_kit.deploy.following import Following
from deploy_kit.deploy.playbook import PlaybookRun, readable_step

# The columns, and the tasks (by how they begin) that each stands for. What is in none is preparation: check.
STEPS = ("reach", "check", "release", "image", "drain", "change", "ready", "admit")
_TASKS = (
    ("Reach the box", "reach"),
    ("Write the release", "release"),
    ("Look for the image", "image"),
    ("See how much space", "image"),
    ("Pull the image", "image"),
    ("Ask the image", "image"),
    ("Gateway, drain", "drain"),
    ("Hand the change", "change"),
    ("Wait until the new plan", "ready"),
    ("Refuse a plan that did not become", "ready"),
    ("Gateway, admit", "admit"),
)
_MARKS = {"running": "…", "ok": "✓", "changed": "●", "failed": "✗"}


def step_of(task: str) -> str:
    """Given a task's name, return the step it belongs to.

    >>> step_of("Gateway, drain"), step_of("Copy the agent")
    ('drain', 'check')
    """
    return next((step for start, step in _TASKS if task.startswith(start)), "check")


@dataclass
class HostSteps:
    """One host: what became of each step, and how far its engine's start is."""

    steps: dict[str, str] = field(default_factory=dict)
    text: str = ""
    ratio: float | None = None

    def mark(self, step: str, word: str) -> None:
        """Note a task's end (or start); a step that changed or failed stays so."""
        order = ("running", "ok", "changed", "failed")
        before = self.steps.get(step, "running")
        self.steps[step] = word if order.index(word) >= order.index(before) else before


def engine_words(result: Mapping[str, Any]) -> tuple[str, float | None]:
    """Given the result of one look at a box that starts a plan, return the phase in words and its ratio."""
    try:
        seen = json.loads(str(result.get("stdout") or ""))
        phase = str((seen.get("in_progress") or {}).get("phase") or "")
        state = ((seen.get("engine") or {}).get("state")) or {}
        details = state.get("details") or {}
        words = [phase, str(state.get("phase") or ""), str(details.get("progress_text") or "")]
        ratio = details.get("progress_ratio")
        return ", ".join(word for word in words if word), float(ratio) if ratio is not None else None
    except (ValueError, TypeError, AttributeError):
        return "", None


class FleetProgress(Following):
    """A context in which `show` follows a roll: `with FleetProgress() as p: …, on_event=p.show`."""

    def __init__(self) -> None:
        super().__init__()
        self.hosts: dict[str, HostSteps] = {}
        if self._console.is_terminal:
            self._live = Live(get_renderable=self.render, console=self._console, refresh_per_second=4)
        self._said: dict[str, str] = {}

    def show(self, run: PlaybookRun, event: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Take one event of ansible-runner."""
        kind = str(event.get("event") or "")
        data = event.get("event_data") or {}
        host = str(data.get("host") or "")
        if not host or host == "localhost":
            return
        words = {
            "runner_on_start": "running",
            "runner_on_ok": "ok",
            "runner_on_failed": "failed",
            "runner_on_unreachable": "failed",
        }
        step = step_of(readable_step(str(data.get("task") or "")))
        one = self.hosts.setdefault(host, HostSteps())
        result = data.get("res") or {}
        if kind == "runner_retry":
            one.text, one.ratio = engine_words(result)
            self._line(host, f"{step}: {one.text}" if one.text else step)
            return
        if kind not in words:
            return
        word = words[kind]
        if word == "ok" and result.get("changed"):
            word = "changed"
        if word == "failed" and data.get("ignore_errors"):
            word = "ok"
        one.mark(step, word)
        if word != "running":
            one.text, one.ratio = "", None
        if word in ("changed", "failed"):
            self._line(host, f"{step}: {readable_step(str(data.get('task') or ''))}: {word}")

    def render(self) -> RenderableType:
        """Return the table as it is now."""
        table = Table(box=None, pad_edge=False)
        table.add_column(f"[{time.monotonic() - self._began:4.0f} s]")
        for step in STEPS:
            table.add_column(step, justify="center")
        table.add_column("")
        for host, one in self.hosts.items():
            tail: RenderableType = one.text
            if one.ratio is not None:
                tail = Table.grid(padding=(0, 1))
                tail.add_row(ProgressBar(total=1.0, completed=one.ratio, width=20), one.text)
            table.add_row(host, *(_MARKS.get(one.steps.get(step, ""), "·") for step in STEPS), tail)
        return table

    def _line(self, host: str, text: str) -> None:
        if self._live is None and self._said.get(host) != text:
            self._said[host] = text
            self._print(f"{host}: {text}")
