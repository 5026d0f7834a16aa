"""Disks and memory: `df`, `free`, /proc/meminfo, and read speeds that dd or fio measured."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from deploy_kit.doctor.blocks import Block
from deploy_kit.doctor.facts import df

_DD = re.compile(r"[Bb]ytes .*(?:copied|kopiert), [\d.,]+ s, (?P<speed>[\d.,]+) (?P<unit>[kKMG])B/s")
_FIO = re.compile(r"READ: bw=(?P<speed>[\d.]+)(?P<unit>[kKMG])i?B/s")
# total, used, free, shared, buff/cache, available
_FREE = re.compile(r"(?:Mem|Speicher):\s+(?P<total>\S+)(?:\s+\S+){4}\s+(?P<available>\S+)$")
_FREE_AMOUNT = re.compile(r"(?P<number>\d[\d.,]*)(?P<unit>[BKMGTP]?)i?B?")
_FREE_UNITS = {"b": "B", "k": "K", "m": "M", "g": "G"}
# Full by nature (images of packages, optical disks) or no place for weights.
_NO_DISK = ("/dev/loop", "/dev/sr", "tmpfs", "devtmpfs", "udev", "efivarfs", "shm", "none")


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
    speed = available = total = None
    for line in block.lines_with(
        "copied, ", "kopiert, ", "READ: bw=", "MemAvailable:", "MemTotal:", "Mem:", "Speicher:"
    ):
        text = line.strip()
        if found := _DD.search(text) or _FIO.search(text):
            scale = {"K": 10**3, "M": 10**6, "G": 10**9}[found["unit"].upper()]
            speed = None if (number := df.decimal(found["speed"])) is None else int(number * scale)
        elif found := re.match(r"Mem(Available|Total):\s+(\d{1,15}) kB", text, re.ASCII):
            if found[1] == "Total":
                total = int(found[2]) * 1024
            else:
                available = int(found[2]) * 1024
        elif found := _FREE.match(text):
            asked = re.search(r"\bfree\s+-\w*([bkmg])", block.title)
            unit = _FREE_UNITS[asked[1]] if asked else "K"
            total, available = _amount(found["total"], unit), _amount(found["available"], unit)
    systems = tuple(
        FileSystem(row.mount, row.size_bytes, row.free_bytes, row.used_percent)
        for row in df.rows(block)
        if row.mount != "/dev/shm" and not row.device.startswith(_NO_DISK)  # noqa: S108
    )
    facts = StorageFacts(systems, speed, available, total)
    return None if facts == StorageFacts() else facts


def _amount(text: str, unit: str) -> int | None:
    found = _FREE_AMOUNT.fullmatch(text)
    number = df.decimal(found["number"]) if found else None
    return None if found is None or number is None else int(number * df.UNITS[found["unit"] or unit])
