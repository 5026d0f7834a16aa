"""Reading a log for people: the whole, or as it grows with a progress display."""

from __future__ import annotations

import os
import select
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from deploy_kit.files import file_error, stdin_bytes
from deploy_kit.startup.display import View, render
from deploy_kit.startup.explain import CHUNK_BYTES, explain_stream
from deploy_kit.startup.run import Explanation
from deploy_kit.startup.watcher import StartupWatcher

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FOLLOW_INTERVAL_SECONDS = 0.5
_FINAL = ("ready", "degraded", "hung", "crashed")


def read_log(path: Path | None, *, silent_seconds: float | None = None) -> Explanation:
    """Given a log's path (None: standard input), read it to its end and return the answer."""
    with _open(path) as stream:
        return explain_stream(stream, silent_seconds=silent_seconds)


def follow_log(path: Path | None) -> Explanation:
    """Given a log that grows, show its progress on stderr until a final verdict (or its end, for a pipe)."""
    from rich.live import Live

    from deploy_kit.output import stderr_console

    watcher = StartupWatcher()
    started = quiet_since = now = time.monotonic()
    spent: dict[str, float] = {}
    console = stderr_console()
    with _open(path) as stream, Live(console=console, refresh_per_second=4, transient=True) as live:
        while True:
            chunk, ended = _next_chunk(stream, pipe=path is None)
            before, now = now, time.monotonic()
            if chunk:
                watcher.feed(chunk)
                quiet_since = now
            else:
                watcher.unfinished_progress()
                watcher.note_silence(now - quiet_since)
            answer = watcher.explain()
            phase = watcher.running_phase
            spent[phase] = spent.get(phase, 0.0) + now - before
            live.update(render(view_of(watcher, now - started, spent)))
            if (answer.verdict in _FINAL and not chunk) or ended:
                watcher.close()
                return watcher.explain()


def _next_chunk(stream: IO[bytes], *, pipe: bool) -> tuple[bytes, bool]:
    if pipe:
        ready, _, _ = select.select([stream], [], [], FOLLOW_INTERVAL_SECONDS)
        if not ready:
            return b"", False
        chunk = os.read(stream.fileno(), CHUNK_BYTES)
        return chunk, not chunk
    chunk = stream.read(CHUNK_BYTES)
    if not chunk:
        time.sleep(FOLLOW_INTERVAL_SECONDS)
    return chunk, False


def view_of(watcher: StartupWatcher, elapsed_seconds: float, phase_seconds: Mapping[str, float]) -> View:
    """Return what is shown of a log's watcher."""
    bar = watcher.progress
    text = None
    if bar is not None:
        left = "" if bar.remaining_seconds is None else f", {bar.remaining_seconds} s left"
        text = f"{bar.what}: {bar.done}/{bar.total}{left}"
    return View(
        phase=watcher.running_phase,
        elapsed_seconds=elapsed_seconds,
        text=watcher.explain().cause,
        progress_ratio=None if bar is None else bar.ratio,
        progress_text=text,
        phase_seconds=phase_seconds,
    )


def describe(answer: Explanation) -> str:
    """Return the answer as text."""
    lines = [f"{answer.verdict}: {answer.cause}", f"  phase:    {answer.phase}"]
    if answer.progress is not None:
        lines.append(
            f"  progress: {answer.progress['what']} {answer.progress['done']}/{answer.progress['total']}"
        )
    if answer.verdict not in ("starting", "loading", "capturing", "ready"):
        lines += [f"  evidence: {line}" for line in answer.evidence]
    if answer.remedy:
        lines.append(f"  remedy:   {answer.remedy}")
    lines += [f"  remark:   {remark}" for remark in answer.remarks]
    return "\n".join(lines)


@contextmanager
def _open(path: Path | None) -> Iterator[IO[bytes]]:
    if path is None:
        yield stdin_bytes()
        return
    try:
        stream = path.open("rb")
    except OSError as error:
        raise file_error("cannot read the log", path, error) from error
    try:
        with stream:
            yield stream
    except BrokenPipeError:
        raise  # our own output's, not the log's
    except OSError as error:
        raise file_error("cannot read the log", path, error) from error
