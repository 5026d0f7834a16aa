"""Runs the steps one after the other, each in a process of its own; what is done is never done again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.firstlight.settings import Settings, Situation, State, StepState, read_state
from deploy_kit.firstlight.steps import Step, steps_of
from deploy_kit.receipts import read_receipts
from deploy_kit.receipts.bench import was_interrupted

Say = Callable[[str], None]
_FILLED = re.compile(r"\{(url|key):([^}]+)\}")
_FIELDS = {"url": "url", "key": "api_key_file"}
_TERM_SECONDS = 20.0


class Runner:
    """Runs a first light in its work folder."""

    def __init__(self, settings: Settings, situation: Situation, work: Path, say: Say) -> None:
        self.settings = settings
        self.situation = situation
        self.work = work.resolve()
        self.say = say
        self.state = read_state(self.work, settings)
        self.steps = steps_of(settings, situation, self.work)

    def run(self, refresh: Callable[[], Situation] | None = None) -> State:
        """Run what is not done, in order; postponed steps once more at the end, with the situation read
        again (`refresh`). A failing step is written down and the next one runs."""
        for name in ("receipts", "doctor", "probe", "engines", "steps"):
            (self.work / name).mkdir(parents=True, exist_ok=True)
        last = [step for step in self.steps if step.name in ("decide", "report")]
        postponed = [step for step in self.steps if step not in last and not self._take(step)]
        if postponed and refresh is not None:
            self.situation = refresh()
            self.steps = steps_of(self.settings, self.situation, self.work)
            names = {step.name for step in postponed}
            for step in self.steps:
                if step.name in names and not self._take(step):
                    self._note(step, StepState(outcome="skipped", why=step.postpone))
        elif postponed:
            for step in postponed:
                self._note(step, StepState(outcome="skipped", why=step.postpone))
        for step in last:
            # Cheap, and what they read may have grown: always run again.
            self.state.steps.pop(step.name, None)
            self._take(step)
        return self.state

    def _take(self, step: Step) -> bool:
        """Run one step unless it is done or cannot run; return False when it has to wait."""
        known = self.state.steps.get(step.name)
        if known is not None and known.outcome == "done" and not self._stale(step):
            return True
        if step.skip:
            self._note(step, StepState(outcome="skipped", why=step.skip))
            return True
        if step.postpone:
            self.say(f"{step.name} waits: {step.postpone}")
            return False
        missing = [name for name in step.needs if not self._is_done(name)]
        if missing:
            self._note(step, StepState(outcome="skipped", why=f"{', '.join(missing)} is not done"))
            return True
        if step.name.startswith("bench-") and self._measured(step.name.removeprefix("bench-")):
            self._note(step, StepState(outcome="done", why="its receipt is there already"))
            return True
        self._execute(step)
        return True

    def _stale(self, step: Step) -> bool:
        # A start is for its bench: while that is not done, the engine is started again.
        return step.starts is not None and not self._is_done(f"bench-{step.starts}")

    def _is_done(self, name: str) -> bool:
        known = self.state.steps.get(name)
        return known is not None and known.outcome == "done"

    def _measured(self, place: str) -> bool:
        found = read_receipts(self.work / "receipts", kind="bench")
        # What an interrupted bench kept is good, and not the whole measurement.
        return any(
            receipt.subject.get("server_start") == place and not was_interrupted(receipt) for receipt in found
        )

    def _execute(self, step: Step) -> None:
        try:
            command = self._command(step)
        except DeployKitError as error:
            self._note(step, StepState(outcome="failed", why=error.summary))
            return
        shown = shlex.join(["deploy-kit", *self._filled(step)])
        self.say(f"{step.name}: {step.title} (about {duration(step.estimate_seconds)})")
        if step.starts:
            self.state.engine = step.starts
            for name in ("log", "explain", "down"):  # they belong to this start, not to the one before
                self.state.steps.pop(f"{name}-{step.starts}", None)
            self.state.write(self.work)
        began = time.monotonic()
        try:
            code, why = self._process(step, command)
        except KeyboardInterrupt:
            self._note(step, StepState(outcome="interrupted", why="stopped by hand", command=shown))
            raise
        seconds = round(time.monotonic() - began, 1)
        if step.stops and code == 0:
            self.state.engine = None
        done = code in step.accepts and why is None
        self._note(
            step,
            StepState(
                outcome="done" if done else "failed",
                exit_code=code,
                seconds=seconds,
                why=_verdict(code) if done else why or self._reason(step, code),
                command=shown,
            ),
        )

    def _process(self, step: Step, command: Sequence[str]) -> tuple[int | None, str | None]:
        out = self.work / (step.output or f"steps/{step.name}.out")
        out.parent.mkdir(parents=True, exist_ok=True)
        errors = self.work / "steps" / f"{step.name}.err"
        with out.open("wb") as stdout, errors.open("wb") as stderr:
            # A group of its own: a hanging step is stopped with all its children.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            try:
                return process.wait(timeout=step.limit_seconds), None
            except subprocess.TimeoutExpired:
                _stop(process)
                return None, f"stopped after {duration(step.limit_seconds)}: it hangs"
            except KeyboardInterrupt:
                _stop(process)
                raise

    def _filled(self, step: Step) -> list[str]:
        def value(match: re.Match[str]) -> str:
            path = self.work / match[2]
            try:
                report = json.loads(path.read_text()).get("report") or {}
                return str(report[_FIELDS[match[1]]])
            except (OSError, ValueError, KeyError, AttributeError) as error:
                raise DeployKitError(
                    f"the start's answer has no {_FIELDS[match[1]]}", file=path, exit_code=ExitCode.INPUT
                ) from error

        return [_FILLED.sub(value, word) for word in step.arguments]

    def _command(self, step: Step) -> list[str]:
        words = self._filled(step)
        if step.image is None:
            return [sys.executable, "-m", "deploy_kit", *words]
        mounts: list[str] = []
        if self.situation.host in words and Path(self.situation.host).is_file():
            inside = "/run/deploy-kit-host.toml"  # a host file of this machine, not one of the image's
            mounts = ["--volume", f"{Path(self.situation.host).resolve()}:{inside}:ro"]
            words = [inside if word == self.situation.host else word for word in words]
        gpus = ["--device", "nvidia.com/gpu=all"] if self.situation.gpus else []
        return [
            "docker", "run", "--rm", *gpus, "--shm-size", "8g", "--ulimit", "memlock=-1",
            "--user", f"{os.getuid()}:{os.getgid()}", "--volume", f"{self.work}:/out", *mounts,
            "--tmpfs", "/tmp:mode=1777,exec",  # noqa: S108  (inside the container)
            "--env", "HOME=/tmp", "--entrypoint", "deploy-kit", step.image, *words,
        ]  # fmt: skip

    def _reason(self, step: Step, code: int | None) -> str:
        """Return why a step failed: the error it printed (as JSON or as a block), else its exit code."""
        for path in (self.work / (step.output or ""), self.work / "steps" / f"{step.name}.err"):
            if not path.is_file():
                continue
            text = path.read_bytes()[-200_000:].decode(errors="replace")
            with contextlib.suppress(ValueError, AttributeError):
                return f"exit code {code}: {json.loads(text)['error']}"
            lines = [line for line in text.splitlines() if line.startswith("deploy-kit: ")]
            if lines:
                return f"exit code {code}: {lines[-1].removeprefix('deploy-kit: ')}"
        return f"exit code {code}"

    def _note(self, step: Step, what: StepState) -> None:
        self.state.steps[step.name] = what
        self.state.write(self.work)
        took = "" if what.seconds is None else f" in {duration(what.seconds)}"
        self.say(f"{step.name}: {what.outcome}{took}" + (f" ({what.why})" if what.why else ""))


def duration(seconds: float) -> str:
    """Return a time for people: "40 s", "12 min", "1 h 5 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _verdict(code: int | None) -> str | None:
    return {20: "verdict: look at it", 21: "verdict: fail", 22: "verdict: unknown"}.get(code or 0)


def _stop(process: subprocess.Popen[bytes]) -> None:
    for sign, seconds in ((signal.SIGTERM, _TERM_SECONDS), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds)
            return
