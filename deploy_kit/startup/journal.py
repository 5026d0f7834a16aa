"""What the readers of lines write down of one start: phase, signs of life, failures, deaths, hints."""

from __future__ import annotations

from typing import Any

from deploy_kit.startup.blocks import Failure, Raised
from deploy_kit.startup.lines import Line, seconds_between
from deploy_kit.startup.rule import Finding
from deploy_kit.startup.run import RING_CHARACTERS, Death, Run
from deploy_kit.startup.status import PHASES

MAX_FAILURES = 24
MAX_RANKS = 72
MAX_HINTS = 16
ORDER = {phase: index for index, phase in enumerate(PHASES)}


class Journal:
    """One start (`run`), and what is being read just now: the number of the line, an open fault dump
    (`fault`), an abort that waits for its what() (`abort`)."""

    def __init__(self) -> None:
        self.run = Run()
        self.order = 0
        self.silent_seconds: float | None = None
        self.fault: Failure | None = None
        self.fault_current = False
        self.abort: Failure | None = None

    def begin_again(self) -> None:
        """Forget the start: another one begins in the same log."""
        self.run = Run()
        self.fault = self.abort = None

    def reach(self, phase: str, line: Line, *, new_load: bool = False) -> None:
        """The line's rank has come to this phase (`new_load`: it begins to load another model)."""
        run = self.run
        if run.ready and phase != "serving":
            return
        loads, index = run.stages.get(line.rank, (0, 0))
        if new_load:
            target = (loads + 1, ORDER[phase])
        else:
            target = (loads, max(index, ORDER[phase])) if ORDER[phase] >= index else (loads, index)
        if target > (loads, index):
            before = run.stage
            if len(run.stages) < MAX_RANKS or line.rank in run.stages:
                run.stages[line.rank] = target
            if run.stage > before:
                self.alive(line, strong=False)
                if run.stage[1] != before[1] or run.stage[0] != before[0]:
                    run.compiling = False
                    if run.progress is not None and run.progress.kind != "compile":
                        run.progress = None

    def alive(self, line: Line, *, strong: bool) -> None:
        """A sign of life: tracebacks without a fatal header that are older were of something handled."""
        run = self.run
        run.life_order = self.order
        for failure in run.failures:
            if failure.fatal is None:
                later = seconds_between(failure.stamp, line.stamp)
                if strong or (later is not None and later > 5):
                    failure.fatal = False

    def death(self, kind: str, line: Line, **more: Any) -> Death:
        """The engine says here that one of its processes ended."""
        death = Death(kind, line.text[:RING_CHARACTERS], self.order, **more)
        if len(self.run.deaths) < MAX_FAILURES:
            self.run.deaths.append(death)
        return death

    def hint(self, key: str, finding: Finding, text: str) -> None:
        """Remember a line that is the cause if the engine ends, and nothing if it does not."""
        if len(self.run.hints) < MAX_HINTS:
            self.run.hints.setdefault(key, (self.order, finding, text[:RING_CHARACTERS]))

    def failure_of_line(self, line: Line, type_: str, message: str, finding: Finding | None) -> Failure:
        """Write down a failure that is told by one line, without a traceback."""
        failure = Failure(line.text[:200], line.rank, line.stamp, True)
        failure.chain.append(Raised(type_, message))
        self.add(failure, line)
        if finding is not None:
            self.hint(f"line{self.order}", finding, line.text)
            failure.header = f"\0line{self.order}"
        return failure

    def add(self, failure: Failure, line: Line) -> None:
        """Write a failure down with the moment it happened in; of too many, the first and the fatal ones."""
        run = self.run
        failure.order = self.order
        failure.phase = run.phase if not run.ready else "serving"
        failure.ready_before = run.ready
        failure.second_load = run.stage[0] >= 2 and PHASES[run.stage[1]] == "loading"
        if run.progress is not None:
            failure.percent = float(run.progress.percent)
        if failure.rank is None and line.rank is not None:
            failure.rank = line.rank
        if len(run.failures) < MAX_FAILURES:
            run.failures.append(failure)
            return
        run.failures_left_out += 1
        # Keep the first ones, and let handled ones make room.
        for index, old in enumerate(run.failures):
            if old.fatal is False:
                del run.failures[index]
                run.failures.append(failure)
                return
        if failure.fatal:
            for index, old in enumerate(run.failures):
                if old.fatal is None:
                    del run.failures[index]
                    run.failures.append(failure)
                    return
