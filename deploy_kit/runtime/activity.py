"""Whether anything observable advances: log, bars, reads, memory, CPU time. Pure: the clock is given."""

from __future__ import annotations

from dataclasses import dataclass

from deploy_kit.runtime.process_facts import GroupFacts

# Below these an increase is a process's own idling, not progress.
_READ_BYTES = 1 << 20
_MEMORY_BYTES = 16 << 20
_CPU_SHARE = 0.05
# Nothing at all moves, CPU included: no phase is like that for long.
IDLE_AFTER_SECONDS = 120.0


@dataclass(frozen=True)
class Quiet:
    """How long nothing has advanced. `spinning`: CPU time alone goes on (a hang in which ranks poll)."""

    seconds: float
    idle_seconds: float
    stopped: tuple[tuple[int, str], ...]
    checks: tuple[str, ...]

    @property
    def spinning(self) -> bool:
        """Whether CPU time is used although nothing else advances."""
        return self.idle_seconds < self.seconds / 2


class ActivityMeter:
    """Takes looks at the engine and says for how long nothing has advanced."""

    def __init__(self, now_seconds: float) -> None:
        self._quiet_since = now_seconds
        self._idle_since = now_seconds
        self._last: tuple[float, int, float, GroupFacts, int | None] | None = None

    def take(
        self,
        now_seconds: float,
        *,
        log_bytes: int,
        progress: float,
        group: GroupFacts,
        gpu_bytes: int | None = None,
        gpu_unknown: str = "not asked",
    ) -> Quiet:
        """Given a look (clock, log bytes so far, progress 0 to 1, the processes, GPU memory in use or None
        when unknown, and why), return how quiet it is."""
        if self._last is not None:
            before_seconds, before_log, before_progress, before, before_gpu = self._last
            gpu_moved = (
                gpu_bytes is not None
                and before_gpu is not None
                and abs(gpu_bytes - before_gpu) >= _MEMORY_BYTES
            )
            advanced = (
                log_bytes != before_log
                or progress != before_progress
                or group.read_bytes - before.read_bytes >= _READ_BYTES
                or abs(group.resident_bytes - before.resident_bytes) >= _MEMORY_BYTES
                or group.processes != before.processes
                or gpu_moved
            )
            elapsed = max(now_seconds - before_seconds, 1e-6)
            working = (group.cpu_seconds - before.cpu_seconds) / elapsed >= _CPU_SHARE
            if advanced:
                self._quiet_since = now_seconds
            if advanced or working:
                self._idle_since = now_seconds
        self._last = (now_seconds, log_bytes, progress, group, gpu_bytes)
        quiet = now_seconds - self._quiet_since
        idle = now_seconds - self._idle_since
        checks = (
            f"log: nothing new for {quiet:.0f} s ({log_bytes} bytes so far)",
            f"progress: {progress:.0%}" if progress >= 0 else "progress: this phase has no measure",
            f"reads: {group.read_bytes} bytes in all, no further MiB",
            f"memory: {group.resident_bytes >> 20} MiB resident, unchanged",
            f"GPU memory: unknown ({gpu_unknown})"
            if gpu_bytes is None
            else f"GPU memory: {gpu_bytes >> 20} MiB, unchanged",
            f"CPU: {'still used (ranks may be spinning)' if idle < quiet / 2 else f'idle for {idle:.0f} s'}",
            f"processes: {group.processes} alive"
            + "".join(f"; {pid} ({name}) is stopped (SIGSTOP)" for pid, name in group.stopped),
        )
        return Quiet(quiet, idle, group.stopped, checks)
