"""Showing a playbook's steps on stderr: a live line on a terminal, one line a slow step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from deploy_kit.deploy.following import Following
from deploy_kit.deploy.playbook import PlaybookRun, readable_step

# Steps that take long, and what they do meanwhile.
_SLOW = {
    "Install the packages": "apt",
    "Build the image": "the first takes two to four minutes; log: var/build-rehearsal.log",
    "Choose between upstream images and Debian's packages": "a registry is asked",
    "Build the monitoring from Debian's packages": "apt in a container",
    "Start the engine": "until a real completion comes back",
    "Start the monitoring": "until all of it answers",
}


class StepProgress(Following):
    """A context in which `show` follows a run: `with StepProgress() as p: …, on_event=p.show`."""

    def __init__(self) -> None:
        super().__init__()
        self._bar: Progress | None = None
        if self._console.is_terminal:
            columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
            self._live = self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.add_task("starting …", total=None)
        self._step_began = self._began
        self._said: set[str] = set()

    def show(self, run: PlaybookRun, event: Mapping[str, Any]) -> None:
        """Take one event."""
        kind = event.get("event")
        data = event.get("event_data") or {}
        task = readable_step(str(data.get("task") or ""))
        now = time.monotonic()
        if kind == "playbook_on_task_start":
            self._step_began = now
            remark = f" ({_SLOW[task]})" if task in _SLOW else ""
            if self._bar is not None:
                self._bar.update(TaskID(0), description=f"{task}{remark} …")
            elif task in _SLOW:
                self._print(f"{task}{remark} …")
        elif kind == "runner_on_ok":
            changed = bool((data.get("res") or {}).get("changed"))
            seconds = now - self._step_began
            if changed or (task in _SLOW and seconds > 2):
                word = "changed" if changed else "ok"
                self._print(f"{task}: {word}, {seconds:.0f} s")
            for remark in run.remarks:
                if remark not in self._said:
                    self._said.add(remark)
                    self._print(remark)
