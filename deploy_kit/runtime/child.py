"""The engine as a child process: its output passed through without the secret, its whole group ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

CHUNK_BYTES = 65536
HIDDEN = b"[secret]"


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
        )
        self._reader = threading.Thread(
            target=_pass_through,
            args=(
                self._process.stdout,
                output if output is not None else sys.stdout.buffer,
                None if secret is None else secret.encode(),
                observer,
            ),
            name="engine-output",
            daemon=True,
        )
        self._reader.start()

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

    def stop(self, *, grace_seconds: float) -> int:
        """Wait up to the grace time for the launcher, then end the whole group; return its exit code."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=grace_seconds)
        self._end_group(signal.SIGTERM, wait_seconds=2.0)
        self._end_group(signal.SIGKILL, wait_seconds=5.0)
        code = self._process.wait(timeout=10)
        self._reader.join(timeout=5)
        return code

    def _end_group(self, signum: int, *, wait_seconds: float) -> None:
        deadline = time.monotonic() + wait_seconds
        while living_members(self._process.pid):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signum)
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


def _pass_through(
    source: IO[bytes] | None,
    output: IO[bytes],
    secret: bytes | None,
    observer: Callable[[bytes], None] | None,
) -> None:
    if source is None:
        return
    held = b""
    while chunk := os.read(source.fileno(), CHUNK_BYTES):
        if secret is not None:
            chunk, held = redact(held + chunk, secret)
        _write(output, chunk)
        if observer is not None:
            observer(chunk)
    _write(output, held)
    if observer is not None and held:
        observer(held)


def redact(data: bytes, secret: bytes) -> tuple[bytes, bytes]:
    """Given output, return (what can be written, the secret hidden; an end that may begin the secret).

    >>> redact(b"key=abcdef x abc", b"abcdef")
    (b'key=[secret] x ', b'abc')
    """
    data = data.replace(secret, HIDDEN)
    for length in range(min(len(secret) - 1, len(data)), 0, -1):
        if data.endswith(secret[:length]):
            return data[:-length], data[-length:]
    return data, b""


def _write(output: IO[bytes], data: bytes) -> None:
    # A reader of our output that went away must not end the engine.
    with suppress(BrokenPipeError, ValueError):
        output.write(data)
        output.flush()
