"""`nvidia-smi --query-gpu=… --format=csv`."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from typing import Any

from deploy_kit.doctor.blocks import Block
from deploy_kit.doctor.facts.gpu import Gpu, integer_of, is_enabled, is_error, is_yes, number_of, pstate_of

_INTEGER_FIELDS = {
    "memory.total": "fb_mib",
    "memory.used": "fb_used_mib",
    "pcie.link.gen.max": "max_gen",
    "pcie.link.gen.gpumax": "device_max_gen",
    "pcie.link.gen.hostmax": "host_max_gen",
    "pcie.link.gen.current": "current_gen",
    "pcie.link.gen.gpucurrent": "current_gen",
    "pcie.link.width.max": "max_width",
    "pcie.link.width.current": "current_width",
    "utilization.gpu": "utilization_percent",
    "temperature.gpu": "temperature_c",
    "index": "index",
    "ecc.errors.uncorrected.volatile.total": "uncorrectable_volatile",
    "ecc.errors.uncorrected.aggregate.total": "uncorrectable_aggregate",
    "remapped_rows.uncorrectable": "remapped_uncorrectable",
    "retired_pages.double_bit.count": "retired_double_bit",
}
_TEXT_FIELDS = {
    "name": "name",
    "gpu_name": "name",
    "pci.bus_id": "bus_id",
    "gpu_bus_id": "bus_id",
    "compute_cap": "compute_capability",
    "compute_mode": "compute_mode",
}
_POWER_FIELDS = {
    "power.limit": "power_limit_w",
    "enforced.power.limit": "power_limit_w",
    "power.default_limit": "default_power_limit_w",
}

_MODE_FIELDS = {
    "persistence_mode": "persistence",
    "mig.mode.current": "mig",
    "mig.mode.pending": "mig_pending",
    "ecc.mode.current": "ecc_enabled",
}
_ANSWER_FIELDS = {
    "remapped_rows.pending": "remap_pending",
    "remapped_rows.failure": "remap_failure",
    "retired_pages.pending": "pages_pending",
}
# Bits of clocks_event_reasons.active, as NVML defines them; the rest is no slowdown that harms.
_REASON_BITS = {
    0x08: "HW Slowdown",
    0x20: "SW Thermal Slowdown",
    0x40: "HW Thermal Slowdown",
    0x80: "HW Power Brake Slowdown",
}
_REASON = re.compile(r"clocks_(?:throttle|event)_reasons\.(\w+)")

_KNOWN_FIELDS = frozenset(
    {
        *_INTEGER_FIELDS,
        *_TEXT_FIELDS,
        *_POWER_FIELDS,
        *_MODE_FIELDS,
        *_ANSWER_FIELDS,
        "pstate",
        "driver_version",
    }
)
_FIELD_WORDS = (
    "name",
    "index",
    "memory.",
    "pcie.link.",
    "utilization.gpu",
    "temperature.gpu",
    "bus_id",
    "compute_",
    "power.",
    "pstate",
    "persistence_mode",
    "driver_version",
    "ecc.",
    "mig.mode.",
    "remapped_rows.",
    "retired_pages.",
)
_UNIT = re.compile(r"\s*\[.*\]$")


def parse_csv(block: Block) -> list[Gpu]:
    """Read `--query-gpu=… --format=csv`; without its header line the title's field list is the header."""
    header: list[str] | None = None
    if asked := re.search(r"--query-gpu=(\S+)", block.title):
        header = [name.strip("'\"") for name in asked[1].split(",")]
    gpus: list[Gpu] = []
    for line in block.lines_with(",") if header is None else block.lines:
        # Most lines need no reading: no header has fewer commas, and no row another number of them.
        columns = line.count(",") + 1
        may_be_row = header is not None and (
            columns == len(header) or (columns > len(header) and '"' in line)
        )
        if not may_be_row and not any(word in line for word in _FIELD_WORDS):
            continue
        try:
            cells = [cell.strip() for cell in next(csv.reader([line.strip()]), [])]
        except csv.Error:
            continue
        names = [_UNIT.sub("", cell) for cell in cells]
        fields_named = len(_KNOWN_FIELDS.intersection(names))
        if fields_named and fields_named >= min(2, len(names)):
            header = names
            continue
        if header is None or len(cells) != len(header):
            continue
        values = dict(zip(header, cells, strict=True))
        fields = _fields_of(values)
        if fields:
            gpus.append(replace(Gpu(), **fields))
    return gpus


def _fields_of(values: dict[str, str]) -> dict[str, Any]:
    """Given one line's values by the names of their columns, return the facts; what is no value is left
    out."""
    fields: dict[str, Any] = {}
    errors = tuple(name for name, value in values.items() if is_error(value))
    if errors:
        fields["error_fields"] = errors
    for name, value in values.items():
        if name in _INTEGER_FIELDS and (number := integer_of(value)) is not None:
            fields[_INTEGER_FIELDS[name]] = number
        elif name in _POWER_FIELDS and (watts := number_of(value)) is not None:
            fields[_POWER_FIELDS[name]] = watts
        elif name in _TEXT_FIELDS and value and not value.startswith("["):
            fields[_TEXT_FIELDS[name]] = value
        elif name == "pstate":
            fields["pstate"] = pstate_of(value)
        elif name in _MODE_FIELDS:
            fields[_MODE_FIELDS[name]] = is_enabled(value)
        elif name in _ANSWER_FIELDS:
            fields[_ANSWER_FIELDS[name]] = is_yes(value)
        elif (reason := _REASON.fullmatch(name)) and (
            active := _active_reasons(reason[1], value)
        ) is not None:
            fields["read_reasons"] = True
            fields["active_reasons"] = (*fields.get("active_reasons", ()), *active)
    return fields


def _active_reasons(name: str, value: str) -> tuple[str, ...] | None:
    """Given a column of clock reasons and its value, return the reasons that are active; None: it does not
    say."""
    if name == "active":
        if not re.fullmatch(r"0x[0-9a-fA-F]{1,16}", value):
            return None
        return tuple(reason for bit, reason in _REASON_BITS.items() if int(value, 16) & bit)
    if value not in ("Active", "Not Active"):
        return None
    words = name.replace("_", " ").replace("hw ", "HW ").replace("sw ", "SW ")
    return (_title_case(words),) if value == "Active" else ()


def _title_case(words: str) -> str:
    return " ".join(word if word.isupper() else word.capitalize() for word in words.split())
