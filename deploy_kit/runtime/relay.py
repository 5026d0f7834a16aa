"""The engine's output on its way: to our own output and to the watcher, without ever making the engine wait.

One thread reads; one writes our output; one feeds the watcher. Between them are bounded buffers: when our
output is stuck (a log driver that does not read), its buffer fills, and what does not fit is left out and
counted. The engine's pipe is always read.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import IO

PIPE_BYTES = 1 << 20
OUTPUT_LIMIT_BYTES = 8 << 20
WATCHER_LIMIT_BYTES = 16 << 20
# Lines come one by one; reading them in batches costs a hundredth, and nobody sees 10 ms.
BATCH_SECONDS = 0.01
# After a read that shows a flood, read without pause for this long: the pipe must not fill.
FLOOD_SECONDS = 0.5
_F_SETPIPE_SZ = 1031
HIDDEN = b"[secret]"
# An answered look at the engine, ours or Prometheus's: the HTTP server lives, which is not to say that
# anything advances.
LOOKED_AT = re.compile(
    rb'"GET /(?:metrics|health|health_generate|ready|v1/models|model_info|get_model_info)[ ?]'
)
# The thread that parses holds the interpreter for this long before the one that reads the pipe gets its turn.
SWITCH_INTERVAL_SECONDS = 0.0005


def prefer_reading() -> None:
    """Let the reading thread have the interpreter ten times sooner than by default: at 500,000 lines a second
    the engine then writes about four times as fast (benchmarks/startup_supervisor.py)."""
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)


def telling(chunk: bytes) -> int:
    """Given a piece of the log, return its bytes without the lines of looks at the engine.

    >>> telling(b'INFO: 127.0.0.1:1 - "GET /metrics HTTP/1.1" 200 OK\\nDecode batch\\n')
    13
    """
    if b'"GET /' not in chunk:
        return len(chunk)
    return sum(len(line) for line in chunk.splitlines(keepends=True) if not LOOKED_AT.search(line))


class Chunks:
    """A bounded queue of bytes between two threads; what does not fit is dropped and counted."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held: deque[bytes] = deque()
        self._bytes = 0
        self._dropped = 0
        self._closed = False
        self._change = threading.Condition()

    def put(self, chunk: bytes) -> None:
        """Add a chunk, or drop it when the queue is full."""
        with self._change:
            if self._bytes + len(chunk) > self._limit:
                self._dropped += len(chunk)
                return
            self._held.append(chunk)
            self._bytes += len(chunk)
            self._change.notify()

    def take(self) -> tuple[bytes, int] | None:
        """Wait for bytes; return all there are and how many were dropped before them; None at the end."""
        with self._change:
            while not self._held and not self._closed and not self._dropped:
                self._change.wait()
            if not self._held and not self._dropped:
                return None
            data = b"".join(self._held)
            self._held.clear()
            self._bytes = 0
            dropped, self._dropped = self._dropped, 0
            return data, dropped

    def close(self) -> None:
        """Nothing more will be put."""
        with self._change:
            self._closed = True
            self._change.notify()


class Relay:
    """Passes what comes out of `source` to `output` and to `observer`, the secret hidden in both."""

    def __init__(
        self,
        source: IO[bytes],
        output: IO[bytes],
        *,
        secret: bytes | None = None,
        observer: Callable[[bytes], None] | None = None,
    ) -> None:
        self._source = source
        self._output = output
        self._secret = secret
        self._observer = observer
        self.bytes_seen = 0
        self.telling_bytes = 0  # without the lines of looks at it; a line that two reads cut counts in part
        self.bytes_dropped = 0
        self._to_output = Chunks(OUTPUT_LIMIT_BYTES)
        self._to_observer = Chunks(WATCHER_LIMIT_BYTES)
        with suppress(OSError):
            fcntl.fcntl(source.fileno(), _F_SETPIPE_SZ, PIPE_BYTES)
        self._threads = [
            threading.Thread(target=work, name=f"engine-{name}", daemon=True)
            for name, work in (("read", self._read), ("output", self._write), ("watch", self._watch))
        ]
        for thread in self._threads:
            thread.start()

    def finish(self, *, timeout_seconds: float) -> None:
        """Wait until everything that was read has been written and watched, at most this long."""
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))

    def _read(self) -> None:
        held = b""
        flood_until = 0.0
        descriptor = self._source.fileno()
        try:
            while chunk := os.read(descriptor, PIPE_BYTES):
                self.bytes_seen += len(chunk)
                self.telling_bytes += telling(chunk)
                if self._secret is not None:
                    chunk, held = redact(held + chunk, self._secret)
                self._pass(chunk)
                if len(chunk) >= PIPE_BYTES // 4:
                    flood_until = time.monotonic() + FLOOD_SECONDS
                elif time.monotonic() > flood_until:
                    time.sleep(BATCH_SECONDS)
        finally:
            self._pass(held)
            self._to_output.close()
            self._to_observer.close()

    def _pass(self, chunk: bytes) -> None:
        if chunk:
            self._to_output.put(chunk)
            if self._observer is not None:
                self._to_observer.put(chunk)

    def _write(self) -> None:
        while (taken := self._to_output.take()) is not None:
            data, dropped = taken
            if dropped:
                self.bytes_dropped += dropped
                remark = f"\ndeploy-kit: {dropped} bytes of log left out: its reader is too slow\n"
                data += remark.encode()
            # A reader of our output that went away must not end the engine.
            with suppress(OSError, ValueError):
                _write_all(self._output, data)

    def _watch(self) -> None:
        while (taken := self._to_observer.take()) is not None:
            data, dropped = taken
            if self._observer is not None:
                self._observer(data + (b"\n" if dropped else b""))


def _write_all(output: IO[bytes], data: bytes) -> None:
    try:
        descriptor = output.fileno()
    except OSError:
        output.write(data)
        return
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view[:PIPE_BYTES]) :]


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
