"""Following one engine from its start to its end.

Trust, for death: the process, then the engine's own words in its log, then the endpoints. For readiness the
other way round: a real completion, then the endpoints, then the log. The watcher reads the log in a thread of
its own, a second thread asks the endpoints, this loop decides.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.plan.model import Plan
from deploy_kit.runtime.activity import IDLE_AFTER_SECONDS, ActivityMeter, Quiet
from deploy_kit.runtime.child import Engine, Stopped
from deploy_kit.runtime.gpu_memory import GpuMemory
from deploy_kit.runtime.levers_off import LeversOff
from deploy_kit.runtime.own_end import hung, without_telemetry
from deploy_kit.runtime.postmortem import write_post_mortem
from deploy_kit.runtime.preflight import count_gpus
from deploy_kit.runtime.process_facts import GroupFacts, count_memory_kills, look_at_group
from deploy_kit.runtime.readiness import Readiness
from deploy_kit.runtime.start_times import earlier_exits, expect_start, keep_exit, keep_start
from deploy_kit.runtime.state import EngineState, write_state
from deploy_kit.runtime.voice import Voice
from deploy_kit.startup.exits import count_exit
from deploy_kit.startup.run import Explanation
from deploy_kit.startup.status import PHASES, StartupStatus, StatusBoard
from deploy_kit.startup.watcher import StartupWatcher

TICK_SECONDS = 0.2
LOOK_INTERVAL_SECONDS = 0.5
HEALTH_INTERVAL_SECONDS = 15.0
MEASURE_INTERVAL_SECONDS = 2.0
STATE_INTERVAL_SECONDS = 5.0
SAY_INTERVAL_SECONDS = 30.0
SAY_AT_THE_END_SECONDS = 2.0
DRAIN_SECONDS = 60.0
# One of the engine's processes died, and its launcher lives on: it has this long to end by itself.
LAST_WORDS_SECONDS = 20.0
_ORDER = {phase: index for index, phase in enumerate(PHASES)}


class Supervisor:
    """Runs the loop of one engine. `start` makes the engine with the given observer; `look` asks for
    readiness; `healthy` asks the health endpoint (None: no answer in time). `starts` is the folder that keeps
    how long starts took."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        *,
        start: Callable[[Callable[[bytes], None]], Engine],
        look: Callable[[], Readiness],
        healthy: Callable[[], bool],
        board: StatusBoard,
        environment: dict[str, str],
        secret: str | None = None,
        starts: Path | None = None,
        stop_hung_seconds: float | None = None,
        drain_seconds: float = DRAIN_SECONDS,
        telemetry_missing: Callable[[], str | None] = lambda: None,
        levers_off: LeversOff | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._start = start
        self._look = look
        self._healthy = healthy
        self._board = board
        self._environment = environment
        self._secret = secret
        self._starts = starts
        self._gpu_memory = GpuMemory(count_gpus())
        self._stop_hung_seconds = stop_hung_seconds
        self._drain_seconds = drain_seconds
        self._telemetry_missing = telemetry_missing
        self._without_telemetry: str | None = None
        self._levers_off = levers_off or LeversOff({})
        self._voice = Voice()
        self._say = say or self._voice
        self._expected = expect_start(plan, starts, self._say)
        self._exits = earlier_exits(starts, self._say)
        self.watcher = StartupWatcher()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._signals: list[int] = []
        self._ready_at: float | None = None
        self._busy = False
        self._missing: str | None = None
        self._phase = "starting"
        self._phase_since = time.monotonic()
        self._phase_seconds: dict[str, float] = {}
        self._quiet: Quiet | None = None
        self._stalled: tuple[str, ...] = ()
        self._written: tuple[object, ...] = ()
        self._written_at = 0.0
        self._unwritten = False
        self._said_at = 0.0
        self._schedulers: frozenset[int] = frozenset()
        self._lost_since: float | None = None
        self._dead_since: float | None = None
        self._kills_before = count_memory_kills()
        self._read_rate: float | None = None
        self._last_look: tuple[float, GroupFacts] | None = None

    def request_stop(self, signum: int) -> None:
        """Ask for an orderly end (from a signal handler); a second time: an end at once."""
        self._signals.append(signum)
        self._stopping.set()

    def run(self) -> int:
        """Start the engine, follow it to its end, and return our exit code."""
        engine = self._start(self._observe)
        self._state = EngineState(
            phase="starting",
            plan_id=self._plan.plan_id,
            profile=self._plan.profile,
            model=self._plan.model,
            served_model_name=self._plan.served_model_name,
            rehearsal=self._plan.rehearsal,
            pid=_own_pid(),
            engine_pid=engine.pid,
            started_at_seconds=time.time(),
        )
        self._publish(force=True)
        asking = threading.Thread(target=self._ask_endpoints, name="endpoints", daemon=True)
        asking.start()
        reason = None
        try:
            reason = self._follow(engine)
        finally:
            try:
                code = self._end(engine, reason)
            finally:
                self._voice.finish(SAY_AT_THE_END_SECONDS)
        return code

    # ---------------------------------------------------------------- inputs

    def _observe(self, chunk: bytes) -> None:
        with self._lock:
            self.watcher.feed(chunk)
            for lever in self._levers_off.feed(chunk):
                self._say(f"lever {lever} is off: the engine says: {self._levers_off.found[lever]}")
            # Here and not only where it is published: a phase may begin and end between two looks.
            self._enter(self._phase_now())

    def _ask_endpoints(self) -> None:
        """Until ready: look for it. Afterwards: only when nothing else shows life, ask for health."""
        last_bytes = -1
        while not self._over.is_set():
            if self._ready_at is None:
                seen = self._look()
                self._missing = seen.missing
                if seen.ready and not self._stopping.is_set():
                    # SGLang only logs a hook that does not apply; a plan without its metrics is not ready.
                    self._without_telemetry = self._telemetry_missing()
                    if self._without_telemetry is not None:
                        return
                    with self._lock:
                        self.watcher.note_ready()
                    self._ready_at = time.time()
                self._over.wait(LOOK_INTERVAL_SECONDS)
                continue
            self._over.wait(HEALTH_INTERVAL_SECONDS)
            engine_bytes = self._log_bytes()
            if engine_bytes == last_bytes and not self._over.is_set():
                self._busy = not self._healthy()
            else:
                self._busy = False
            last_bytes = engine_bytes

    def _log_bytes(self) -> int:
        engine = getattr(self, "_engine", None)
        return 0 if engine is None else int(engine.relay.telling_bytes)

    # ---------------------------------------------------------------- the loop

    def _follow(self, engine: Engine) -> str | None:
        """Return why we end the engine ourselves; None when it ended or a signal came."""
        self._engine = engine
        meter = ActivityMeter(time.monotonic())
        measured_at = 0.0
        while engine.poll() is None and not self._stopping.is_set():
            now = time.monotonic()
            if now - measured_at >= MEASURE_INTERVAL_SECONDS:
                measured_at = now
                self._measure(engine, meter, now)
            self._publish()
            if (reason := self._why_end(now)) is not None:
                return reason
            self._stopping.wait(TICK_SECONDS)
        return None

    def _measure(self, engine: Engine, meter: ActivityMeter, now: float) -> None:
        group = look_at_group(engine.pid)
        with self._lock:
            self.watcher.unfinished_progress()
            bar = self.watcher.progress
            limit = self.watcher.hung_after_seconds()
        if self._last_look is not None:
            seconds = now - self._last_look[0]
            self._read_rate = max(0.0, (group.read_bytes - self._last_look[1].read_bytes) / seconds)
        self._last_look = (now, group)
        quiet = meter.take(
            now,
            log_bytes=engine.relay.telling_bytes,
            progress=-1.0 if bar is None else bar.ratio,
            group=group,
            gpu_bytes=self._gpu_memory.read(),
            gpu_unknown=self._gpu_memory.unknown,
        )
        self._quiet = quiet
        was = bool(self._stalled)
        coming_up = self._ready_at is None
        if quiet.stopped or (
            coming_up and (quiet.seconds >= limit or quiet.idle_seconds >= min(limit, IDLE_AFTER_SECONDS))
        ):
            self._stalled = quiet.checks
        else:
            self._stalled = ()
        if self._stalled and not was:
            self._say(f"stalled in phase {self._phase}: " + "; ".join(self._stalled))
        elif was and not self._stalled:
            self._say(f"goes on: phase {self._phase}")
        with self._lock:
            self.watcher.note_silence(quiet.seconds if self._stalled and coming_up else None)
        lost = (self._schedulers - group.schedulers) | group.dead_schedulers
        self._lost_since = (self._lost_since or now) if lost else None
        self._schedulers |= group.schedulers

    def _why_end(self, now: float) -> str | None:
        with self._lock:
            dead = self.watcher.phase == "exited" and not self._stopping.is_set()
        self._dead_since = (self._dead_since or now) if dead else None
        if self._without_telemetry is not None:
            return self._without_telemetry
        if self._dead_since is not None and now - self._dead_since > LAST_WORDS_SECONDS:
            return "the engine said that one of its processes died, and did not end by itself"
        if self._lost_since is not None and now - self._lost_since > LAST_WORDS_SECONDS:
            return "a scheduler process is gone, and the engine did not end by itself"
        if (
            self._stop_hung_seconds is not None
            and self._stalled
            and self._quiet is not None
            and self._quiet.seconds > self._stop_hung_seconds
        ):
            return "it stalled, and DEPLOY_KIT_STOP_HUNG_SECONDS says to end it then"
        return None

    # ---------------------------------------------------------------- the end

    def _end(self, engine: Engine, reason: str | None) -> int:
        asked = bool(self._signals)
        if asked:
            with self._lock:
                self.watcher.note_draining()
            self._publish(force=True)
            engine.send(signal.SIGTERM)
            self._say(f"stopping: the engine has {self._drain_seconds:.0f} s to answer what it accepted")
        explanation = None
        if reason is not None and not asked:
            # Judged before we end it: afterwards its last words are those of an orderly stop.
            with self._lock:
                explanation = self._explain_own_end(reason)
            self._say(reason + ": ending it")
        stopped = engine.stop(
            grace_seconds=self._drain_seconds if asked else (0.0 if reason is not None else 5.0),
            hurry=lambda: len(self._signals) > 1,
        )
        self._over.set()
        self._gpu_memory.close()
        with self._lock:
            self.watcher.close()
            if explanation is None and not asked:
                self.watcher.note_exit(stopped.code, oom_killed=self._killed_for_memory())
                explanation = self.watcher.explain()
        return self._report(engine, stopped, explanation)

    def _killed_for_memory(self) -> bool:
        """Whether the kernel has killed a process of our cgroup for memory since we started."""
        kills = count_memory_kills()
        return kills is not None and self._kills_before is not None and kills > self._kills_before

    def _explain_own_end(self, reason: str) -> Explanation:
        died = self._dead_since is not None or self._lost_since is not None
        if self._dead_since is None and self._lost_since is not None:
            self.watcher.note_exit(-9)
        if died and self._killed_for_memory():
            self.watcher.note_kernel_kill()
        found = self.watcher.explain()
        if died:
            return replace(found, remarks=(*found.remarks, reason))
        if self._without_telemetry is not None:
            return without_telemetry(found, reason)
        return hung(found, reason, phase=self._phase, checks=self._stalled)

    def _report(self, engine: Engine, stopped: Stopped, explanation: Explanation | None) -> int:
        with self._lock:
            self._enter("exited")
        if explanation is None:
            cause, cause_id, remedy, exit_code = "stopped as asked", "stopped", None, int(ExitCode.OK)
            if stopped.forced:
                # SGLang's own last act is a SIGKILL to itself: only our having to end it is worth a word.
                cause += (
                    " (at once: a second signal came)"
                    if len(self._signals) > 1
                    else f" (it had not finished after {self._drain_seconds:.0f} s, and was ended)"
                )
        else:
            cause, cause_id, remedy = explanation.cause, explanation.cause_id or "unknown", explanation.remedy
            exit_code = explanation.exit_code or int(ExitCode.ENGINE_DIED)
            try:
                path = write_post_mortem(
                    self._folder,
                    explanation,
                    self._plan,
                    last_lines=self.watcher.ring(),
                    environment=self._environment,
                    phase_seconds=self._phase_seconds,
                    engine_code=stopped.code,
                    secret=self._secret,
                )
                self._say(f"post-mortem: {path}")
            except DeployKitError as error:
                self._say(f"no post-mortem: {error.summary}")
        self._exits = count_exit(self._exits, cause_id)
        keep_exit(self._starts, self._exits, self._say)
        status = replace(
            self._status(),
            phase="exited",
            cause=cause,
            remedy=remedy,
            exit_code=exit_code,
            stalled=False,
        )
        self._board.publish(status)
        self._state = replace(
            self._state,
            phase="exited",
            cause=cause,
            exit_code=exit_code,
            details=self._details(status, cause_id),
        )
        self._write_state()
        self._say(f"ended: {cause}" + (f"\n  remedy: {remedy}" if remedy else ""))
        if engine.relay.bytes_dropped:
            self._say(
                f"{engine.relay.bytes_dropped} bytes of its log were not written: our output was not read"
            )
        return exit_code

    # ---------------------------------------------------------------- what others see

    def _phase_now(self) -> str:
        """The phase of the whole, not of the log alone. Held lock needed, as for `_enter`."""
        if self._signals:
            return "draining"
        if self._ready_at is not None:
            return "serving"
        phase = self.watcher.running_phase
        # The engine's word alone is not enough.
        return "warming" if _ORDER[phase] >= _ORDER["ready"] else phase

    def _enter(self, phase: str) -> None:
        if phase != self._phase and self._phase != "exited":
            now = time.monotonic()
            self._phase_seconds[self._phase] = (
                self._phase_seconds.get(self._phase, 0.0) + now - self._phase_since
            )
            self._phase, self._phase_since = phase, now

    def _status(self) -> StartupStatus:
        with self._lock:
            self._enter(self._phase_now())
            phase, seconds = self._phase, dict(self._phase_seconds)
            if phase != "exited":
                seconds[phase] = seconds.get(phase, 0.0) + time.monotonic() - self._phase_since
            bar = self.watcher.progress
            unhealthy = self.watcher.unhealthy
            cause = self.watcher.explain().cause if self._dead_since is not None else None
        if cause is None and self._lost_since is not None:
            cause = "a scheduler process is gone; the engine has not said why yet"
        text = None
        if bar is not None and self._ready_at is None:
            text = f"{bar.done}/{bar.total}"
            if bar.remaining_seconds is not None:
                text += f", {bar.remaining_seconds} s left"
            if bar.kind == "weights" and self._read_rate:
                text += f", {self._read_rate / 1e9:.2f} GB/s read"
        return StartupStatus(
            phase=phase,
            progress_ratio=None if bar is None or self._ready_at is not None else bar.ratio,
            progress_text=text,
            phase_seconds=seconds,
            stalled=bool(self._stalled),
            stalled_checks=self._stalled,
            busy=self._busy or unhealthy,
            cause=cause,
            exits=self._exits,
            expected_seconds=None if self._expected is None else self._expected.ready_seconds,
            expected_phase_seconds={} if self._expected is None else self._expected.phase_seconds,
            expected_from=None if self._expected is None else self._expected.text,
            updated_at_seconds=time.time(),
        )

    def _publish(self, *, force: bool = False) -> None:
        status = self._status()
        self._board.publish(status)
        now = time.monotonic()
        off = len(self._levers_off.found)
        key = (status.phase, self._ready_at is not None, status.stalled, status.busy, status.cause, off)
        changed = key != self._written
        if not (changed or force or now - self._written_at >= STATE_INTERVAL_SECONDS):
            return
        became_ready = self._ready_at is not None and self._state.ready_at_seconds is None
        self._state = replace(
            self._state,
            phase=status.phase,
            ready_at_seconds=self._ready_at,
            details=self._details(status, None),
        )
        self._write_state()
        self._written, self._written_at = key, now
        if became_ready and self._ready_at is not None:
            seconds = self._ready_at - self._state.started_at_seconds
            self._say(
                f"ready after {seconds:.1f} s: {self._plan.served_model_name}, profile {self._plan.profile}"
            )
            keep_start(
                self._plan,
                self._starts,
                self._say,
                ready_at_seconds=self._ready_at,
                ready_seconds=seconds,
                phase_seconds=status.phase_seconds,
            )
        elif self._ready_at is None and (changed or now - self._said_at >= SAY_INTERVAL_SECONDS):
            self._said_at = now
            elapsed = time.time() - self._state.started_at_seconds
            more = f": {status.progress_text}" if status.progress_text else ""
            expected = f", {self._expected.text}" if self._expected is not None else ""
            self._say(f"{status.phase}{more} ({elapsed:.0f} s since the start{expected})")

    def _write_state(self) -> None:
        try:
            write_state(self._folder, self._state)
            self._unwritten = False
        except DeployKitError as error:  # a full state folder is no reason to end an engine
            if not self._unwritten:
                self._say(f"the state file is not written: {error.summary}")
            self._unwritten = True

    def _details(self, status: StartupStatus, cause_id: str | None) -> dict[str, object]:
        details: dict[str, object] = {**status.as_dict(), "cause_id": cause_id, "not_ready_because": None}
        if self._ready_at is None:
            details["not_ready_because"] = self._missing
        details["disk_read_bytes_per_second"] = self._read_rate
        details["levers_off"] = dict(self._levers_off.found)
        return details


def _own_pid() -> int:
    import os

    return os.getpid()
