"""Scraping the engine at intervals, and keeping the last seconds of it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from deploy_kit.metrics.reading import Engine, read
from deploy_kit.metrics.text import parse

SCRAPE_INTERVAL_SECONDS = 2.0
WINDOW_SECONDS = 12.0
# After this long without a good scrape nothing derived from the engine is shown. With the scrape interval
# it stays below the promised 15 s.
STALE_SECONDS = 8.0


@dataclass(frozen=True)
class Seen:
    """One good scrape."""

    at_seconds: float
    engine: Engine


class EngineWatch:
    """The engine's last scrapes. `fetch` returns the metrics text or raises; `clock` is a steady clock."""

    def __init__(
        self, fetch: Callable[[], str], *, clock: Callable[[], float] = time.monotonic, tp_rank: str = "0"
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._tp_rank = tp_rank
        self._lock = threading.Lock()
        self._seen: deque[Seen] = deque()
        self._errors: dict[str, int] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Scrape once. A failure is counted by its reason and never raised."""
        try:
            reading = read(parse(self._fetch()))
        except Exception as error:  # noqa: BLE001  (the exporter must outlive whatever the engine answers)
            self._count("unreachable" if "Connect" in type(error).__name__ else type(error).__name__)
            return
        for kind, number in reading.scrape.problem_counts.items():
            self._count(kind.replace(" ", "_"), number)
        if not reading.engines:
            self._count("no_engine_metrics")
            return
        if len(reading.engines) > 1:
            self._count("several_engines")
            return
        now = self._clock()
        with self._lock:
            self._seen.append(Seen(now, reading.engines[0]))
            while self._seen and self._seen[0].at_seconds < now - WINDOW_SECONDS:
                self._seen.popleft()

    def _count(self, reason: str, number: int = 1) -> None:
        with self._lock:
            self._errors[reason] = self._errors.get(reason, 0) + number

    def errors(self) -> dict[str, int]:
        """Return how often scraping went wrong, by reason."""
        with self._lock:
            return dict(self._errors)

    def ends(self) -> tuple[Engine, Engine] | None:
        """Return the oldest and newest reading of the window; None when the newest is stale or alone."""
        now = self._clock()
        with self._lock:
            if not self._seen or now - self._seen[-1].at_seconds > STALE_SECONDS:
                return None
            return self._seen[0].engine, self._seen[-1].engine

    def up(self) -> bool:
        """Whether the last good scrape is fresh."""
        return self.ends() is not None

    def start(self) -> None:
        """Scrape in a thread of its own until `stop`."""
        self._thread = threading.Thread(target=self._run, name="deploy-kit-engine-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.look()
            self._stopping.wait(SCRAPE_INTERVAL_SECONDS)
