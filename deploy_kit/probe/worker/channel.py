"""The line protocol between harness and rank: commands in, events out, one JSON object a line."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, TextIO

PR_SET_PDEATHSIG = 1


class Channel:
    """Commands on stdin, events on the original stdout; whatever libraries print goes to stderr instead."""

    def __init__(self) -> None:
        self._events: TextIO = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def send(self, event: str, **fields: Any) -> None:
        """Write one event line."""
        self._events.write(json.dumps({"event": event, **fields}, allow_nan=False) + "\n")
        self._events.flush()

    def at(self, where: str) -> None:
        """Say what this rank is about to do; after a hang, this is where it was."""
        self.send("at", where=where)

    @staticmethod
    def commands() -> Iterator[dict[str, Any]]:
        """Yield the harness's commands until it closes the pipe."""
        while line := sys.stdin.readline():
            yield json.loads(line)


def die_with_parent() -> None:
    """End this process when the harness dies, so that no rank is left spinning on a GPU (Linux only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1 and os.environ.get("DEPLOY_KIT_PROBE_PARENT") not in (None, "1"):
        sys.exit(1)


def show_stack_on_signal() -> None:
    """On SIGUSR1 write this rank's Python stack to stderr, even while it is stuck inside C code."""
    faulthandler.enable(all_threads=False)
    faulthandler.register(signal.SIGUSR1, all_threads=False, chain=False)
