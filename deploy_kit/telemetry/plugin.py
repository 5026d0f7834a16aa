"""The SGLang plug-in (entry point `deploy_kit_telemetry` of the group `sglang.srt.plugins`).

SGLang calls `register` in each of its processes; ours only registers in the ones that may be a scheduler.
SGLang then applies the hooks, and only logs those it could not apply: the first hook to run looks at what was
applied and writes telemetry.json, which `deploy-kit serve` checks.

A hook that raises would take the scheduler with it: every hook is guarded, and counts its exceptions.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy_kit import __version__
from deploy_kit.telemetry.forwards import ForwardStream, phase_of
from deploy_kit.telemetry.instruments import Flusher, Instruments
from deploy_kit.telemetry.status import TelemetryStatus, write_status

logger = logging.getLogger(__name__)

SCHEDULER = "sglang.srt.managers.scheduler_components"
START = f"{SCHEDULER}.metrics_reporter.SchedulerMetricsReporter._install_device_timer_on_runners"
DEVICE_TIME = (
    "sglang.srt.observability.metrics_collector.SchedulerMetricsCollector.increment_forward_execution_seconds"
)
VERIFIED = f"{SCHEDULER}.batch_result_processor.SchedulerBatchResultProcessor._resolve_spec_v2_tokens"
FORWARD = "sglang.srt.model_executor.model_runner.ModelRunner.forward"
TARGETS = (START, DEVICE_TIME, VERIFIED, FORWARD)

DEVICE_TIMER_VARIABLE = "SGLANG_ENABLE_METRICS_DEVICE_TIMER"
LABELS = ("model_name", "engine_type", "tp_rank", "pp_rank", "dp_rank")
# More exceptions than this, and a hook is broken for good: it stops working instead of costing time.
MOST_EXCEPTIONS = 100


class MarkedCategory(str):
    """SGLang's category of a forward, with what we need to know about it; everybody else sees a string."""

    __slots__ = ("interval", "phase")
    phase: str | None
    interval: Any


class MarkedTimer:
    """SGLang's device timer, as one runner sees it: the drafter's forwards are told apart from the target's,
    and each keeps its interval, so that cycles can be read from the device's clock."""

    def __init__(self, timer: Any, session: Session, *, drafter: bool) -> None:
        self._timer = timer
        self._session = session
        self._drafter = drafter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._timer, name)

    @contextmanager
    def wrap(self, metadata: dict[str, Any]) -> Iterator[None]:
        """Time the block with SGLang's timer, the category marked."""
        category = str(metadata.get("category", ""))
        marked = MarkedCategory(category)
        extending = category == "extend" and self._session.mode == "DRAFT_EXTEND_V2"
        marked.phase = "draft_extend" if extending else phase_of(category, drafter=self._drafter)
        with self._timer.wrap(metadata={**metadata, "category": marked}):
            intervals = getattr(self._timer, "_intervals", None)
            marked.interval = intervals[-1] if intervals else None
            yield


class Session:
    """What one scheduler process measures, from the moment its metrics exist."""

    def __init__(self, instruments: Instruments | None, *, timer: str) -> None:
        self.instruments = instruments
        self.timer = timer  # "device", "wall" or "off"
        self.stream = ForwardStream()
        self.mode = ""  # forward mode of the forward in hand
        self.exceptions = 0
        self._origin: Any = None  # a CUDA event that the device's clock is read against
        self._offset = 0.0

    def forward_done(self, phase: str | None, seconds: float, began_seconds: float | None) -> None:
        """Add one forward, and the cycle it closes."""
        if self.instruments is None:
            return
        for observed in self.stream.add(phase, seconds, began_seconds):
            if observed.phase is None:
                self.instruments.observe_cycle(observed.seconds)
            else:
                self.instruments.observe_forward(observed.phase, observed.seconds)

    def device_seconds(self, event: Any) -> float:
        """Given a completed CUDA event, return its time on the device's clock, in seconds.

        The origin moves with every call, since a float32 of milliseconds loses microseconds within the hour.
        """
        if self._origin is None:
            self._origin = event
            return 0.0
        self._offset += float(self._origin.elapsed_time(event)) / 1000.0
        self._origin = event
        return self._offset

    def failed(self) -> None:
        """Count an exception of a hook, and give up after too many."""
        self.exceptions += 1
        if self.exceptions == 1:
            logger.exception(
                "deploy_kit_telemetry: a hook failed; the engine goes on without this observation"
            )
        if self.instruments is not None:
            self.instruments.count_exception()
            if self.exceptions >= MOST_EXCEPTIONS:
                logger.error("deploy_kit_telemetry: %s exceptions, measuring stops", self.exceptions)
                self.instruments = None


_session: Session | None = None


def register() -> None:
    """Called by SGLang in each process. Nothing is imported from SGLang but its hook registry."""
    if multiprocessing.parent_process() is None or _is_named("detokenizer"):
        # Neither the launcher nor the detokenizer runs a forward, and applying a hook imports its module.
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(START, on_start, HookType.AFTER)
    HookRegistry.register(DEVICE_TIME, on_device_time, HookType.AFTER)
    HookRegistry.register(VERIFIED, on_verified, HookType.AFTER)
    HookRegistry.register(FORWARD, around_forward, HookType.AROUND)


def on_start(_result: Any, reporter: Any, *_args: Any, **_kwargs: Any) -> None:
    """After a scheduler installed its timers: create the metrics, on one rank, and report what applied."""
    global _session  # noqa: PLW0603  (one scheduler, one process)
    try:
        _session = start_session(reporter)
    except Exception:
        # The status file stays absent, which `deploy-kit serve` takes for a failure.
        logger.exception("deploy_kit_telemetry: could not start")


def start_session(reporter: Any) -> Session | None:
    """Given SGLang's SchedulerMetricsReporter, return the session of this rank; None on all ranks but one."""
    collector = reporter.metrics_collector
    labels = {} if collector is None else dict(collector.labels)
    if str(labels.get("tp_rank", "0")) != "0" or str(labels.get("pp_rank", "0")) != "0":
        return None
    if collector is None and not reporter.is_stats_logging_rank:
        return None
    from sglang.srt.plugins.hook_registry import HookRegistry

    applied = tuple(target for target in TARGETS if target in HookRegistry._patched)
    failed = tuple(target for target in TARGETS if target not in HookRegistry._patched)
    timer, reason = choose_timer(str(reporter.scheduler.device), reporter.forward_pass_device_timer)
    instruments = None
    if collector is not None:
        instruments = Instruments({name: str(labels[name]) for name in LABELS if name in labels})
        instruments.announce(
            sglang_version=sglang_version(),
            deploy_kit_version=__version__,
            hooks=len(applied),
            failed=len(failed),
            timer=timer,
        )
    session = Session(instruments, timer=timer)
    if instruments is not None:
        Flusher(instruments, session.failed).start()
    if timer == "device":
        mark_timers(reporter, session)
    report(
        TelemetryStatus(
            pid=os.getpid(),
            written_at_seconds=time.time(),
            sglang_version=sglang_version(),
            deploy_kit_version=__version__,
            applied=applied,
            failed=failed,
            timer=timer,
            metrics=instruments is not None,
            reason=reason,
        )
    )
    return session


def choose_timer(device: str, device_timer: Any) -> tuple[str, str | None]:
    """Given the engine's device and its timer, return how forwards are timed ("device", "wall", "off") and,
    when they are not, why."""
    if device == "cpu":
        return "wall", None  # forwards are synchronous there: the wall clock is the device's clock
    if device_timer is None:
        return "off", f"the engine's device timer is off: {DEVICE_TIMER_VARIABLE}=1 is missing"
    return "device", None


def mark_timers(reporter: Any, session: Session) -> None:
    """Put a marking timer in front of SGLang's, for the target's runner and the drafter's."""
    timer = reporter.forward_pass_device_timer
    scheduler = reporter.scheduler
    scheduler.tp_worker.model_runner.device_timer = MarkedTimer(timer, session, drafter=False)
    drafter: Any = getattr(getattr(scheduler, "draft_worker", None), "draft_worker", None)
    runners = [*getattr(drafter, "draft_runner_list", [])]
    if hasattr(drafter, "draft_runner"):
        runners.append(drafter.draft_runner)
    for runner in runners:
        runner.device_timer = MarkedTimer(timer, session, drafter=True)


def on_device_time(_result: Any, _collector: Any, *args: Any, **kwargs: Any) -> None:
    """After SGLang counted one forward's device time (`category`, `t` in seconds)."""
    session = _session
    if session is None or session.timer != "device" or session.instruments is None:
        return
    try:
        category = kwargs["category"] if "category" in kwargs else args[0]
        seconds = float(kwargs["t"] if "t" in kwargs else args[1])
        if not isinstance(category, MarkedCategory):
            session.forward_done(phase_of(category, drafter=False), seconds, None)
            return
        interval, category.interval = category.interval, None  # the interval holds the category: no ring
        began = None
        if category.phase == "verify" and interval is not None:
            began = session.device_seconds(interval.start_event)
        session.forward_done(category.phase, seconds, began)
    except Exception:  # noqa: BLE001  (counted; the engine must go on)
        session.failed()


def around_forward(
    original: Callable[..., Any], runner: Any, forward_batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """Around one forward of the target's or the drafter's runner: on the CPU engine it is timed here."""
    session = _session
    if session is None or session.instruments is None:
        return original(runner, forward_batch, *args, **kwargs)
    mode = getattr(getattr(forward_batch, "forward_mode", None), "name", "")
    session.mode = mode
    if session.timer != "wall":
        return original(runner, forward_batch, *args, **kwargs)
    began = time.perf_counter()
    result = original(runner, forward_batch, *args, **kwargs)
    seconds = time.perf_counter() - began
    try:
        drafter = bool(getattr(runner, "is_draft_worker", False))
        session.forward_done(phase_of(mode.lower(), drafter=drafter), seconds, began)
    except Exception:  # noqa: BLE001  (counted; the engine must go on)
        session.failed()
    return result


def on_verified(_result: Any, _processor: Any, result: Any, batch: Any, *_args: Any, **_kwargs: Any) -> None:
    """After one verify reached the host: the drafts each request accepted, the bonus not counted."""
    session = _session
    if session is None or session.instruments is None:
        return
    try:
        # With overlap, a verify is already under way when a request ends: its result is thrown away.
        drafts = [
            accepted
            for accepted, request in zip(result.num_correct_drafts_per_req_cpu, batch.reqs, strict=True)
            if not (request.is_retracted or request.finished())
        ]
        session.instruments.observe_verify(drafts)
    except Exception:  # noqa: BLE001  (counted; the engine must go on)
        session.failed()


def report(status: TelemetryStatus) -> None:
    """Write the status file, if there is a folder for it; a failure to write is logged."""
    folder = os.environ.get("DEPLOY_KIT_STATE_DIR")
    if not folder:
        return
    try:
        write_status(Path(folder), status)
    except OSError:
        logger.exception("deploy_kit_telemetry: cannot write the status file in %s", folder)


def sglang_version() -> str:
    """Return SGLang's version, from its metadata."""
    from importlib.metadata import version

    return version("sglang")


def _is_named(part: str) -> bool:
    target = getattr(multiprocessing.current_process(), "_target", None)
    return part in getattr(target, "__name__", "")
