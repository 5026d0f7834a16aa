"""`df`, in whole or in part, with any options and in any language: which file system has how much room."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from deploy_kit.doctor.blocks import Block

UNITS = {"": 1024, "B": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4, "P": 1024**5}
_AMOUNT = r"(?P<{0}>\d[\d.,]*)(?P<{0}_unit>[KMGTP]?)i?B?"
_ROW = re.compile(
    rf"^(?P<device>\S+)(?:\s+(?P<type>[a-z][\w.-]*))?\s+{_AMOUNT.format('size')}\s+\d[\d.,]*[KMGTP]?i?B?\s+"
    rf"{_AMOUNT.format('free')}\s+(?P<use>\d{{1,3}})%\s+(?P<mount>/\S*)$"
)
# The head of a table without -h says what one block is: 1K-blocks, 1B-blocks, 1024-Blöcke.
_HEAD = re.compile(r"\b(?P<number>\d{1,6})(?P<unit>[BKMGTP]?)-(?:blocks|Bl)", re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """One file system as df shows it; sizes in bytes."""

    device: str
    mount: str
    size_bytes: int
    free_bytes: int
    used_percent: int


def rows(block: Block) -> Iterator[Row]:
    """Yield the rows of df's tables."""
    block_bytes = 1024
    for line in block.lines_with("% ", "%\t", "-blocks", "-Bl"):
        text = line.strip()
        if head := _HEAD.search(text):
            block_bytes = int(head["number"]) * (UNITS[head["unit"].upper()] if head["unit"] else 1)
        elif found := _ROW.match(text):
            size = _bytes(found["size"], found["size_unit"], block_bytes)
            free = _bytes(found["free"], found["free_unit"], block_bytes)
            if size is not None and free is not None:
                yield Row(found["device"], found["mount"], size, free, int(found["use"]))


def _bytes(number: str, unit: str, block_bytes: int) -> int | None:
    value = decimal(number)
    return None if value is None else int(value * (UNITS[unit] if unit else block_bytes))


def decimal(text: str) -> float | None:
    """Return a number written with a point or, as some languages do, a comma; None when it is none."""
    text = text.replace(",", ".")
    return float(text) if re.fullmatch(r"\d{1,18}(?:\.\d{1,6})?", text, re.ASCII) else None
