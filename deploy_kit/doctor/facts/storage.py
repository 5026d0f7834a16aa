"""Disks and memory: `df`, `free`, /proc/meminfo, and read speeds that dd or fio measured."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from deploy_kit.doctor.blocks import Block

_UNITS = {"": 1024, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4, "P": 1024**5}
_DF = re.compile(
    r"^(?P<device>\S+)(?:\s+(?:ext4|xfs|btrfs|zfs|overlay|nfs4?))?\s+(?P<size>[\d.]+)(?P<su>[KMGTP]?)i?B?\s+[\d.]+[KMGTP]?i?B?\s+"
    r"(?P<free>[\d.]+)(?P<fu>[KMGTP]?)i?B?\s+(?P<use>\d{1,3})%\s+(?P<mount>/\S*)$"
)
_DD = re.compile(r"bytes .*copied, [\d.]+ s, ([\d.]+) ([KMG])B/s")
_FIO = re.compile(r"READ: bw=([\d.]+)([KMG])i?B/s")


@dataclass(frozen=True)
class FileSystem:
    """One mounted file system; sizes in bytes."""

    mount: str
    size_bytes: int
    free_bytes: int
    used_percent: int


@dataclass(frozen=True)
class StorageFacts:
    """File systems, measured read speed and available memory; None or empty: not read."""

    file_systems: tuple[FileSystem, ...] = field(default=())
    read_bytes_per_second: int | None = None
    memory_available_bytes: int | None = None
    memory_total_bytes: int | None = None


def parse_storage(block: Block) -> StorageFacts | None:
    """Given df, dd, fio, free or /proc/meminfo, return what was read."""
    systems = []
    speed = available = total = None
    for line in block.lines_with("% ", "%\t", "copied, ", "READ: bw=", "MemAvailable:", "MemTotal:"):
        text = line.strip()
        if found := _DF.match(text):
            size, free = _bytes(found["size"], found["su"]), _bytes(found["free"], found["fu"])
            if size is not None and free is not None and found["mount"] != "/dev/shm":  # noqa: S108
                systems.append(FileSystem(found["mount"], size, free, int(found["use"])))
        elif found := _DD.search(text) or _FIO.search(text):
            scale = {"K": 10**3, "M": 10**6, "G": 10**9}[found[2]]
            speed = None if (number := _float(found[1])) is None else int(number * scale)
        elif found := re.match(r"Mem(Available|Total):\s+(\d{1,15}) kB", text, re.ASCII):
            if found[1] == "Total":
                total = int(found[2]) * 1024
            else:
                available = int(found[2]) * 1024
    facts = StorageFacts(tuple(systems), speed, available, total)
    return None if facts == StorageFacts() else facts


def _float(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,15}(?:\.\d{1,6})?", text, re.ASCII) else None


def _bytes(number: str, unit: str) -> int | None:
    value = _float(number)
    return None if value is None else int(value * _UNITS[unit])
