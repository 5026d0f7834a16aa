"""The engine as a child process: its output passed through without the secret, its whole group ended."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from deploy_kit.runtime.relay import HIDDEN, Relay, redact

__all__ = ["HIDDEN", "Engine", "Stopped", "living_members", "redact"]

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    # Runs in the child between fork and exec: if we are killed, the engine must not stay behind.
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@dataclass(frozen=True)
class Stopped:
    """How an engine ended: its launcher's exit code (negative: the signal), and whether we had to end it."""

    code: int
    forced: bool


class Engine:
    """A started engine. Its processes form one group, so that none is left behind."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        secret: str | None = None,
        observer: Callable[[bytes], None] | None = None,
        output: IO[bytes] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            list(argv),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            bufsize=0,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  (it only calls prctl)
        )
        if self._process.stdout is None:  # cannot be: stdout=PIPE
            raise RuntimeError("the engine has no output pipe")
        self.relay = Relay(
            self._process.stdout,
            output if output is not None else sys.stdout.buffer,
            secret=None if secret is None else secret.encode(),
            observer=observer,
        )

    @property
    def pid(self) -> int:
        """The process id of the engine's launcher, which is also its group."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code (negative: the signal that ended it), or None while it runs."""
        return self._process.poll()

    def send(self, signum: int) -> None:
        """Send a signal to the launcher alone: SGLang drains its own children."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signum)

    def stop(self, *, grace_seconds: float, hurry: Callable[[], bool] | None = None) -> Stopped:
        """Wait up to the grace time for the launcher (or until `hurry` says so), then end the whole group."""
        deadline = time.monotonic() + grace_seconds
        while self._process.poll() is None and time.monotonic() < deadline:
            if hurry is not None and hurry():
                break
            time.sleep(0.05)
        ended_by_itself = self._process.poll()
        # A stopped process (SIGSTOP) takes no SIGTERM before it goes on.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGCONT)
        self._end_group(signal.SIGTERM, wait_seconds=2.0)
        self._end_group(signal.SIGKILL, wait_seconds=5.0)
        code = self._process.wait(timeout=10)
        self.relay.finish(timeout_seconds=3.0)
        return Stopped(code, True) if ended_by_itself is None else Stopped(ended_by_itself, False)

    def _end_group(self, signum: int, *, wait_seconds: float) -> None:
        deadline = time.monotonic() + wait_seconds
        sent = False
        while living_members(self._process.pid):
            self._process.poll()
            if not sent or signum == signal.SIGKILL:  # a child may still be forking: kill until none is left
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signum)
                sent = True
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)


def living_members(group: int, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes of a group that still run. Zombies are left out: as process 1 of a container we
    inherit orphans, which count for killpg until they are reaped."""
    members = []
    for stat in proc.glob("[0-9]*/stat"):
        try:
            state, _parent, process_group = stat.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(process_group) == group and state not in "ZX":
            members.append(int(stat.parent.name))
    return members
