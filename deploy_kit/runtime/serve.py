"""`deploy-kit serve`: resolve the plan, start the engine, follow it to readiness, end as it ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import file_error
from deploy_kit.plan.model import Plan
from deploy_kit.runtime.child import Engine
from deploy_kit.runtime.preflight import refuse_unready_machine
from deploy_kit.runtime.readiness import look
from deploy_kit.runtime.secret import read_api_key, write_engine_config
from deploy_kit.runtime.settings import Settings
from deploy_kit.runtime.state import EngineState, write_state

# Between looks at an engine that is not ready: loading takes minutes, a look costs milliseconds.
LOOK_INTERVAL_SECONDS = 1.0
DRAIN_SECONDS = 60.0


def make_child_environment(plan: Plan, base: Mapping[str, str], *, state_directory: Path) -> dict[str, str]:
    """Given a plan and our own environment, return the engine's: ours, then the plan's."""
    return {
        **base,
        "PYTHONUNBUFFERED": "1",
        "DEPLOY_KIT_STATE_DIR": str(state_directory),
        "DEPLOY_KIT_PLAN_ID": plan.plan_id,
        **dict(plan.environment),
    }


def serve(plan: Plan, settings: Settings) -> int:
    """Run the engine of `plan` until it ends or we are told to stop; return the exit code of the process."""
    api_key = read_api_key(settings.api_key_file, address=settings.address)
    refuse_unready_machine(plan, address=settings.address)
    folder = settings.state_directory
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise file_error("cannot create the state folder", folder, error) from error
    argv = list(plan.argv)
    if argv[0] == "python3":
        argv[0] = sys.executable  # the interpreter that has SGLang is the one that runs us
    if api_key is not None:
        argv += ["--config", str(write_engine_config(folder, api_key))]
    stopping = threading.Event()
    signals: list[int] = []

    def on_signal(signum: int, _frame: object) -> None:
        signals.append(signum)
        stopping.set()

    previous = {s: signal.signal(s, on_signal) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        engine = Engine(
            argv, make_child_environment(plan, os.environ, state_directory=folder), secret=api_key
        )
        state = EngineState(
            phase="starting",
            plan_id=plan.plan_id,
            profile=plan.profile,
            model=plan.model,
            served_model_name=plan.served_model_name,
            rehearsal=plan.rehearsal,
            pid=os.getpid(),
            engine_pid=engine.pid,
            started_at_seconds=time.time(),
        )
        write_state(folder, state)
        return _follow(engine, state, settings, plan, api_key, stopping, signals)
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def _follow(
    engine: Engine,
    state: EngineState,
    settings: Settings,
    plan: Plan,
    api_key: str | None,
    stopping: threading.Event,
    signals: list[int],
) -> int:
    folder = settings.state_directory
    address = "127.0.0.1" if settings.address in ("0.0.0.0", "::") else settings.address  # noqa: S104
    url = f"http://{address}:{plan.port}"
    while engine.poll() is None and not stopping.is_set():
        if not state.ready:
            seen = look(url, plan.served_model_name, api_key=api_key)
            if seen.ready:
                state = replace(state, phase="serving", ready_at_seconds=time.time())
                seconds = (state.ready_at_seconds or 0) - state.started_at_seconds
                _say(f"ready after {seconds:.1f} s: {plan.served_model_name}, profile {plan.profile}")
                write_state(folder, state)
        stopping.wait(LOOK_INTERVAL_SECONDS)
    if signals:
        state = replace(state, phase="draining")
        write_state(folder, state)
        engine.send(signals[0])
    code = engine.stop(grace_seconds=DRAIN_SECONDS if signals else 5.0)
    asked = bool(signals)
    exit_code = exit_code_for(code, asked_to_stop=asked)
    cause = "stopped as asked" if asked else f"the engine ended with code {code}"
    write_state(folder, replace(state, phase="exited", cause=cause, exit_code=exit_code))
    _say(cause)
    return exit_code


def exit_code_for(engine_code: int, *, asked_to_stop: bool) -> int:
    """Given how the engine ended, return our own exit code."""
    if asked_to_stop or engine_code == 0:
        return int(ExitCode.OK)
    return int(ExitCode.ENGINE_DIED)


def _say(text: str) -> None:
    sys.stderr.write(f"deploy-kit: {text}\n")
    sys.stderr.flush()
