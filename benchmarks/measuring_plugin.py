"""A second SGLang plug-in, for measurements only: it switches our telemetry off and on in a running engine,
and marks every timed forward in a profiler's trace.

scripts/gpu/real_engine.py and telemetry_cost.py load it beside `deploy_kit_telemetry` in the engines that
measure the plug-in itself. Two starts of one engine differ by as much as the plug-in could cost, so both
states are measured in one process.

- KIT_TELEMETRY_SWITCH: while this file exists, the hooks return at once and SGLang's timers are its own.
- KIT_HOOK_TIMES: this file gets, ten times a second, how much of the scheduler's CPU time our hooks took.
- KIT_TRACE_MARKS: while this file exists, each timed forward is a profiler annotation named "kit PHASE".
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOOK_SECONDS = 0.02


def environment(folder: Path, **variables: Path) -> dict[str, str]:
    """Return what makes an engine load this plug-in: an entry point on its path, and `variables`."""
    info = folder / "measuring" / "deploy_kit_measuring-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: deploy-kit-measuring\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\ndeploy_kit_measuring = measuring_plugin:register\n"
    )
    path = [str(info.parent), str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]
    found = {"PYTHONPATH": os.pathsep.join(part for part in path if part)}
    return found | {name: str(value) for name, value in variables.items()}


class _Switch:
    """Whether telemetry is off right now."""

    def __init__(self) -> None:
        self.off = False
        self.marks = False

    def watch(self, file: Path, marks: Path | None) -> None:
        """Follow the files for ever: take the session away while `file` exists, give it back afterwards."""
        from deploy_kit.telemetry import plugin

        kept = None
        while True:
            off = file.exists()
            if off and plugin._session is not None:
                kept, plugin._session = plugin._session, None
            elif not off and kept is not None:
                plugin._session, kept = kept, None
            self.off = off
            self.marks = marks is not None and marks.exists()
            time.sleep(LOOK_SECONDS)


class _HookTimes:
    """CPU seconds inside our hooks' own work, by name, and of the whole process, both of this process
    alone."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}

    def around(self, owner: type, name: str) -> None:
        """Time every call of a method in CPU seconds of its thread."""
        original = getattr(owner, name)
        spent = self.spent.setdefault(f"{owner.__name__}.{name}", [0, 0.0])
        clock = time.thread_time

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = clock()
            try:
                return original(*args, **kwargs)
            finally:
                spent[0] += 1
                spent[1] += clock() - began

        setattr(owner, name, timed)

    def write_for_ever(self, file: Path) -> None:
        """Write the sums, aside and then renamed, once there are any."""
        while True:
            time.sleep(0.1)
            if not any(calls for calls, _seconds in self.spent.values()):
                continue
            aside = file.with_suffix(".new")
            aside.write_text(json.dumps({"hooks": self.spent, "process_cpu_seconds": time.process_time()}))
            aside.rename(file)


def register() -> None:
    """Called by SGLang in each process."""
    if multiprocessing.parent_process() is None:
        return
    from deploy_kit.telemetry import plugin

    switch = _Switch()
    original = plugin.MarkedTimer.wrap

    @contextmanager
    def wrap(timer: Any, metadata: dict[str, Any]) -> Iterator[None]:
        if switch.off:
            with timer._timer.wrap(metadata=metadata):
                yield
        elif switch.marks:
            import torch

            with original(timer, metadata), torch.profiler.record_function(f"kit {phase(timer, metadata)}"):
                yield
        else:
            with original(timer, metadata):
                yield

    def phase(timer: Any, metadata: dict[str, Any]) -> str:
        category = str(metadata.get("category", ""))
        if category == "extend" and timer._session.mode == "DRAFT_EXTEND_V2":
            return "draft_extend"
        return str(plugin.phase_of(category, drafter=timer._drafter))

    plugin.MarkedTimer.wrap = wrap  # type: ignore[method-assign]
    times = os.environ.get("KIT_HOOK_TIMES")
    if times:
        from deploy_kit.telemetry.instruments import Instruments

        hooks = _HookTimes()
        hooks.around(plugin.Session, "forward_done")
        hooks.around(Instruments, "observe_verify")
        hooks.around(Instruments, "flush")
        threading.Thread(target=hooks.write_for_ever, args=(Path(times),), daemon=True).start()
    named, marks = os.environ.get("KIT_TELEMETRY_SWITCH"), os.environ.get("KIT_TRACE_MARKS")
    if named:
        followed = (Path(named), Path(marks) if marks else None)
        threading.Thread(target=switch.watch, args=followed, daemon=True).start()
