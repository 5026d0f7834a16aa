"""The ranks of one candidate, in processes of their own: started, told what to do, watched, ended."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy_kit.probe.classify import Outcome, RankView, classify_failure, classify_hang

_STDERR_LINES = 200
_GRACE_SECONDS = 0.7  # for the other ranks to say what they saw, once one has failed
_STACK_SECONDS = 0.4
_LEAST_SECONDS = 1.0  # for an answer that should be there by now

# The worker's package is found at the end of the path, so an interpreter's own packages come first.
_START_WORKER = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); "
    "runpy.run_module('deploy_kit.probe.worker', run_name='__main__', alter_sys=True)"
)


class GroupFailedError(Exception):
    """The candidate's ranks did not finish a step; all of them are ended."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.text())
        self.outcome = outcome


class _Rank:
    def __init__(self, number: int, process: subprocess.Popen[str], inbox: queue.Queue[int]) -> None:
        self.number = number
        self.process = process
        self.events: deque[dict[str, Any]] = deque()
        self.stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self.at = ""
        self.progress = 0
        self.answer: dict[str, Any] | None = None
        self.failure: dict[str, str] | None = None
        self._inbox = inbox
        self._threads = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(target=self._read_stderr, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def tell(self, message: Mapping[str, Any]) -> None:
        # A rank that has just died cannot be told anything; its end is noticed by the reader.
        with contextlib.suppress(OSError, ValueError):
            if self.process.stdin is not None:
                self.process.stdin.write(json.dumps(message) + "\n")
                self.process.stdin.flush()

    def begin(self) -> None:
        self.at, self.progress, self.answer = "", 0, None

    def view(self) -> RankView:
        return RankView(
            self.number,
            self.answer is not None,
            self.at,
            self.progress,
            self.failure,
            self.process.poll(),
            tuple(self.stderr),
        )

    def join_readers(self, seconds: float) -> None:
        for thread in self._threads:
            thread.join(seconds)

    def _read_events(self) -> None:
        if self.process.stdout is None:
            return
        for line in self.process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                self.stderr.append(line.rstrip())
                continue
            if event["event"] == "at":
                self.at, self.progress = event["where"], self.progress + 1
                continue
            if event["event"] == "done":
                self.answer = event["result"]
            elif event["event"] == "failed":
                self.failure = {key: str(event[key]) for key in ("kind", "type", "message")}
            else:
                continue
            self._inbox.put(self.number)
        self.process.wait()
        self._inbox.put(self.number)

    def _read_stderr(self) -> None:
        if self.process.stderr is not None:
            for line in self.process.stderr:
                self.stderr.append(line.rstrip())


class Group:
    """One candidate's ranks. Use as a context manager, or call `kill` in the end."""

    def __init__(
        self, *, python: str, job: Mapping[str, Any], world_size: int, environment: Mapping[str, str]
    ) -> None:
        """Start the ranks; they import torch and take their device at once, and answer as step "start"."""
        self.world_size = world_size
        self._folder = tempfile.TemporaryDirectory(prefix="deploy-kit-probe-")
        self._inbox: queue.Queue[int] = queue.Queue()
        self._ranks: list[_Rank] = []
        self.ended = False
        root = str(Path(__file__).parents[2])
        shared = {**job, "world_size": world_size, "rendezvous": str(Path(self._folder.name) / "rendezvous")}
        try:
            for number in range(world_size):
                process = subprocess.Popen(
                    [python, "-u", "-c", _START_WORKER, root],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    env={**environment, "DEPLOY_KIT_PROBE_PARENT": str(os.getpid())},
                    start_new_session=True,
                )
                rank = _Rank(number, process, self._inbox)
                self._ranks.append(rank)
                rank.tell({**shared, "rank": number})
        except OSError:
            self.kill()
            raise

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def started(self, limit_seconds: float) -> list[dict[str, Any]]:
        """Wait until every rank has imported torch and taken its device; return what each runs on."""
        return self._wait("start", limit_seconds)

    def command(self, step: str, limit_seconds: float, **arguments: Any) -> list[dict[str, Any]]:
        """Tell every rank to do a step, and return their answers in rank order.

        Raises `GroupFailedError` with the classified outcome when a rank fails, ends, or is not done in time;
        every rank is ended then.
        """
        self.tell(step, **arguments)
        return self.answers(step, limit_seconds)

    def tell(self, step: str, **arguments: Any) -> None:
        """Tell every rank to do a step, and do not wait for it."""
        for rank in self._ranks:
            rank.begin()
        for rank in self._ranks:
            rank.tell({"do": step, **arguments})

    def answers(self, step: str, limit_seconds: float, waited_seconds: float = 0.0) -> list[dict[str, Any]]:
        """Wait for the step that they were told, `waited_seconds` ago; as `command`."""
        return self._wait(step, limit_seconds, waited_seconds)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to wait for in the present step: every rank has answered, or one failed."""
        return all(rank.answer is not None for rank in self._ranks) or any(
            rank.failure is not None or rank.process.poll() is not None for rank in self._ranks
        )

    def kill(self) -> list[int]:
        """End every rank; return the process ids of any that would not end (stuck in the driver)."""
        if self.ended:
            return []
        self.ended = True
        for rank in self._ranks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.process.pid, signal.SIGKILL)
        _kill_sessions({rank.process.pid for rank in self._ranks})
        left = []
        deadline = time.monotonic() + 10
        for rank in self._ranks:
            try:
                rank.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                left.append(rank.process.pid)
                continue
            rank.join_readers(1)
            for pipe in (rank.process.stdin, rank.process.stdout, rank.process.stderr):
                with contextlib.suppress(OSError, ValueError):
                    if pipe is not None:
                        pipe.close()
        self._folder.cleanup()
        return left

    def _wait(self, step: str, limit_seconds: float, waited_seconds: float = 0.0) -> list[dict[str, Any]]:
        deadline = time.monotonic() + max(limit_seconds - waited_seconds, _LEAST_SECONDS)
        while not all(rank.answer is not None for rank in self._ranks):
            if any(rank.failure is not None or rank.process.poll() is not None for rank in self._ranks):
                self._fail(step)
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                self._hang(step, limit_seconds)
            with contextlib.suppress(queue.Empty):
                self._inbox.get(timeout=max(0.01, min(remaining, 0.5)))
        return [rank.answer or {} for rank in self._ranks]

    def _fail(self, step: str) -> None:
        until = time.monotonic() + _GRACE_SECONDS
        while time.monotonic() < until and not all(
            rank.failure is not None or rank.process.poll() is not None for rank in self._ranks
        ):
            time.sleep(0.02)
        for rank in self._ranks:
            if rank.process.poll() is not None:
                rank.join_readers(1)
        outcome = classify_failure(step, [rank.view() for rank in self._ranks])
        self.kill()
        raise GroupFailedError(outcome)

    def _hang(self, step: str, limit_seconds: float) -> None:
        for rank in self._ranks:
            if rank.answer is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    rank.process.send_signal(signal.SIGUSR1)
        time.sleep(_STACK_SECONDS)
        outcome = classify_hang(step, limit_seconds, [rank.view() for rank in self._ranks])
        left = self.kill()
        if left:
            stuck = (
                f"; processes {', '.join(map(str, left))} do not end even when killed (stuck in the driver)"
            )
            outcome = Outcome(
                outcome.status, outcome.step, outcome.ranks, outcome.cause + stuck, outcome.evidence
            )
        raise GroupFailedError(outcome)


def _kill_sessions(leaders: set[int]) -> None:
    """Kill what the ranks started: a compiler's jobs have process groups of their own, but stay in the
    session that each rank leads."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # "pid (name) state ppid pgrp session …", and a name may hold anything.
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int(stat.read_text().rpartition(")")[2].split()[3]) in leaders:
                os.kill(int(stat.parent.name), signal.SIGKILL)
