"""nvidia-smi: `-q`, the plain table, `-L` and `--query-gpu … --format=csv`, all to the same facts of a
GPU."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from deploy_kit.doctor.blocks import Block


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
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    remapped_uncorrectable: int | None = None
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


@dataclass(frozen=True)
class SmiFacts:
    """Everything of one nvidia-smi output."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    no_devices: bool = False
    in_container: bool = False
    fault: str | None = None
    attached: int | None = None


_TABLE_HEAD = re.compile(
    r"NVIDIA-SMI\s+(\S+).*?(?:Driver|KMD) Version:\s*([\d.]+)(?:.*?CUDA Version:\s*([\d.]+))?"
)
_TABLE_GPU = re.compile(
    r"^\|\s+(?P<index>\d+)\s+(?P<name>\S.*?)\s+(?:(?P<persistence>On|Off)\s+)?"
    r"\|\s*(?P<bus>[0-9A-Fa-f]{8}:[0-9A-Fa-f:.]+)"
)
_TABLE_STATE = re.compile(
    r"^\|[^|]*?\bP(?P<pstate>\d+)\s+(?P<draw>\S+)\s*/\s*(?P<cap>\S+)\s*"
    r"\|\s*(?P<used>\d+)MiB\s*/\s*(?P<total>\d+)MiB"
    r"\s*\|\s*(?P<use>\d+%|N/A|ERR!)?"
)
_LIST_GPU = re.compile(r"^GPU (?P<index>\d+): (?P<name>.+?) \(UUID: \S+\)\s*$")
_QUERY_GPU = re.compile(r"^GPU (?P<bus>[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$")
_FAULT = re.compile(
    r"Failed to initialize NVML: .+|NVIDIA-SMI has failed because .+"
    r"|Unable to determine the device handle for .+"
    r"|GPU is lost.*|NVIDIA-SMI couldn'?t find .+"
)
_HEADING = re.compile(r"[A-Za-z][A-Za-z0-9 ./()-]{1,60}")
_FIRST_WORDS = (
    "NVIDIA-SMI", "No devices were found", "Failed to initialize NVML: ",
    "Unable to determine the device handle", "GPU is lost",
)  # fmt: skip


def parse_smi(block: Block) -> SmiFacts | None:
    """Given an output of nvidia-smi in any of its forms (whole or a part), return its facts, or None."""
    driver = cuda = fault = None
    no_devices = False
    for line in block.lines_with(*_FIRST_WORDS):
        if head := _TABLE_HEAD.search(line):
            driver, cuda = head[2], head[3]
        elif "No devices were found" in line:
            no_devices = True
        elif (found := _FAULT.search(line)) and fault is None:
            fault = found[0].strip()
    query = _parse_query(block)
    gpus = query[0] or _parse_table(block) or _parse_csv(block) or _parse_list(block)
    driver = driver or query[1].get("Driver Version")
    attached = _integer(query[1].get("Attached GPUs"))
    if not (gpus or driver or no_devices or fault or attached is not None):
        return None
    return SmiFacts(
        gpus=tuple(gpus),
        driver=driver,
        cuda=cuda or query[1].get("CUDA Version"),
        no_devices=no_devices,
        in_container=block.in_container,
        fault=fault,
        attached=attached,
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


def _parse_query(block: Block) -> tuple[list[Gpu], dict[str, str]]:
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
    gpus: list[Gpu] = []
    for record in records:
        gpu = _gpu_of(record, len(gpus))
        if gpu is not None:
            gpus.append(gpu)
    return gpus, top


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
        fb_mib=_integer(get("FB Memory Usage", "Total")),
        fb_used_mib=_integer(get("FB Memory Usage", "Used")),
        bar1_mib=_integer(get("BAR1 Memory Usage", "Total")),
        max_gen=_integer(get("PCIe Generation", "Max")),
        current_gen=_integer(get("PCIe Generation", "Current")),
        device_max_gen=_integer(get("PCIe Generation", "Device Max")),
        host_max_gen=_integer(get("PCIe Generation", "Host Max")),
        max_width=_integer(get("Link Width", "Max")),
        current_width=_integer(get("Link Width", "Current")),
        replays=_integer(get("Replays Since Reset")),
        pstate=_pstate(get("Performance State")),
        utilization_percent=_integer(
            get("Utilization", "GPU") or get("Utilization", "Gpu") or _loose_percent(record)
        ),
        persistence=_enabled(get("Persistence Mode")),
        mig=_enabled(get("MIG Mode", "Current")),
        compute_mode=get("Compute Mode"),
        virtualization=get("GPU Virtualization Mode", "Virtualization Mode") or get("Virtualization Mode"),
        addressing_mode=get("Addressing Mode"),
        recovery_action=_recovery(get("GPU Recovery Action"), get("Reset Required")),
        power_limit_w=_number(get("Current Power Limit") or get("Power Limit")),
        requested_power_limit_w=_number(get("Requested Power Limit")),
        default_power_limit_w=_number(get("Default Power Limit")),
        active_reasons=tuple(name for name, value in reasons.items() if value == "Active"),
        read_reasons=bool(reasons),
        temperature_c=_integer(get("GPU Current Temp")),
        ecc_enabled=_enabled(get("ECC Mode", "Current")),
        uncorrectable_volatile=_sum_errors(record, "Volatile"),
        uncorrectable_aggregate=_sum_errors(record, "Aggregate"),
        remap_pending=_yes(get("Remapped Rows", "Pending")),
        remap_failure=_yes(get("Remapped Rows", "Remapping Failure Occurred")),
        remapped_uncorrectable=_integer(remapped),
        pages_pending=_yes(get("Pending Page Blacklist") or get("Pending")),
        repair_pending=_yes(get("Channel Repair Pending")) or _yes(get("TPC Repair Pending")),
        unrepairable=_yes(get("Unrepairable Memory")),
        error_fields=tuple(
            path[-1]
            for path, value in record.values.items()
            if value in ("ERR!", "Unknown Error", "GPU is lost", "[GPU is lost]", "[Unknown Error]")
        ),
    )
    return gpu if record.bus_id or gpu != Gpu() else None


def _loose_percent(record: _Record) -> str | None:
    # A cut-out listing may have lost the heading "Utilization" above "GPU : 0 %".
    return next((v for p, v in record.values.items() if p[-1] in ("GPU", "Gpu") and v.endswith("%")), None)


def _sum_errors(record: _Record, which: str) -> int | None:
    counts = [
        number
        for path, value in record.values.items()
        if which in path
        and ("Uncorrectable" in path[-1] or "Double Bit ECC" in path)
        and "Threshold" not in path[-1]
        and (number := _integer(value)) is not None
    ]
    return sum(counts) if counts else None


# --- other forms --------------------------------------------------------------------------------------------


def _parse_table(block: Block) -> list[Gpu]:
    gpus: list[Gpu] = []
    for line in block.lines_with("|", "ERR!"):
        if head := _TABLE_GPU.match(line):
            persistence = head["persistence"]
            errors = ("ECC",) if "ERR!" in line else ()
            gpus.append(
                Gpu(
                    bus_id=head["bus"],
                    index=int(head["index"][:6]),
                    name=head["name"],
                    persistence=None if persistence is None else persistence == "On",
                    error_fields=errors,
                )
            )
        elif gpus and gpus[-1].fb_mib is None:
            errors = ("state",) if "ERR!" in line else ()
            if state := _TABLE_STATE.match(line):
                gpus[-1] = replace(
                    gpus[-1],
                    pstate=f"P{state['pstate']}",
                    power_limit_w=_number(state["cap"]),
                    fb_used_mib=_integer(state["used"]),
                    fb_mib=_integer(state["total"]),
                    utilization_percent=_integer(state["use"]),
                    error_fields=gpus[-1].error_fields + errors,
                )
            elif errors:
                gpus[-1] = replace(gpus[-1], error_fields=gpus[-1].error_fields + errors)
    return gpus


def _parse_list(block: Block) -> list[Gpu]:
    return [
        Gpu(index=int(match["index"][:6]), name=match["name"])
        for line in block.lines_with(" (UUID: ")
        if (match := _LIST_GPU.match(line.strip()))
    ]


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


_KNOWN_FIELDS = frozenset(
    {*_INTEGER_FIELDS, *_TEXT_FIELDS, *_POWER_FIELDS, "pstate", "persistence_mode", "driver_version"}
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
)
_UNIT = re.compile(r"\s*\[.*\]$")


def _parse_csv(block: Block) -> list[Gpu]:
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
        fields: dict[str, object] = {}
        for name, value in values.items():
            if name in _INTEGER_FIELDS and (number := _integer(value)) is not None:
                fields[_INTEGER_FIELDS[name]] = number
            elif name in _POWER_FIELDS and (watts := _number(value)) is not None:
                fields[_POWER_FIELDS[name]] = watts
            elif name in _TEXT_FIELDS and value and not value.startswith("["):
                fields[_TEXT_FIELDS[name]] = value
            elif name == "pstate":
                fields["pstate"] = _pstate(value)
            elif name == "persistence_mode":
                fields["persistence"] = _enabled(value)
            elif re.match(r"clocks_(?:throttle|event)_reasons\.", name) and value in ("Active", "Not Active"):
                fields["read_reasons"] = True
                if value == "Active":
                    word = name.split(".", 1)[1].replace("_", " ").replace("hw ", "HW ").replace("sw ", "SW ")
                    fields["active_reasons"] = (*fields.get("active_reasons", ()), _title_case(word))  # type: ignore[misc]
        if fields:
            gpus.append(replace(Gpu(), **fields))  # type: ignore[arg-type]
    return gpus


def _title_case(words: str) -> str:
    return " ".join(word if word.isupper() else word.capitalize() for word in words.split())


def _integer(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None else int(number)


def _number(text: str | None) -> float | None:
    match = _NUMBER.match(text.strip()) if text else None
    return float(match[1]) if match else None


_NUMBER = re.compile(r"^\[?(-?\d{1,12}(?:\.\d{1,6})?)\s*(?:MiB|x|W|%|C|MHz)?\]?\b", re.ASCII)


def _pstate(text: str | None) -> str | None:
    match = re.fullmatch(r"P(\d{1,2})", (text or "").strip(), re.ASCII)
    return match[0] if match else None


def _enabled(text: str | None) -> bool | None:
    return {"Enabled": True, "On": True, "Disabled": False, "Off": False}.get((text or "").strip())


def _recovery(action: str | None, reset_required: str | None) -> str | None:
    return "Reset" if action in (None, "None") and reset_required == "Yes" else action


def _yes(text: str | None) -> bool | None:
    return {"Yes": True, "No": False}.get((text or "").strip())
