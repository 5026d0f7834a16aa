"""How a campaign starts an engine: what a runner must do, and the one that runs `deploy-kit serve` itself."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from deploy_kit.campaign.model import LEVER_OFF, Schedule
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import file_error
from deploy_kit.plan.model import Plan
from deploy_kit.runtime.postmortem import FILE_NAME as POST_MORTEM
from deploy_kit.runtime.settings import Settings
from deploy_kit.runtime.state import EngineState, read_state

POLL_SECONDS = 0.25
KILL_AFTER_SECONDS = 30.0  # beyond the drain time that `serve` was given
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
# What `serve` would otherwise take from our own environment instead of the plan.
_PLAN_VARIABLES = tuple(f"DEPLOY_KIT_{name}" for name in ("HOST", "MODEL", "STACK", "DRAFTER", "LEVERS"))

Say = Callable[[str], None]  # what is going on, in a few words


@dataclass(eq=False)
class EngineFailure(Exception):  # noqa: N818  (an outcome to record, not an error of ours)
    """Why an engine did not come up, or ended: the watcher's cause, `serve`'s exit code, what decided."""

    cause: str
    cause_id: str | None = None
    remedy: str | None = None
    exit_code: int | None = None
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunningEngine:
    """An engine that has given a real completion. `failure` looks whether it has ended since."""

    url: str
    start_seconds: float
    api_key: str | None = field(default=None, repr=False)
    failure: Callable[[], EngineFailure | None] = lambda: None
    # Lever → the line by which the engine said, up to now, that it leaves it off.
    levers_off: Callable[[], Mapping[str, str]] = dict


class EngineRunner(Protocol):
    """Starts engines for a campaign."""

    @property
    def name(self) -> str:
        """Its word for `--engines`, or a stand-in's name."""
        ...

    @property
    def stand_in(self) -> str | None:
        """What stands in for a real engine, or None."""
        ...

    @property
    def address(self) -> str:
        """The address that every plan of the campaign listens on."""
        ...

    @property
    def port(self) -> int:
        """The port that every plan of the campaign listens on."""
        ...

    def running(self, plan: Plan, folder: Path, say: Say) -> AbstractContextManager[RunningEngine]:
        """Start the plan's engine, wait until it is ready, and stop it at the end of the block.

        `folder` is this start's own: logs and state go there. Raises `EngineFailure` when the engine does not
        come up, `DeployKitError` when the machine is not fit to start any.
        """
        ...


@dataclass(frozen=True)
class ServeRunner:
    """Runs `deploy-kit serve` as a child process: on the machine, and with the Python, that has the engine.

    The child is ended with us, however we end. `settings` are our own environment's, `host` is the host's
    name or file as the plans were resolved with.
    """

    settings: Settings
    schedule: Schedule
    host: str
    configs: Path
    command: tuple[str, ...] = (sys.executable, "-m", "deploy_kit", "serve")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    name: str = "serve"
    stand_in: str | None = None

    @property
    def address(self) -> str:
        """Where the engines listen."""
        return "127.0.0.1"

    @property
    def port(self) -> int:
        """The port they listen on."""
        return self.settings.port

    @contextlib.contextmanager
    def running(self, plan: Plan, folder: Path, say: Say) -> Iterator[RunningEngine]:
        """Start `serve`, wait for readiness in its state file, stop it at the end."""
        # One that an earlier, killed campaign left behind is draining: it ends by itself.
        wait_for_port(self.address, plan.port, self.settings.drain_seconds + KILL_AFTER_SECONDS, say)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            log = (folder / "engine.log").open("wb")
        except OSError as error:
            raise file_error("cannot write the engine's log", folder, error) from error
        began = time.monotonic()
        with log:
            process = subprocess.Popen(
                self._argv(plan),
                env=self._environment(plan, folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is ours: we stop it in order
                preexec_fn=_end_with_parent,  # noqa: PLW1509  (it only calls prctl)
            )
        try:
            self._wait_until_ready(process, folder, began, say)
            yield RunningEngine(
                url=f"http://{self.address}:{plan.port}",
                start_seconds=time.monotonic() - began,
                api_key=_read_key(self.settings.api_key_file),
                failure=lambda: None if process.poll() is None else failure_of(folder, process.returncode),
                levers_off=lambda: levers_off_of(getattr(read_state(folder), "details", None)),
            )
        finally:
            say("stopping the engine")
            self._stop(process)

    def _argv(self, plan: Plan) -> list[str]:
        words = [*self.command, plan.profile, "--host", self.host, "--stack", plan.stack]
        words += ["--model", plan.model, "--configs", str(self.configs)]
        if plan.drafter is not None:
            words += ["--drafter", plan.drafter]
        return [*words, *(f"--lever={lever}" for lever in plan.levers)]

    def _environment(self, plan: Plan, folder: Path) -> dict[str, str]:
        inherited = {name: value for name, value in self.environment.items() if name not in _PLAN_VARIABLES}
        return {
            **inherited,
            "DEPLOY_KIT_STATE_DIR": str(folder),
            "DEPLOY_KIT_ADDRESS": self.address,
            "DEPLOY_KIT_PORT": str(plan.port),
            "DEPLOY_KIT_EXPORTER_PORT": str(free_port()),
            "DEPLOY_KIT_STOP_HUNG_SECONDS": str(self.schedule.stalled_seconds),
        }

    def _wait_until_ready(
        self, process: subprocess.Popen[bytes], folder: Path, began: float, say: Say
    ) -> None:
        said = ""
        while True:
            code = process.poll()
            state = read_state(folder)
            if code is not None:
                raise failure_of(folder, code)
            if state is not None and state.ready:
                return
            waited = time.monotonic() - began
            if waited > self.schedule.start_limit_seconds:
                raise _too_slow(state, self.schedule.start_limit_seconds)
            phase = "starting" if state is None else state.phase
            if phase != said:
                say(f"engine: {phase}")
                said = phase
            time.sleep(POLL_SECONDS)

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=self.settings.drain_seconds + KILL_AFTER_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()  # the engine dies with it
                process.wait(timeout=KILL_AFTER_SECONDS)


def levers_off_of(details: Mapping[str, Any] | None) -> dict[str, str]:
    """Given a state file's `details`, return the levers that the engine leaves off, each with its line."""
    return dict((details or {}).get("levers_off") or {})


def refuse_levers_off(engine: RunningEngine) -> None:
    """Raise `EngineFailure` when the engine runs without a lever of its plan: measured would be the plan
    without it, under the lever's name."""
    for lever, line in engine.levers_off().items():
        raise EngineFailure(
            cause=f"the engine leaves lever {lever} off, and serves on without it",
            cause_id=LEVER_OFF,
            remedy="nothing was measured: it would be the plan without the lever. What it needs stands in "
            f"configs/levers/{lever}.toml",
            evidence=(line,),
        )


def failure_of(folder: Path, code: int) -> EngineFailure:
    """Given a start's folder and `serve`'s exit code, return why it ended: from the post-mortem and the state
    file when `serve` came so far, else from the last lines of its output."""
    state = read_state(folder)
    try:
        explanation: dict[str, Any] = json.loads((folder / POST_MORTEM).read_text())["explanation"]
    except (OSError, ValueError, KeyError, TypeError):
        explanation = {}
    cause = explanation.get("cause") or (state.cause if state is not None else None)
    if cause:
        return EngineFailure(
            cause=str(cause),
            cause_id=explanation.get("cause_id"),
            remedy=explanation.get("remedy"),
            exit_code=code,
            evidence=tuple(str(line) for line in explanation.get("evidence") or ())[:8],
        )
    words = _last_lines(folder / "engine.log")
    said = next((line for line in words if line.startswith("deploy-kit:")), None)
    remedy = next((line.partition("remedy:")[2].strip() for line in words if "remedy:" in line), None)
    summary = (
        said.removeprefix("deploy-kit:").strip() if said else "`serve` ended before it started an engine"
    )
    return EngineFailure(summary, None, remedy, code, tuple(words[-8:]))


def _too_slow(state: EngineState | None, limit_seconds: int) -> EngineFailure:
    phase = "starting" if state is None else state.phase
    details = {} if state is None else state.details
    return EngineFailure(
        cause=f"not ready within {limit_seconds} s: it was in phase {phase}",
        cause_id="start-limit",
        remedy="look at its log; raise start_limit_seconds if the start only needs longer",
        exit_code=int(ExitCode.ENGINE_HUNG),
        evidence=tuple(str(check) for check in details.get("stalled_checks") or ()),
    )


def _last_lines(log: Path, count: int = 20) -> list[str]:
    try:
        with log.open("rb") as handle:
            handle.seek(max(0, log.stat().st_size - 16384))
            return handle.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []


def wait_for_port(address: str, port: int, limit_seconds: float, say: Say) -> None:
    """Wait until nothing listens on the port; raise when something still does after the limit."""
    deadline = time.monotonic() + limit_seconds
    said = False
    while True:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise DeployKitError(
                        f"port {port} on {address} stays taken: {error.strerror}",
                        key="DEPLOY_KIT_PORT",
                        found=port,
                        remedy="stop what listens there (ss -ltnp shows it), or choose another port",
                        exit_code=ExitCode.PORT_TAKEN,
                    ) from error
        if not said:
            say(f"waiting for port {port}: something still listens there")
            said = True
        time.sleep(POLL_SECONDS)


def free_port() -> int:
    """Return a port that nothing listens on at this moment."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def choose_host(given: str | None, named: str | None, settings: Settings) -> str | None:
    """Given the host of the command line, of the campaign file and of the settings, return the one to use."""
    return given or named or settings.host


def _read_key(path: Path | None) -> str | None:
    from deploy_kit.bench.about import read_key

    return read_key(path)


def _end_with_parent() -> None:
    # SIGTERM, so that it drains and takes its engine along, whatever ended us.
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
