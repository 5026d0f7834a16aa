"""Starting a campaign's engines on a deployed box: `deploy-kit up` for each plan, by the same playbook."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy_kit.bench.about import read_key
from deploy_kit.campaign.engines import EngineFailure, RunningEngine, Say, levers_off_of
from deploy_kit.deploy.checkout import SERVICES, service_of
from deploy_kit.deploy.compose import ServiceStatus, docker, engine_state, read_status
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.plan.model import Plan
from deploy_kit.plan.resolve import DEFAULT_PORT
from deploy_kit.startup.watcher import StartupWatcher

STOP_SECONDS = 75
# These say that the machine cannot deploy at all: no lever's doing.
_MACHINE = (ExitCode.NO_DOCKER, ExitCode.NO_GPU, ExitCode.PORT_TAKEN, ExitCode.DISK_FULL, ExitCode.PERMISSION)


@dataclass(frozen=True)
class ComposeRunner:
    """Brings each plan up with `deploy-kit up`. The engine that served before is stopped, and none serves
    when the campaign is over."""

    host: str | None
    start_limit_seconds: int
    command: tuple[str, ...] = (sys.executable, "-m", "deploy_kit", "up")
    name: str = "compose"
    stand_in: str | None = None
    address: str = "127.0.0.1"
    port: int = DEFAULT_PORT

    @contextlib.contextmanager
    def running(self, plan: Plan, folder: Path, say: Say) -> Iterator[RunningEngine]:
        """Stop what serves, bring the plan up, and stop it at the end."""
        service = service_of(plan.profile)
        if docker_runs():
            stop_engines(say)
        folder.mkdir(parents=True, exist_ok=True)
        say("deploy-kit up")
        began = time.monotonic()
        log = folder / "engine.log"
        report = self._up(plan, folder, service)
        try:
            yield RunningEngine(
                url=str(report["url"]),
                start_seconds=time.monotonic() - began,
                api_key=read_key(Path(str(report["api_key_file"]))) if report.get("api_key_file") else None,
                failure=lambda: _ended(service, log),
                levers_off=lambda: _levers_off(service),
            )
        finally:
            _keep_log(service, log)
            stop_engines(say)

    def _up(self, plan: Plan, folder: Path, service: str) -> dict[str, Any]:
        words = [
            *self.command,
            "--profile",
            plan.profile,
            "--model",
            plan.model,
            "--stack",
            plan.stack,
            "--json",
        ]
        words += ["--host", self.host] if self.host else []
        words += [f"--lever={lever}" for lever in plan.levers]
        try:
            with (folder / "up.log").open("wb") as log:
                done = subprocess.run(
                    words, stdout=subprocess.PIPE, stderr=log, check=False, timeout=self.start_limit_seconds
                )
        except subprocess.TimeoutExpired:
            raise self._failure(
                service, folder, f"not up within {self.start_limit_seconds} s", ExitCode.NOT_READY, None
            ) from None
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            answer = {}
        if done.returncode == 0 and isinstance(answer.get("report"), dict):
            return dict(answer["report"])
        summary = str(answer.get("error") or f"deploy-kit up ended with {done.returncode}")
        if done.returncode in _MACHINE:
            raise DeployKitError(
                summary,
                found=answer.get("found"),
                remedy=answer.get("remedy"),
                exit_code=ExitCode(done.returncode),
            )
        found, remedy = answer.get("found"), answer.get("remedy")
        raise self._failure(service, folder, summary, done.returncode, remedy, found)

    def _failure(
        self,
        service: str,
        folder: Path,
        summary: str,
        code: int,
        remedy: str | None,
        found: str | None = None,
    ) -> EngineFailure:
        log = folder / "engine.log"
        known = _ended(service, log)
        _keep_log(service, log)
        if known is not None:
            return known
        return EngineFailure(summary, None, remedy, int(code), (found,) if found else ())


def docker_runs() -> bool:
    """Return whether Docker answers; before the first `up` it need not."""
    try:
        docker(["version", "--format", "{{.Server.Version}}"])
    except DeployKitError:
        return False
    return True


def stop_engines(say: Say) -> None:
    """Stop and remove the containers of our engine services, so that the next `up` starts one afresh."""
    for container in engines(read_status()):
        say(f"stopping {container.service}")
        docker(["stop", "--time", str(STOP_SECONDS), container.container])
        docker(["rm", "--force", container.container])


def engines(containers: Sequence[ServiceStatus]) -> list[ServiceStatus]:
    """Given the project's containers, return those of engines."""
    return [one for one in containers if one.service in SERVICES.values()]


def _levers_off(service: str) -> dict[str, str]:
    """Return the levers that the service's engine leaves off, as its own state says."""
    for container in engines(read_status()):
        if container.service == service:
            state = (engine_state(container.container) or {}).get("state") or {}
            return levers_off_of(state.get("details"))
    return {}


def _keep_log(service: str, log: Path) -> None:
    """Keep what the service's engine wrote so far, for people."""
    for container in engines(read_status()):
        if container.service == service:
            with log.open("wb") as file:
                subprocess.run(
                    ["docker", "logs", container.container],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    check=False,
                )


def _ended(service: str, log: Path) -> EngineFailure | None:
    """Return why the service's engine ended: by its own state, else by its log; None while it runs."""
    for container in engines(read_status()):
        if container.service != service:
            continue
        state = (engine_state(container.container) or {}).get("state") or {}
        cause = state.get("cause")
        if cause:
            details = state.get("details") or {}
            return EngineFailure(
                str(cause), details.get("cause_id"), details.get("remedy"), state.get("exit_code")
            )
        if container.state != "running":
            _keep_log(service, log)
            return _by_its_log(container, log)
    return None


def _by_its_log(container: ServiceStatus, log: Path) -> EngineFailure:
    """Return why a container ended, whose state went with it."""
    watcher = StartupWatcher()
    with log.open("rb") as file:
        while chunk := file.read(1 << 16):
            watcher.feed(chunk)
    watcher.close()
    if container.exit_code is not None:
        watcher.note_exit(container.exit_code)
    told = watcher.explain()
    ended = f"its container ended ({container.status})"
    return EngineFailure(
        told.cause or ended, told.cause_id, told.remedy, container.exit_code, tuple(told.evidence[:3])
    )
