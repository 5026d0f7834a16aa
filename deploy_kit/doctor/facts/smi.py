"""nvidia-smi in any of its forms, to the same facts of a GPU; here the head lines and `-q`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from deploy_kit.doctor.blocks import Block
from deploy_kit.doctor.facts.gpu import Gpu, integer_of, is_enabled, is_error, is_yes, number_of, pstate_of
from deploy_kit.doctor.facts.smi_csv import parse_csv
from deploy_kit.doctor.facts.smi_table import parse_list, parse_table


@dataclass(frozen=True)
class SmiFacts:
    """Everything of one nvidia-smi output."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    no_devices: bool = False
    in_container: bool = False
    on_host: bool = False
    fault: str | None = None
    attached: int | None = None
    cut: bool = False
    inforom: str | None = None


_TABLE_HEAD = re.compile(
    r"NVIDIA-SMI\s+(\S+).*?(?:Driver|KMD) Version:\s*([\d.]+)(?:.*?CUDA Version:\s*([\d.]+))?"
)
_QUERY_GPU = re.compile(r"^GPU (?P<bus>[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$")
_FAULT = re.compile(
    r"Failed to initialize NVML: .+|NVIDIA-SMI has failed because .+"
    r"|Unable to determine the device handle for .+"
    r"|GPU is lost.*|NVIDIA-SMI couldn'?t find .+"
)
# Compose puts a service's name before each line of its container.
_OF_COMPOSE = re.compile(r"\s*[\w.-]+\s+\| ")
_HEADING = re.compile(r"[A-Za-z][A-Za-z0-9 ./()-]{1,60}")
_FIRST_WORDS = (
    "NVIDIA-SMI", "No devices were found", "Failed to initialize NVML: ",
    "Unable to determine the device handle", "GPU is lost", "infoROM is corrupted",
)  # fmt: skip


def parse_smi(block: Block) -> SmiFacts | None:
    """Given an output of nvidia-smi in any of its forms (whole or a part), return its facts, or None."""
    driver = cuda = fault = inforom = None
    no_devices = of_compose = False
    for line in block.lines_with(*_FIRST_WORDS):
        if head := _TABLE_HEAD.search(line):
            driver, cuda = head[2], head[3]
        elif "No devices were found" in line:
            no_devices = True
        elif "infoROM is corrupted" in line:
            inforom = line.strip()
        elif (found := _FAULT.search(line)) and fault is None:
            fault = found[0].strip()
            of_compose = _OF_COMPOSE.match(line) is not None
    records, top = _parse_query(block)
    cut = sum(record.bus_id is not None for record in records) > 1 and _ends_early(records)
    gpus: list[Gpu] = []
    for record in records:
        if (gpu := _gpu_of(record, len(gpus))) is not None:
            gpus.append(gpu)
    if not gpus and (gpus := parse_table(block)):
        cut = gpus[-1].pstate is None and not gpus[-1].error_fields and all(gpu.pstate for gpu in gpus[:-1])
        cut = cut and len(gpus) > 1
    gpus = gpus or parse_csv(block) or parse_list(block)
    driver = driver or top.get("Driver Version")
    attached = integer_of(top.get("Attached GPUs"))
    if not (gpus or driver or no_devices or fault or inforom or attached is not None):
        return None
    return SmiFacts(
        gpus=tuple(gpus),
        driver=driver,
        cuda=cuda or top.get("CUDA Version"),
        no_devices=no_devices,
        in_container=block.in_container or (fault is not None and of_compose),
        on_host=block.on_host,
        fault=fault,
        attached=attached,
        cut=cut,
        inforom=inforom,
    )


# --- nvidia-smi -q -----------------------------------------------------------------------------------------

_SECTIONS = {
    "FB Memory Usage", "BAR1 Memory Usage", "GPU Link Info", "PCIe Generation", "Link Width", "MIG Mode",
    "Clocks Event Reasons", "Clocks Throttle Reasons", "GPU Power Readings", "Power Readings", "Temperature",
    "Utilization", "ECC Mode", "ECC Errors", "Volatile", "Aggregate", "Remapped Rows", "Retired Pages", "PCI",
    "GPU Virtualization Mode", "Clocks", "Max Clocks", "Single Bit ECC", "Double Bit ECC", "Conf Compute",
    "Conf Compute Protected Memory Usage", "GSP Firmware Version",
    "Driver Model", "Inforom Version", "Fabric",
    "Platform Info", "Encoder Stats", "FBC Stats", "Module Power Readings", "Power Smoothing", "Voltage",
    "Memory Power Readings", "GPU Memory Power Readings", "Applications Clocks", "Max Customer Boost Clocks",
    "Clocks Event Reasons Counters", "Clocks Throttle Reasons Counters",
    "Clock Policy", "Bridge Chip", "IBMNPU",
    "Processes", "Accounting Mode", "GPU Operation Mode", "DRAM Encryption Mode", "Capabilities",
}  # fmt: skip


# A listing has headings of GPUs, or keys with white space before the colon, and among them one that is used.
_LISTING_MARKS = (" :", "\t:", "GPU 0", "GPU 1")
_QUERY_WORDS = (
    "GPU", "Active", "Mode", "Usage", "Gpu", "Limit", "Version", "Link Width", "PCIe Generation", "Pending",
    "Performance State", "Product Name", "Recovery Action", "Remapped Rows", "Replays Since Reset",
    "Reset Required", "Uncorrectable", "Double Bit ECC", "ERR!", "Unknown Error", "Unrepairable Memory",
    "Utilization",
)  # fmt: skip


@dataclass
class _Record:
    """One GPU of `-q`: values by their path of headings."""

    bus_id: str | None = None
    values: dict[tuple[str, ...], str] = field(default_factory=dict)


class _Row(NamedTuple):
    """One line of a `-q` listing: how far it is indented, its key (or heading), its value (None: a heading; a
    key of None: neither)."""

    depth: int
    key: str | None
    value: str | None


def _parse_query(block: Block) -> tuple[list[_Record], dict[str, str]]:
    """Return the GPUs of a `-q` listing and the values that stand before the first GPU."""
    records = [_Record()]
    top: dict[str, str] = {}
    stack: list[tuple[int, tuple[str, ...]]] = [(-1, ())]  # indentation and path of the headings above a line
    in_processes = False
    rows: dict[str, _Row] = {}  # a listing repeats its lines for each GPU
    may_be = block.has(*_LISTING_MARKS) and block.has(*_QUERY_WORDS)
    for line in block.lines if may_be else ():
        if not line or line[0] in _NO_LISTING:
            continue
        if line.startswith("GPU ") and (header := _QUERY_GPU.match(line)):
            records.append(_Record(bus_id=header["bus"]))
            stack, in_processes = [(-1, ())], False
            continue
        row = rows.get(line)
        if row is None:
            row = rows[line] = _read_row(line)
        depth, key, value = row
        if depth < 0:
            continue
        while stack[-1][0] >= depth:
            stack.pop()
        if key is None or (in_processes and value is not None):
            continue
        path = (*stack[-1][1], key)
        # A row such as "HW Slowdown : Not Active" heads the rows below it that are indented further.
        stack.append((depth, path))
        if value is None:
            in_processes = key == "Processes"
            continue
        if not value:
            continue
        record = records[-1]
        if record.bus_id is None and path in record.values and len(path) > 1:
            records.append(_Record())  # the same field again without a GPU heading: the next GPU's
            record = records[-1]
        record.values.setdefault(path, value)
        if record.bus_id is None and len(path) == 1:
            top.setdefault(key, value)
    return records, top


def _read_row(line: str) -> _Row:
    """Given a line of a listing, return what it is; a depth of -1: a line without text."""
    if "\t" in line:
        line = line.expandtabs(8)
    text = line.strip()
    if not text:
        return _Row(-1, None, None)
    depth = len(line) - len(line.lstrip())
    if text in _SECTIONS:
        return _Row(depth, text, None)
    colon = _colon(line)
    if colon is None:
        return _Row(depth, text if _HEADING.fullmatch(text) else None, None)
    return _Row(depth, line[:colon].strip(), line[colon + 1 :].strip())


_NO_LISTING = frozenset("|+=")


def _colon(line: str) -> int | None:
    """Return where the colon between key and value stands: after white space, before a blank or the end."""
    at = line.find(":")
    while at > 0:
        if line[at - 1].isspace() and line[at + 1 : at + 2] in ("", " ") and not line[:at].isspace():
            return at
        at = line.find(":", at + 1)
    return None


def _gpu_of(record: _Record, index: int) -> Gpu | None:
    by_name: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for path, value in record.values.items():
        by_name.setdefault(path[-1], []).append((path, value))

    def get(*names: str) -> str | None:
        """Return the value of this key, below this heading where two words are given."""
        for path, value in by_name.get(names[-1], ()):
            if len(names) == 1 or names[0] in path[:-1]:
                return value
        return None

    reasons = {
        path[-1]: value
        for path, value in record.values.items()
        if value in ("Active", "Not Active") and path[-1] != "ECC"
    }
    remapped = get("Remapped Rows", "Uncorrectable Error")
    gpu = Gpu(
        bus_id=record.bus_id,
        index=index if record.bus_id else None,
        name=get("Product Name"),
        fb_mib=integer_of(get("FB Memory Usage", "Total")),
        fb_used_mib=integer_of(get("FB Memory Usage", "Used")),
        bar1_mib=integer_of(get("BAR1 Memory Usage", "Total")),
        max_gen=integer_of(get("PCIe Generation", "Max")),
        current_gen=integer_of(get("PCIe Generation", "Current")),
        device_max_gen=integer_of(get("PCIe Generation", "Device Max")),
        host_max_gen=integer_of(get("PCIe Generation", "Host Max")),
        max_width=integer_of(get("Link Width", "Max")),
        current_width=integer_of(get("Link Width", "Current")),
        replays=integer_of(get("Replays Since Reset")),
        pstate=pstate_of(get("Performance State")),
        utilization_percent=integer_of(
            get("Utilization", "GPU") or get("Utilization", "Gpu") or _loose_percent(record)
        ),
        persistence=is_enabled(get("Persistence Mode")),
        mig=is_enabled(get("MIG Mode", "Current")),
        mig_pending=is_enabled(get("MIG Mode", "Pending")),
        compute_mode=get("Compute Mode"),
        virtualization=get("GPU Virtualization Mode", "Virtualization Mode") or get("Virtualization Mode"),
        addressing_mode=get("Addressing Mode"),
        recovery_action=_recovery(
            get("GPU Recovery Action"), get("Reset Required"), get("Drain and Reset Recommended")
        ),
        power_limit_w=number_of(get("Current Power Limit") or get("Power Limit")),
        requested_power_limit_w=number_of(get("Requested Power Limit")),
        default_power_limit_w=number_of(get("Default Power Limit")),
        active_reasons=tuple(name for name, value in reasons.items() if value == "Active"),
        read_reasons=bool(reasons),
        temperature_c=integer_of(get("GPU Current Temp")),
        ecc_enabled=is_enabled(get("ECC Mode", "Current")),
        uncorrectable_volatile=_sum_errors(record, "Volatile"),
        uncorrectable_aggregate=_sum_errors(record, "Aggregate"),
        ecc_threshold=is_yes(get("SRAM Threshold Exceeded")),
        remap_pending=is_yes(get("Remapped Rows", "Pending")),
        remap_failure=is_yes(get("Remapped Rows", "Remapping Failure Occurred")),
        remapped_uncorrectable=integer_of(remapped),
        retired_double_bit=integer_of(get("Retired Pages", "Double Bit ECC")),
        pages_pending=is_yes(get("Pending Page Blacklist") or get("Pending")),
        repair_pending=is_yes(get("Channel Repair Pending")) or is_yes(get("TPC Repair Pending")),
        unrepairable=is_yes(get("Unrepairable Memory")),
        error_fields=tuple(path[-1] for path, value in record.values.items() if is_error(value)),
    )
    return gpu if record.bus_id or gpu != Gpu() else None


def _loose_percent(record: _Record) -> str | None:
    # A cut-out listing may have lost the heading "Utilization" above "GPU : 0 %".
    return next((v for p, v in record.values.items() if p[-1] in ("GPU", "Gpu") and v.endswith("%")), None)


def _recovery(action: str | None, *asked: str | None) -> str | None:
    return "Reset" if action in (None, "None") and "Yes" in asked else action


def _sum_errors(record: _Record, which: str) -> int | None:
    counts = {
        path: number
        for path, value in record.values.items()
        if which in path
        and ("Uncorrectable" in path[-1] or "Double Bit" in path or "Double Bit ECC" in path)
        and "Threshold" not in path[-1]
        and (number := integer_of(value)) is not None
    }
    # Older drivers print a sum below the parts.
    totals = [number for path, number in counts.items() if path[-1] == "Total"]
    return sum(totals or counts.values()) if counts else None


def _ends_early(records: list[_Record]) -> bool:
    """Whether the last GPU's listing stops before those of all others do: the text was cut off in it."""
    *others, last = (record for record in records if record.bus_id)
    some = others[:16]  # a text that repeats its listings has thousands
    common = [path for path in some[0].values if all(path in record.values for record in some)]
    return bool(common) and common[-1] not in last.values and last.values.keys() < set(common)
