"""Explaining a whole log: a file or a pipe, read in pieces."""

from __future__ import annotations

from typing import IO

from deploy_kit.startup.lines import margin_of
from deploy_kit.startup.run import Explanation
from deploy_kit.startup.watcher import StartupWatcher

CHUNK_BYTES = 1 << 18


def explain_bytes(data: bytes, *, silent_seconds: float | None = None) -> Explanation:
    """Given a whole log, return the answer."""
    watcher = StartupWatcher(margin=margin_of(data[:CHUNK_BYTES]))
    watcher.feed(data)
    watcher.close()
    if silent_seconds is not None:
        watcher.note_silence(silent_seconds)
    return watcher.explain()


def explain_stream(stream: IO[bytes], *, silent_seconds: float | None = None) -> Explanation:
    """Given an open log, read it in pieces to its end and return the answer; memory stays constant."""
    chunk = stream.read(CHUNK_BYTES)
    watcher = StartupWatcher(margin=margin_of(chunk))
    while chunk:
        watcher.feed(chunk)
        chunk = stream.read(CHUNK_BYTES)
    watcher.close()
    if silent_seconds is not None:
        watcher.note_silence(silent_seconds)
    return watcher.explain()
