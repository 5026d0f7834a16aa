"""What `serve` itself says on stderr, without ever waiting for whoever reads it.

Docker reads stdout and stderr through pipes: when its log driver is stuck, a plain write would stop the
supervisor, and with it the signals that end the engine.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from deploy_kit.runtime.relay import Chunks

LIMIT_BYTES = 256 << 10
STDERR = 2


class Voice:
    """Says lines on a file descriptor through a thread of its own; what does not fit is left out."""

    def __init__(self, descriptor: int = STDERR) -> None:
        self._descriptor = descriptor
        self._lines = Chunks(LIMIT_BYTES)
        self._thread = threading.Thread(target=self._write, name="voice", daemon=True)
        self._thread.start()

    def __call__(self, text: str) -> None:
        """Say `text`; never waits."""
        self._lines.put(f"deploy-kit: {text}\n".encode())

    def finish(self, timeout_seconds: float) -> None:
        """Wait until everything has been said, at most this long."""
        self._lines.close()
        self._thread.join(timeout=timeout_seconds)

    def _write(self) -> None:
        while (taken := self._lines.take()) is not None:
            data = memoryview(taken[0])
            with suppress(OSError):
                while data:
                    data = data[os.write(self._descriptor, data) :]
