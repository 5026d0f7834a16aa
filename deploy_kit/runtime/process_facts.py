"""What the kernel says of the engine's processes: alive, stopped, working, killed for memory. Reads only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SCHEDULER_NAMES = ("sglang::schedul", "sglang_schedule")


@dataclass(frozen=True)
class GroupFacts:
    """One look at a process group. Sums are over its living processes; bytes and seconds. `schedulers` and
    `dead_schedulers` are the launcher's own children: alive, and ended but not waited for."""

    processes: int
    cpu_seconds: float
    resident_bytes: int
    read_bytes: int
    stopped: tuple[tuple[int, str], ...]
    schedulers: frozenset[int]
    dead_schedulers: frozenset[int] = frozenset()


def look_at_group(group: int, proc: Path = Path("/proc")) -> GroupFacts:
    """Given a process group's id, return what its processes do now."""
    count, cpu, resident, read = 0, 0.0, 0, 0
    stopped: list[tuple[int, str]] = []
    schedulers: set[int] = set()
    dead: set[int] = set()
    for folder in proc.glob("[0-9]*"):
        try:
            head, _, rest = (folder / "stat").read_text().rpartition(")")
            fields = rest.split()
            if int(fields[2]) != group:
                continue
        except (OSError, ValueError, IndexError):
            continue
        name = head.partition("(")[2]
        state = fields[0]
        pid = int(folder.name)
        # The launcher's own children only: what a scheduler forks carries its name until it execs.
        scheduler = name.startswith(_SCHEDULER_NAMES) and int(fields[1]) == group
        if state in "ZX":
            if scheduler:
                dead.add(pid)
            continue
        count += 1
        cpu += (int(fields[11]) + int(fields[12])) / _TICKS
        resident += int(fields[21]) * _PAGE
        if state in "Tt":
            stopped.append((pid, name))
        if scheduler:
            schedulers.add(pid)
        read += _read_bytes(folder)
    return GroupFacts(count, cpu, resident, read, tuple(stopped), frozenset(schedulers), frozenset(dead))


def _read_bytes(folder: Path) -> int:
    # rchar counts reads from the page cache too: a warm load reads no disk and still advances.
    try:
        for line in (folder / "io").read_text().splitlines():
            if line.startswith("rchar:"):
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return 0


def count_memory_kills(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int | None:
    """Return how many processes the kernel killed for memory in our cgroup; None when that is not told."""
    # Version 1 without a namespace of its own: the path in /proc is the host's, the mount is ours already.
    folders = [root, root / "memory"]
    try:
        for line in own.read_text().splitlines():
            hierarchy, controllers, path = line.split(":", 2)
            if hierarchy == "0" and controllers == "":
                folders.insert(0, root / path.lstrip("/"))
            elif "memory" in controllers.split(","):
                folders.insert(0, root / "memory" / path.lstrip("/"))
    except (OSError, ValueError):
        pass
    for folder in folders:
        for name in ("memory.events", "memory.oom_control"):
            try:
                text = (folder / name).read_text()
            except OSError:
                continue
            for line in text.splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return None
