"""Limits of a process: locked memory and shared memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from deploy_kit.doctor.blocks import Block

UNLIMITED = -1
_UNITS = {"": 1024, "B": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


@dataclass(frozen=True)
class Limits:
    """memlock in bytes (UNLIMITED when there is none) and the size of /dev/shm in bytes; None: not read."""

    memlock_bytes: int | None = None
    shm_bytes: int | None = None
    shm_available_bytes: int | None = None


def parse_limits(block: Block) -> Limits | None:
    """Given `ulimit -l`, `ulimit -a`, /proc/self/limits or `df /dev/shm`, return the limits that were
    read."""
    memlock = shm = available = None
    titled = re.search(r"ulimit\s+-\w*l\b", block.title) is not None
    for line in block.lines if titled else block.lines_with("ax locked memory", "/dev/shm"):  # noqa: S108
        text = line.strip()
        if found := re.match(r"Max locked memory\s+(\d{1,20}|unlimited)\b", text):
            memlock = UNLIMITED if found[1] == "unlimited" else int(found[1])
        elif found := re.match(r"max locked memory\s+\((kbytes|bytes), -l\)\s+(\d{1,20}|unlimited)", text):
            memlock = (
                UNLIMITED
                if found[2] == "unlimited"
                else int(found[2]) * (1024 if found[1] == "kbytes" else 1)
            )
        elif titled and re.fullmatch(r"\d{1,20}|unlimited", text, re.ASCII):
            memlock = UNLIMITED if text == "unlimited" else int(text) * 1024
        elif found := re.match(
            r"(?:shm|tmpfs|none)\s+(\d[\d.]*)([KMGT]?)i?\s+\S+\s+(\d[\d.]*)([KMGT]?)i?\s+\d+%\s+/dev/shm$",
            text,
        ):
            shm, available = _bytes(found[1], found[2]), _bytes(found[3], found[4])
    limits = Limits(memlock, shm, available)
    return None if limits == Limits() else limits


def _bytes(number: str, unit: str) -> int | None:
    return (
        int(float(number) * _UNITS[unit])
        if re.fullmatch(r"\d{1,15}(?:\.\d{1,6})?", number, re.ASCII)
        else None
    )
