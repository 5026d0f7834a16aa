"""The metrics themselves, made inside the scheduler process, and cheap enough for every forward.

In SGLang's multi-process mode each update of a metric writes into a mapped file: 28 us a forward in the
running engine, whose work has just filled the processor's caches. So observations are summed here first, and
`flush` writes the sums; `Flusher` calls it a few times a second.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from deploy_kit.telemetry.forwards import PHASES, accepted_positions

# Fine where decisions are made (10 to 60 ms): 12, 15, 25, 30 and 50 ms fall in different buckets.
SECONDS_BUCKETS = (
    0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.010, 0.011, 0.0125, 0.014, 0.016, 0.018, 0.020, 0.0225,
    0.026, 0.029, 0.032, 0.036, 0.040, 0.045, 0.052, 0.060, 0.070, 0.085, 0.100, 0.130, 0.170, 0.250, 0.400,
    0.600, 1.0,
)  # fmt: skip
FLUSH_SECONDS = 0.2  # the longest that an observation waits
ACCEPT_LENGTH_BUCKETS = tuple(float(n) for n in range(1, 17))


class Instruments:
    """The plug-in's metrics with their label values bound. Create only after SGLang set
    PROMETHEUS_MULTIPROC_DIR: prometheus_client looks at it once, when first imported.

    One thread may observe while another flushes."""

    def __init__(self, labels: Mapping[str, str], *, registry: Any = None) -> None:
        from prometheus_client import REGISTRY, Counter, Gauge, Histogram

        registry = REGISTRY if registry is None else registry
        names = tuple(labels)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *more: str) -> Any:
            return Histogram(name, text, (*names, *more), buckets=buckets, registry=registry)

        forward = histogram(
            "deploy_kit_forward_seconds", "Time of each forward pass, by phase.", SECONDS_BUCKETS, "phase"
        )
        # Bound at the first observation: an unspeculated engine must not show a verify series at zero.
        self._forward = forward
        self._forward_of: dict[str, _Bound] = {}
        self._accept = histogram(
            "deploy_kit_spec_accept_length",
            "Tokens accepted by one verify of one request: drafts and the bonus token.",
            ACCEPT_LENGTH_BUCKETS,
        )
        self._accept_bound: _Bound | None = None
        self._cycle = histogram(
            "deploy_kit_spec_cycle_seconds",
            "Start of one verify to the start of the next of the same running batch.",
            SECONDS_BUCKETS,
        )
        self._cycle_bound: _Bound | None = None
        self._position = Counter(
            "deploy_kit_spec_accepted_position_total",
            "How often the draft token at this position was accepted.",
            (*names, "position"),
            registry=registry,
        )
        self._position_of: list[Any] = []
        self._positions_pending: list[int] = []
        self._lock = threading.Lock()
        self._info = Gauge(
            "deploy_kit_plugin_info",
            "1: the plug-in runs in this engine.",
            (*names, "sglang_version", "deploy_kit_version", "hooks", "timer"),
            multiprocess_mode="mostrecent",
            registry=registry,
        )
        self._failed = Gauge(
            "deploy_kit_plugin_hooks_failed",
            "Hooks that SGLang could not apply.",
            names,
            multiprocess_mode="mostrecent",
            registry=registry,
        )
        self._exceptions = Counter(
            "deploy_kit_plugin_exceptions_total",
            "Exceptions inside our hooks; the engine went on, one observation was lost.",
            names,
            registry=registry,
        ).labels(**labels)
        self._labels = dict(labels)

    def announce(
        self, *, sglang_version: str, deploy_kit_version: str, hooks: int, failed: int, timer: str
    ) -> None:
        """Set the info and hook metrics."""
        self._info.labels(
            **self._labels,
            sglang_version=sglang_version,
            deploy_kit_version=deploy_kit_version,
            hooks=str(hooks),
            timer=timer,
        ).set(1)
        self._failed.labels(**self._labels).set(failed)

    def observe_forward(self, phase: str, seconds: float) -> None:
        """Add one forward to its phase's histogram."""
        with self._lock:
            bound = self._forward_of.get(phase)
            if bound is None:
                if phase not in PHASES:
                    raise ValueError(f"no such phase: {phase}")
                bound = _Bound(self._forward.labels(**self._labels, phase=phase), SECONDS_BUCKETS)
                self._forward_of[phase] = bound
            bound.add(seconds, 1)

    def observe_cycle(self, seconds: float) -> None:
        """Add one cycle."""
        with self._lock:
            if self._cycle_bound is None:
                self._cycle_bound = _Bound(self._cycle.labels(**self._labels), SECONDS_BUCKETS)
            self._cycle_bound.add(seconds, 1)

    def observe_verify(self, drafts_accepted: list[int]) -> None:
        """Given the drafts accepted by each request of one verify (bonus token not counted), add them."""
        if not drafts_accepted:
            return
        requests_by_drafts: dict[int, int] = {}
        for drafts in drafts_accepted:
            requests_by_drafts[drafts] = requests_by_drafts.get(drafts, 0) + 1
        positions = accepted_positions(requests_by_drafts)
        with self._lock:
            if self._accept_bound is None:
                self._accept_bound = _Bound(self._accept.labels(**self._labels), ACCEPT_LENGTH_BUCKETS)
            for drafts, times in requests_by_drafts.items():
                self._accept_bound.add(drafts + 1.0, times)
            self._positions_pending += [0] * (len(positions) - len(self._positions_pending))
            for index, times in enumerate(positions):
                self._positions_pending[index] += times

    def flush(self) -> None:
        """Write what was observed since the last time into the metrics."""
        with self._lock:
            bounds = [*self._forward_of.values(), self._accept_bound, self._cycle_bound]
            taken = [(bound, bound.take()) for bound in bounds if bound is not None and bound.pending]
            positions, self._positions_pending = self._positions_pending, []
        for bound, pending in taken:
            bound.write(pending)
        for index, times in enumerate(positions):
            if index == len(self._position_of):
                self._position_of.append(self._position.labels(**self._labels, position=str(index + 1)))
            if times:
                self._position_of[index].inc(times)

    def count_exception(self) -> None:
        """Count an exception of a hook."""
        self._exceptions.inc()


class Flusher(threading.Thread):
    """Flushes the metrics until the process ends, so that the last forward before a pause is seen as well."""

    def __init__(self, instruments: Instruments, failed: Callable[[], None]) -> None:
        """`failed` is called for an exception of a flush; what it should have written may be lost."""
        super().__init__(name="deploy-kit-telemetry", daemon=True)
        self._instruments = instruments
        self._failed = failed
        self._ended = threading.Event()

    def run(self) -> None:
        """Flush, wait, and again."""
        while not self._ended.wait(FLUSH_SECONDS):
            try:
                self._instruments.flush()
            except Exception:  # noqa: BLE001  (counted; the engine must go on)
                self._failed()

    def end(self) -> None:
        """Stop flushing."""
        self._ended.set()


class _Bound:
    """One histogram child, and what is to be added to it: `pending` counts by bucket.

    prometheus_client has no call that adds many values at once; its children keep a sum and one value a
    bucket under names that have not changed since 0.4. Where they are absent, the plain call is used
    instead, with the mean for each value: the sum stays right, the bucket is the values' own.
    """

    def __init__(self, child: Any, bounds: Iterable[float]) -> None:
        self._child = child
        self._bounds = tuple(bounds)
        buckets = getattr(child, "_buckets", None)
        total = getattr(child, "_sum", None)
        fits = isinstance(buckets, list) and len(buckets) == len(self._bounds) + 1 and hasattr(total, "inc")
        self._buckets: Any = buckets if fits else None
        self._sum: Any = total
        self.pending: dict[int, tuple[int, float]] = {}

    def add(self, value: float, times: int) -> None:
        bucket = bisect_left(self._bounds, value)
        count, total = self.pending.get(bucket, (0, 0.0))
        self.pending[bucket] = (count + times, total + value * times)

    def take(self) -> dict[int, tuple[int, float]]:
        pending, self.pending = self.pending, {}
        return pending

    def write(self, pending: Mapping[int, tuple[int, float]]) -> None:
        if self._buckets is None:
            for count, total in pending.values():
                for _ in range(count):
                    self._child.observe(total / count)
            return
        self._sum.inc(sum(total for _count, total in pending.values()))
        for bucket, (count, _total) in pending.items():
            self._buckets[bucket].inc(count)
