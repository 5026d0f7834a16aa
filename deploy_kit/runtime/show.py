"""Showing the state file of `deploy-kit serve` to people. Reads only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deploy_kit.exit_codes import ExitCode
from deploy_kit.runtime.state import EngineState, process_alive, read_state
from deploy_kit.startup.display import View, render

FOLLOW_INTERVAL_SECONDS = 0.5


def view_of_state(state: EngineState, now_seconds: float) -> View:
    """Given a state file's content and the time (since the epoch), return what is shown of it."""
    details = state.details
    end = state.ready_at_seconds or float(details.get("updated_at_seconds") or now_seconds)
    running = state.phase != "exited" and state.ready_at_seconds is None
    ratio = details.get("progress_ratio")
    return View(
        phase=state.phase,
        elapsed_seconds=(now_seconds if running else end) - state.started_at_seconds,
        text=_words(state),
        progress_ratio=ratio if running and isinstance(ratio, (int, float)) else None,
        progress_text=details.get("progress_text") if running else None,
        phase_seconds=_numbers(details.get("phase_seconds")),
        expected_seconds=details.get("expected_seconds"),
        expected_phase_seconds=_numbers(details.get("expected_phase_seconds")),
        expected_from=details.get("expected_from"),
        stalled_checks=tuple(details.get("stalled_checks") or ()),
        over=not running,
    )


def describe_state(state: EngineState | None) -> dict[str, Any]:
    """Return the state for `--json`, with the elapsed and the expected time."""
    if state is None:
        return {"ready": False, "serve_alive": False, "state": None}
    view = view_of_state(state, time.time())
    return {
        "ready": state.ready and process_alive(state.pid),
        "serve_alive": process_alive(state.pid),
        "elapsed_seconds": round(view.elapsed_seconds, 1),
        "expected_seconds": view.expected_seconds,
        "expected_from": view.expected_from,
        "state": asdict(state),
    }


def show_state(folder: Path) -> EngineState | None:
    """Print the state in `folder` on stderr and return it; None when nothing is served here."""
    from deploy_kit.output import stderr_console

    state = read_state(folder)
    console = stderr_console()
    console.print("nothing is served here" if state is None else render(view_of_state(state, time.time())))
    return state


def follow_state(folder: Path) -> EngineState | None:
    """Show the state in `folder` as it changes, until the engine is ready, has ended, or serve is gone."""
    from rich.live import Live
    from rich.text import Text

    from deploy_kit.output import stderr_console

    with Live(console=stderr_console(), refresh_per_second=4) as live:
        while True:
            state = read_state(folder)
            if state is None:
                live.update(Text("nothing is served here"))
                return None
            live.update(render(view_of_state(state, time.time())))
            if state.ready or state.phase == "exited" or not process_alive(state.pid):
                return state
            time.sleep(FOLLOW_INTERVAL_SECONDS)


def exit_code_of(state: EngineState | None) -> int:
    """Return 0 for ready, the engine's own code when it ended by a cause, else 15 (not ready)."""
    if state is not None and state.ready and process_alive(state.pid):
        return int(ExitCode.OK)
    return (state.exit_code if state is not None else None) or int(ExitCode.NOT_READY)


def _words(state: EngineState) -> str:
    what = f"profile {state.profile}, model {state.model}" + (" (REHEARSAL)" if state.rehearsal else "")
    if state.phase == "exited":
        return f"{what}: ended: {state.cause or 'without a word'}"
    if not process_alive(state.pid):
        return f"{what}: serve has ended without a word"
    if state.ready:
        off = state.details.get("levers_off") or {}
        return f"{what}: ready" + "".join(f"; lever {name} is off: {line}" for name, line in off.items())
    why = state.details.get("not_ready_because")
    stalled = "stalled; " if state.details.get("stalled") else ""
    return f"{what}: {stalled}not ready" + (f": {why}" if why else "")


def _numbers(value: Any) -> Mapping[str, float]:
    if not isinstance(value, Mapping):
        return {}
    return {str(key): float(number) for key, number in value.items() if isinstance(number, (int, float))}
