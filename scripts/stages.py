"""Runs the test stages; `scripts/test.sh [stage…]` calls it.

Without names everything runs, in two lanes side by side. Stages that are named, and all of them with
KIT_SLOW=1, run one after another, as listed: the tests that measure while they serve want a quiet machine.

The first failure, Ctrl-C or a request to end stops everything that was started, the deployment of a whole run
too. With two lanes a stage's output stands in var/test/NAME.log and is shown whole when the stage ends.

Exit codes: 0 all passed; 1 a stage failed; 2 unknown stage; 128 + N ended by signal N.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
SLOW = bool(os.environ.get("KIT_SLOW"))
# Tests on machines of their own: containers with an init, registries. They need the Docker that `up` started.
HOSTS = ("tests/integration/provision", "tests/integration/fleet")
IMAGES = "tests/integration/images"
MARKED = ("-m", "slow or not slow" if SLOW else "not slow")
# Two at a time; tests/conftest.py says which stay together.
WORKERS = () if SLOW else ("-n", "2", "--dist", "loadgroup")


@dataclass(frozen=True)
class Stage:
    """One stage: its command, and which stages of the same run must have passed before it."""

    name: str
    command: tuple[str, ...]
    after: tuple[str, ...] = ()


def _pytest(*words: str, slowest: int = 8) -> tuple[str, ...]:
    return ("pytest", "-q", f"--durations={slowest}", *words)


_STAGES = (
    Stage("lint", ("scripts/lint.sh",)),
    Stage("monitoring", ("monitoring/check.sh",)),
    Stage("unit", ("pytest", "-q", "-n", "2", "tests/unit")),
    Stage(
        "integration",
        _pytest(
            *MARKED, *WORKERS, "--ignore=tests/integration/engine",
            *(f"--ignore={folder}" for folder in (IMAGES, *HOSTS)), "tests/integration",
        ),
    ),
    Stage("up", ("deploy-kit", "up")),
    Stage("e2e", _pytest("tests/e2e"), after=("up",)),
    Stage("slice", _pytest(IMAGES, slowest=3), after=("up",)),
    Stage("engine", ("scripts/test-engine.sh",), after=("up",)),
    Stage("hosts", _pytest(*MARKED, *HOSTS)),
    Stage("down", ("deploy-kit", "down")),
)  # fmt: skip
STAGES: Mapping[str, Stage] = {stage.name: stage for stage in _STAGES}
# The first lane builds, reads and compares what was computed; the second measures time and waits.
LANES = (("up", "lint", "monitoring", "slice", "engine"), ("unit", "integration", "e2e"))
SLOW_ORDER = ("lint", "monitoring", "unit", "integration", "up", "e2e", "slice", "engine", "hosts")
CLEAN_UP = "down"

SILENCE_SECONDS = 60.0
# A stage that is stopped is asked, then told, then killed.
STOP = ((signal.SIGINT, 40.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0))


@dataclass
class Run:
    """The stages of one call: what runs, what is over."""

    logs: Path
    say: Callable[[str], None] = lambda text: print(text, flush=True)
    began: float = field(default_factory=time.monotonic)
    lines: list[str] = field(default_factory=list)
    begun: set[str] = field(default_factory=set)
    failed: bool = False
    signal: int | None = None
    _passed: set[str] = field(default_factory=set)
    _running: dict[str, tuple[subprocess.Popen[bytes], float]] = field(default_factory=dict)
    _groups: set[int] = field(default_factory=set)  # process groups of the stages that have not passed
    _change: threading.Condition = field(default_factory=threading.Condition)
    _spoke: float = field(default_factory=time.monotonic)

    @property
    def over(self) -> bool:
        """Whether nothing more may start."""
        return self.failed or self.signal is not None

    def run(self, lanes: Sequence[Sequence[Stage]]) -> bool:
        """Run the lanes side by side and return whether every stage passed. One lane alone shows its output
        as it comes."""
        threads = [
            threading.Thread(target=self._run_lane, args=(lane, lanes, len(lanes) > 1), daemon=True)
            for lane in lanes
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            with self._change:
                self._change.wait(0.5)
            if self.over:
                self._stop_all()
            elif len(lanes) > 1 and time.monotonic() - self._spoke > SILENCE_SECONDS:
                self._say_what_runs()
        return not self.over

    def end(self, number: int) -> None:
        """Take a signal: everything is to end. Called from the handler, so it only notes it."""
        self.signal = number

    def _run_lane(self, lane: Sequence[Stage], lanes: Sequence[Sequence[Stage]], quiet: bool) -> None:
        there = {stage.name for one in lanes for stage in one}
        for stage in lane:
            needed = there.intersection(stage.after)
            with self._change:
                while not (needed <= self._passed or self.over):
                    self._change.wait(0.5)
                if self.over:
                    return
                process = self._start(stage, quiet)
            code = process.wait()
            self._finish(stage, code, quiet)

    def _start(self, stage: Stage, quiet: bool) -> subprocess.Popen[bytes]:
        # Called with the lock held: a stop that comes now finds this stage among those that run.
        self.begun.add(stage.name)
        if quiet:
            self._speak(f"{self._clock()}  {stage.name} begins")
        else:
            self._speak(f"\n=== {stage.name}")
        log = self.logs / f"{stage.name}.log"
        with log.open("wb") if quiet else contextlib.nullcontext() as output:
            process = subprocess.Popen(
                stage.command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if quiet else None,
                start_new_session=True,
            )
        self._running[stage.name] = (process, time.monotonic())
        self._groups.add(process.pid)
        return process

    def _finish(self, stage: Stage, code: int, quiet: bool) -> None:
        with self._change:
            process, started = self._running.pop(stage.name)
            word = "ok" if code == 0 else "ended" if self.over else "FAILED"
            line = f"{word:<7} {stage.name:<12} {time.monotonic() - started:4.0f} s"
            self.lines.append(line)
            if quiet:
                text = (self.logs / f"{stage.name}.log").read_text(errors="replace").strip("\n")
                self._speak(f"\n=== {stage.name}: {' '.join(line.split())}\n{text}\n")
            if code == 0:
                self._passed.add(stage.name)
                self._groups.discard(process.pid)
            elif not self.over:
                self.failed = True
            self._change.notify_all()

    def _stop_all(self) -> None:
        """End every group that is left, also of a stage whose own process is gone."""
        for number, seconds in STOP:
            deadline = time.monotonic() + seconds
            self._send(number)
            while self._send(0) and time.monotonic() < deadline:
                time.sleep(0.05)

    def _send(self, number: int) -> bool:
        """Send a signal (0: none) to the groups that are left; return whether there were any."""
        with self._change:
            groups = list(self._groups)
        found = False
        for group in groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)
                found = True
        return found

    def _say_what_runs(self) -> None:
        with self._change:
            now = time.monotonic()
            running = ", ".join(f"{name} ({now - since:.0f} s)" for name, (_, since) in self._running.items())
        self._speak(f"{self._clock()}  running: {running}")

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self.began)
        return f"[{seconds // 60:2d} min {seconds % 60:2d} s]"

    def _speak(self, text: str) -> None:
        self._spoke = time.monotonic()
        self.say(text)


def main(names: Sequence[str]) -> int:
    """Run the named stages, or all; return the exit code."""
    unknown = [name for name in names if name not in STAGES]
    if unknown:
        print(f"unknown stage: {unknown[0]} (there are: {', '.join(STAGES)})", file=sys.stderr)
        return 2
    logs = ROOT / "var" / "test"
    logs.mkdir(parents=True, exist_ok=True)
    run = last = Run(logs)

    def end(number: int, _frame: object) -> None:
        last.end(number)

    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, end)
    whole = not names
    order = (tuple(names),) if names else (SLOW_ORDER,) if SLOW else LANES
    passed = run.run([[STAGES[name] for name in lane] for lane in order])
    if whole and (passed or "up" in run.begun):
        # Whatever happened, the deployment that this run started ends with it.
        last = Run(logs, began=run.began, lines=run.lines)
        passed = last.run([[STAGES[CLEAN_UP]]]) and passed
    seconds = int(time.monotonic() - run.began)
    print("", *run.lines, f"all in {seconds // 60} min {seconds % 60} s", sep="\n")
    number = run.signal or last.signal
    if number is not None:
        return 128 + number
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
