"""Facts of one GPU, and how nvidia-smi writes numbers, states and answers."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """Facts of one GPU; None: not in the output. Sizes in MiB, power in W, PCIe generations and lane
    counts."""

    bus_id: str | None = None
    index: int | None = None
    name: str | None = None
    compute_capability: str | None = None
    fb_mib: int | None = None
    fb_used_mib: int | None = None
    bar1_mib: int | None = None
    max_gen: int | None = None
    current_gen: int | None = None
    device_max_gen: int | None = None
    host_max_gen: int | None = None
    max_width: int | None = None
    current_width: int | None = None
    replays: int | None = None
    pstate: str | None = None
    utilization_percent: int | None = None
    persistence: bool | None = None
    mig: bool | None = None
    mig_pending: bool | None = None
    compute_mode: str | None = None
    virtualization: str | None = None
    addressing_mode: str | None = None
    recovery_action: str | None = None
    power_limit_w: float | None = None
    requested_power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    active_reasons: tuple[str, ...] = ()
    read_reasons: bool = False
    temperature_c: int | None = None
    ecc_enabled: bool | None = None
    uncorrectable_volatile: int | None = None
    uncorrectable_aggregate: int | None = None
    ecc_threshold: bool | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    remapped_uncorrectable: int | None = None
    retired_double_bit: int | None = None
    pages_pending: bool | None = None
    repair_pending: bool | None = None
    unrepairable: bool | None = None
    error_fields: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Return the GPU's name for findings."""
        if self.index is not None:
            return f"GPU {self.index}"
        return f"GPU {self.bus_id}" if self.bus_id else "the GPU"

    @property
    def idle(self) -> bool | None:
        """Whether the GPU did nothing when it was read; None when that was not in the output."""
        busy = None if self.utilization_percent is None else self.utilization_percent >= 5
        if busy or self.pstate is None:
            return None if busy is None else not busy
        low_power = int(self.pstate[1:]) >= 5
        # P0 at 0 %: nvidia-smi itself wakes a card; that tells nothing.
        return True if low_power else None if busy is False else False


_NUMBER = re.compile(r"^\[?(-?\d{1,12}(?:\.\d{1,6})?)\s*(?:MiB|x|W|%|C|MHz)?\]?\b", re.ASCII)
# What stands in place of a value when a GPU does not answer, with and without brackets.
_ERRORS = frozenset({"ERR!", "Unknown Error", "GPU is lost", "GPU requires reset"})


def number_of(text: str | None) -> float | None:
    """Return the number a value begins with ("600.00 W", "16x"), None when it is none ("[N/A]")."""
    match = _NUMBER.match(text.strip()) if text else None
    return float(match[1]) if match else None


def integer_of(text: str | None) -> int | None:
    """Return the value's number as a whole one."""
    number = number_of(text)
    return None if number is None else int(number)


def pstate_of(text: str | None) -> str | None:
    """Return the performance state ("P8"), None when it is none."""
    match = re.fullmatch(r"P(\d{1,2})", (text or "").strip(), re.ASCII)
    return match[0] if match else None


def is_enabled(text: str | None) -> bool | None:
    """Return whether a mode is on; None when the value does not say."""
    return {"Enabled": True, "On": True, "Disabled": False, "Off": False}.get((text or "").strip())


def is_yes(text: str | None) -> bool | None:
    """Return an answer; queries write 1 and 0 for some. None when the value does not say."""
    return {"Yes": True, "No": False, "1": True, "0": False}.get((text or "").strip())


def is_error(text: str) -> bool:
    """Whether an error stands in the place of a value."""
    return text.strip().strip("[]").rstrip(".") in _ERRORS
