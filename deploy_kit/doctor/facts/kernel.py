"""The kernel's log, as dmesg or journalctl -k print it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from deploy_kit.doctor.blocks import Block, lines_with
from deploy_kit.patterns import sieved


@dataclass(frozen=True)
class Xid:
    """One GPU error of the driver's log."""

    number: int
    device: str
    line: str


@dataclass
class KernelLog:
    """What the kernel's log says about GPUs, links and memory protection; lists hold the lines as
    evidence."""

    closed_module: str | None = None
    open_module: str | None = None
    needs_open: list[str] = field(default_factory=list)
    rm_init_failed: list[str] = field(default_factory=list)
    xids: list[Xid] = field(default_factory=list)
    off_the_bus: list[str] = field(default_factory=list)
    aer_corrected: list[str] = field(default_factory=list)
    aer_uncorrected: list[str] = field(default_factory=list)
    iommu_faults: list[str] = field(default_factory=list)
    iommu_domain: str | None = None
    iommu_domain_line: str | None = None
    iommu_active: str | None = None
    about_gpus: bool = False
    bar_failures: list[str] = field(default_factory=list)
    api_mismatch: list[str] = field(default_factory=list)
    probe_blocked: list[str] = field(default_factory=list)
    signature_refused: list[str] = field(default_factory=list)
    hardware_errors: list[str] = field(default_factory=list)
    out_of_memory: list[str] = field(default_factory=list)
    hung_tasks: list[str] = field(default_factory=list)
    cpu_offline: list[str] = field(default_factory=list)
    link_downgraded: list[str] = field(default_factory=list)
    denied: str | None = None
    lines: int = 0
    command_line: bool = False


# `dmesg` with its time stamps (-T, -H, -d, -x, --time-format; months in any language), syslog, journalctl.
_KERNEL_LINE = re.compile(
    r"(?:/\S{1,80}:)?(?:\d{1,7}[:-])?(?:<\d{1,3}>)?(?:"
    r"\[\s*\d+\.\d+(?:\s*<\s*\d+\.\d+>)?\]|\[\s*\+\d+\.\d+\]|\[<\s*\d+\.\d+>\]"
    r"|\[\w{2,4}\.? \w{3,5}\.?\s+\d|\[\w{3,5}\.?\s+\d{1,2} \d\d:\d\d\]"
    r"|\d{4}-\d\d-\d\dT[\d:]{8},\d+\S* |kern\s*:"
    r"|[^\[\]|]{0,60}\bkernel[: ]"
    # Without a time stamp, as `dmesg -t` prints them:
    r"|NVRM: |(?:nvidia|pcieport|pci|vfio-pci|nouveau)[-\w]* [0-9a-f]{4}:"
    r"|(?:AMD-Vi|DMAR|iommu|smpboot|mce|EDAC)[: ])"
)
# What the forms above begin with, where the line does not say " kernel:" itself.
_KERNEL_FIRST = frozenset("</[0123456789kNnpvADisemE")
_ALTERNATIVES: dict[str, tuple[str, ...]] = {
    "needs_open": (
        r"requires use of the NVIDIA open kernel modules",
        r"open kernel modules? (?:is|are) required",
    ),
    "rm_init_failed": (r"RmInitAdapter failed", r"rm_init_adapter failed"),
    "off_the_bus": (
        r"fallen off the bus",
        r"GPU is lost",
        r"nvidia .*(?:device inaccessible|config space inaccessible)",
    ),
    "aer_uncorrected": (
        r"severity=Uncorrect\w+",
        r"AER: (?:Multiple )?(?:Uncorrected|Uncorrectable)",
        r"DPC: containment",
    ),
    "aer_corrected": (r"severity=Correct(?:ed|able)", r"AER: (?:Multiple )?Correct(?:ed|able)"),
    "iommu_faults": (
        r"IO_PAGE_FAULT",
        r"DMAR: \[DMA (?:Read|Write)",
        r"DMAR:.*fault (?:addr|reason)",
        r"INVALID_DEVICE_REQUEST",
    ),
    "bar_failures": (
        r"This PCI I/O region assigned to your NVIDIA device is invalid",
        r"BAR\d? is 0M",
        r"failed to (?:assign|map) BAR",
    ),
    "api_mismatch": (
        r"API mismatch",
        r"kernel module version does not match",
        r"has the version [\d.]+, but",
    ),
    "probe_blocked": (
        r"probe routine was not called",
        r"NVRM.*already bound to",
        r"nouveau [\da-f:.]+: ",
        r"conflicting (?:kernel )?driver",
    ),
    "signature_refused": (
        r"module with unavailable key is rejected",
        r"Key was rejected by service",
        r"Lockdown: .*unsigned module",
    ),
    "hardware_errors": (r"\[Hardware Error\]", r"mce: .*(?:Machine Check|error)", r"EDAC .*\b(?:CE|UE)\b"),
    "out_of_memory": (
        r"Out of memory: Killed process",
        r"oom-kill:",
        r"Memory cgroup out of memory",
    ),
    "hung_tasks": (r"blocked for more than \d+ seconds",),
    "cpu_offline": (
        r"CPU ?\d+ has invalid APIC ID",
        r"Aborting bringup",
        r"CPU\d+ failed to (?:report alive|come up)",
    ),
    "link_downgraded": (r"available PCIe bandwidth, limited by",),
}
_RULES = {name: sieved("|".join(patterns)) for name, patterns in _ALTERNATIVES.items()}
_XID = re.compile(
    r"NVRM: (?:GPU at PCI:\S+ )?Xid \((?:PCI:)?(?P<device>[0-9a-fA-F:.]+)[^)]*\):?\s*(?P<number>\d{1,4})\b"
)
_DOMAIN = re.compile(
    r"Default domain type: (?P<domain>\w+)"
    r"|(?P<pt>AMD-Vi: Initialized for Passthrough Mode|Hardware identity mapping)"
    r"|(?P<translated>AMD-Vi: Lazy IO/TLB flushing enabled|AMD-Vi: IO/TLB flush on unmap enabled)"
)
_ACTIVE_WORDS = ("DMAR: IOMMU enabled", "AMD-Vi: Found IOMMU", "AMD-Vi: Interrupt remapping enabled")
_DOMAIN_WORDS = ("Default domain type: ", "AMD-Vi: ", "Hardware identity mapping")
_MODULE = re.compile(
    r"loading NVIDIA UNIX (Open )?(?:Kernel Module for )?\S*\s*(?:Kernel Module)?.*?(\d{3}[\d.]*)"
)
_DENIED = re.compile(r"dmesg: (?:read kernel buffer failed|klogctl)")
# Of journalctl only what asks for the kernel's lines; elsewhere the lines themselves say so.
_TITLE = re.compile(r"\bdmesg\b|\bjournalctl\b.*\s(?:-\w*k|--dmesg|_TRANSPORT=kernel)|\bkern\.log\b")
_BAR = re.compile(r"(?P<device>[\da-f:.]{7,16}): BAR (?P<number>[0-5])\b(?P<said>.*)")
_BAR_WORDS = (" BAR ",)
_BAR_FAILED = ("failed to assign", "no space for", "can't assign")
_LIMITED = re.compile(
    r"limited by (?P<speed>[\d.]{1,6}) GT/s PCIe x(?P<width>\d{1,2}) link.*"
    r"capable of .* with (?P<top>[\d.]{1,6}) GT/s PCIe x(?P<lanes>\d{1,2}) link"
)
_IDLE_SPEED = 2.5
_FIRMWARE = re.compile(r"\{(?P<event>\d+)\}\[Hardware Error\]:\s*(?P<said>.*)")
# What says nothing with these in it is only counted.
_WORDS = tuple(
    dict.fromkeys(
        [word for rule in _RULES.values() for word in rule.words]
        + ["NVRM", "nvidia", "loading NVIDIA UNIX ", "DMAR: IOMMU enabled", *_DOMAIN_WORDS, *_BAR_WORDS]
    )
)


def parse_kernel_log(block: Block) -> KernelLog | None:
    """Given dmesg (or journalctl -k), return what it says; None when it is no kernel log."""
    log = KernelLog()
    titled = _TITLE.search(block.title) is not None
    lines = [
        text
        for line in block.lines
        if (text := line.strip())
        and (
            titled
            or (
                (text[0] in _KERNEL_FIRST or " kernel" in text or "NVRM: " in text)
                and _KERNEL_LINE.match(text)
            )
        )
    ]
    denied = [text for line in block.lines_with("dmesg: ") if _DENIED.search(text := line.strip())]
    if denied:
        log.denied = denied[-1]
        refusals = set(denied)
        lines = [text for text in lines if text not in refusals]
    log.lines = len(lines)
    told = _Told()
    for text in lines_with(lines, [word for word in _WORDS if word in block.text]) if lines else ():
        _read(log, told, text)
    log.bar_failures += told.bars_failed.values()
    log.command_line = any("ommand line: " in text for text in lines[:_EARLY])
    return log if log.lines or log.denied else None


_EARLY = 200


@dataclass
class _Told:
    """What lines before said, where one event is told on several lines."""

    # Messages about link errors whose details have not come yet, by the name of their list.
    link_messages: dict[str, str] = field(default_factory=dict)
    # Memory windows that got no place so far, by device and number.
    bars_failed: dict[tuple[str, str], str] = field(default_factory=dict)
    firmware_event: str | None = None
    firmware_severity: str = ""
    machine_check_open: bool = False


def _read(log: KernelLog, told: _Told, text: str) -> None:
    """Write down what one line says."""
    if "loading NVIDIA UNIX " in text and (module := _MODULE.search(text)):
        if module[1] or "Open Kernel Module" in text:
            log.open_module = module[2]
        else:
            log.closed_module = module[2]
    if "Xid (" in text and (xid := _XID.search(text)):
        _read_xid(log, Xid(int(xid["number"]), xid["device"], text))
    if any(word in text for word in _DOMAIN_WORDS):
        domain = _DOMAIN.search(text)
        if domain and (domain["domain"] or log.iommu_domain is None):
            kind = domain["domain"] or ("passthrough" if domain["pt"] else "translated")
            log.iommu_domain, log.iommu_domain_line = kind.lower(), text
    if log.iommu_active is None and any(word in text for word in _ACTIVE_WORDS):
        log.iommu_active = text
    log.about_gpus = log.about_gpus or "NVRM" in text or "nvidia" in text
    if " BAR " in text and (bar := _BAR.search(text)):
        _read_bar(told, bar, text)
    for name, rule in _RULES.items():
        if rule.may_fit(text) and rule.pattern.search(text):
            if name in ("aer_corrected", "aer_uncorrected"):
                _read_link_error(log, told, name, text)
            elif name == "hardware_errors":
                _read_hardware_error(log, told, text)
            elif name != "link_downgraded" or _is_limited(text):
                getattr(log, name).append(text)
            break


def _read_xid(log: KernelLog, xid: Xid) -> None:
    """Write the Xid down; 154 tells what is to be done from now on, which may be nothing any more."""
    if xid.number == 154 and "to 0x0 (None)" in xid.line:
        log.xids = [old for old in log.xids if (old.number, old.device) != (154, xid.device)]
    else:
        log.xids.append(xid)


def _read_bar(told: _Told, bar: re.Match[str], text: str) -> None:
    """Write down a memory window without a place, until a later line places it after all. Windows of bridges
    (7 and more) and I/O ports stay empty on healthy machines."""
    said = bar["said"]
    if "[io " in said:
        return
    key = (bar["device"], bar["number"])
    if any(words in said for words in _BAR_FAILED):
        told.bars_failed.setdefault(key, text)
    elif "assigned" in said:
        told.bars_failed.pop(key, None)


def _read_link_error(log: KernelLog, told: _Told, name: str, text: str) -> None:
    """Write down one event once: a port's message and the details of a device below it are two lines."""
    events: list[str] = getattr(log, name)
    message = told.link_messages.pop(name, None)
    if "severity=" not in text:
        told.link_messages[name] = text
    elif message is not None and events and events[-1] == message:
        events[-1] = text  # the details say more
        return
    events.append(text)


def _read_hardware_error(log: KernelLog, told: _Told, text: str) -> None:
    """Write down one event once, though each is told on many lines; firmware reports link errors too."""
    if firmware := _FIRMWARE.search(text):
        said = firmware["said"]
        if firmware["event"] != told.firmware_event or "from APEI" in said:
            told.firmware_event, told.firmware_severity = firmware["event"], ""
            log.hardware_errors.append(text)
        if "event severity:" in said:
            told.firmware_severity = said.rpartition(":")[2].strip()
        elif "section_type: PCIe error" in said:
            log.hardware_errors.pop()
            corrected = told.firmware_severity in ("", "corrected", "info")
            (log.aer_corrected if corrected else log.aer_uncorrected).append(text)
        return
    begins = "Machine check events logged" in text
    counted_by_edac = "EDAC" in text and "[Hardware Error]" not in text
    if begins or not log.hardware_errors or (counted_by_edac and not told.machine_check_open):
        log.hardware_errors.append(text)
        told.machine_check_open = not counted_by_edac
    elif counted_by_edac:
        told.machine_check_open = False


def _is_limited(text: str) -> bool:
    """Whether a link has fewer lanes, or a speed that is not the one of an idle card."""
    found = _LIMITED.search(text)
    if found is None:
        return True
    return int(found["width"]) < int(found["lanes"]) or _speed(found["speed"]) > _IDLE_SPEED


def _speed(text: str) -> float:
    return float(text) if re.fullmatch(r"\d{1,3}(?:\.\d)?", text) else 0.0
