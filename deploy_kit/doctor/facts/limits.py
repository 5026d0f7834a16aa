"""Limits of a process: locked memory and shared memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from deploy_kit.doctor.blocks import Block
from deploy_kit.doctor.facts import df

UNLIMITED = -1


@dataclass(frozen=True)
class Limits:
    """memlock in bytes (UNLIMITED when there is none) and the size of /dev/shm in bytes; None: not read."""

    memlock_bytes: int | None = None
    shm_bytes: int | None = None
    shm_available_bytes: int | None = None


_LIMIT = r"(?P<limit>\d{1,20}|unlimited|infinity)\b"
# Each tool's own unit, in bytes: /proc/PID/limits, prlimit and systemd count bytes, shells count 1024.
_MEMLOCK = (
    (re.compile(rf"Max locked memory\s+{_LIMIT}"), 1),
    (re.compile(rf"MEMLOCK\s+max locked-in-memory address space\s+{_LIMIT}"), 1),
    (re.compile(rf"LimitMEMLOCK(?:Soft)?={_LIMIT}"), 1),
    (re.compile(rf"max locked memory\s+\(bytes, -l\)\s+{_LIMIT}"), 1),
    (re.compile(rf"max locked memory\s+\(kbytes, -l\)\s+{_LIMIT}"), 1024),
    (re.compile(rf"-l: locked-in-memory size \(kbytes\)\s+{_LIMIT}"), 1024),  # zsh
    (re.compile(rf"locked memory\(kbytes\)\s+{_LIMIT}"), 1024),  # dash
)
_WORDS = ("ocked memory", "MEMLOCK", "locked-in-memory", "/dev/shm", "ShmSize")  # noqa: S108
_MOUNTED = re.compile(r"(?:shm|tmpfs|none) on /dev/shm type tmpfs \(.*\bsize=(\d{1,15})([kmg]?)\b")


def parse_limits(block: Block) -> Limits | None:
    """Given `ulimit -l`, `ulimit -a`, prlimit, /proc/self/limits, `systemctl show`, `df /dev/shm`, `mount` or
    `docker inspect`, return the limits that were read."""
    memlock = shm = available = None
    titled = re.search(r"ulimit\s+-\w*l\b", block.title) is not None
    for line in block.lines if titled else block.lines_with(*_WORDS):
        text = line.strip()
        if titled and re.fullmatch(r"\d{1,20}|unlimited", text, re.ASCII):
            memlock = _memlock(text, 1024)
        elif mounted := _MOUNTED.match(text):
            shm = int(mounted[1]) * df.UNITS[mounted[2].upper() or "B"]
        elif inspected := re.match(r'"ShmSize": (\d{1,15})\b', text):
            # With the host's own it says nothing.
            shm = None if '"IpcMode": "host"' in block.text else int(inspected[1])
        else:
            found = ((pattern.match(text), unit) for pattern, unit in _MEMLOCK)
            memlock = next((_memlock(match["limit"], unit) for match, unit in found if match), memlock)
    for row in df.rows(block) if "/dev/shm" in block.text else ():  # noqa: S108
        if row.mount == "/dev/shm":  # noqa: S108
            shm, available = row.size_bytes, row.free_bytes
    limits = Limits(memlock, shm, available)
    return None if limits == Limits() else limits


def _memlock(text: str, unit: int) -> int:
    return int(text) * unit if text.isdecimal() else UNLIMITED
