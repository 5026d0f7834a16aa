"""`deploy-kit serve`: resolve the plan, start the engine, follow it to readiness, end as it ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping

from deploy_kit.files import file_error
from deploy_kit.plan.model import Plan
from deploy_kit.runtime.child import Engine
from deploy_kit.runtime.levers_off import LeversOff
from deploy_kit.runtime.preflight import refuse_unready_machine
from deploy_kit.runtime.readiness import healthy, look
from deploy_kit.runtime.relay import prefer_reading
from deploy_kit.runtime.secret import read_api_key, write_engine_config
from deploy_kit.runtime.settings import Settings
from deploy_kit.runtime.supervisor import Supervisor
from deploy_kit.startup.status import StatusBoard
from deploy_kit.telemetry.status import clear_status, explain_missing, read_status


def make_child_environment(plan: Plan, base: Mapping[str, str], *, state_directory: object) -> dict[str, str]:
    """Given a plan and our own environment, return the engine's: ours, then the plan's."""
    return {
        **base,
        "PYTHONUNBUFFERED": "1",
        "DEPLOY_KIT_STATE_DIR": str(state_directory),
        "DEPLOY_KIT_PLAN_ID": plan.plan_id,
        **dict(plan.environment),
    }


def serve(plan: Plan, settings: Settings, levers_off: LeversOff | None = None) -> int:
    """Run the engine of `plan` until it ends or we are told to stop; return the exit code of the process."""
    prefer_reading()
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
    address = "127.0.0.1" if settings.address in ("0.0.0.0", "::") else settings.address  # noqa: S104
    url = f"http://{f'[{address}]' if ':' in address else address}:{plan.port}"
    environment = make_child_environment(plan, os.environ, state_directory=folder)
    board = StatusBoard()
    clear_status(folder)  # an earlier run's file would vouch for this one

    def start(observer: Callable[[bytes], None]) -> Engine:
        return Engine(argv, environment, secret=api_key, observer=observer)

    supervisor = Supervisor(
        plan,
        folder,
        start=start,
        look=lambda: look(url, plan.served_model_name, api_key=api_key),
        healthy=lambda: healthy(url, api_key=api_key),
        board=board,
        environment={name: environment[name] for name, _value in plan.environment},
        secret=api_key,
        starts=settings.starts or folder,
        stop_hung_seconds=settings.stop_hung_seconds,
        drain_seconds=settings.drain_seconds,
        telemetry_missing=lambda: (
            None if settings.allow_missing_telemetry else explain_missing(read_status(folder))
        ),
        levers_off=levers_off,
    )

    def on_signal(signum: int, _frame: object) -> None:
        supervisor.request_stop(signum)

    previous = {s: signal.signal(s, on_signal) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    stop_exporter = _start_exporter(plan, settings, url, board, api_key)
    try:
        return supervisor.run()
    finally:
        stop_exporter()
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def _start_exporter(
    plan: Plan, settings: Settings, url: str, board: StatusBoard, api_key: str | None
) -> Callable[[], None]:
    from deploy_kit.exporter.facts import PlanFacts
    from deploy_kit.exporter.receipts import PlanFromReceipts
    from deploy_kit.exporter.server import start_exporter

    facts = PlanFacts(
        plan_id=plan.plan_id,
        profile=plan.profile,
        stack=plan.stack,
        model=plan.model,
        host=plan.host,
        rehearsal=plan.rehearsal,
        speculative=any(word.startswith("--speculative-algorithm") for word in plan.argv),
    )
    exporter = start_exporter(
        settings.exporter_port,
        address=settings.address,
        engine_url=url,
        # Without a receipt of the baseline, break-even and speed-up are absent, not guessed.
        plan=PlanFromReceipts(
            facts,
            settings.receipts,
            served_model_name=plan.served_model_name,
            levers=plan.levers,
            sglang_version=dict(plan.versions).get("sglang"),
        ),
        startup=board.read,
        api_key=api_key,
    )
    return exporter.stop
