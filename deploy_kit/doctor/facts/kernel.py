"""The kernel: its command line, its log, and its settings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from deploy_kit.doctor.blocks import Block, lines_with
from deploy_kit.patterns import sieved


@dataclass(frozen=True)
class CommandLine:
    """The kernel's boot parameters, as last given; `planned` when read from a boot loader's configuration."""

    parameters: dict[str, str]
    text: str
    planned: bool = False


_CMDLINE = re.compile(r"(?:^|\s)(?:BOOT_IMAGE=|root=(?:UUID|LABEL|PARTUUID|/dev|ZFS)\S*)")
_CMDLINE_LOG = re.compile(r"(?:Kernel c|C)ommand line: (.*)$")
_GRUB = re.compile(r'^\s*GRUB_CMDLINE_LINUX(?:_DEFAULT)?=["\']?(.*?)["\']?$')
_IOMMU_WORD = re.compile(r"(?:^|\s)(?:amd_iommu|intel_iommu|iommu)=\S+")
_PARAMETER = re.compile(r"[\w.-]+(?P<value>=\S*)?")


def parse_command_line(block: Block) -> CommandLine | None:
    """Given /proc/cmdline (or a kernel log or GRUB file that holds it), return its parameters."""
    planned: CommandLine | None = None
    titled = "cmdline" in block.title
    for line in (
        block.lines
        if titled
        else block.lines_with("ommand line: ", "GRUB_CMDLINE_LINUX", "BOOT_IMAGE=", "root=", "iommu=")
    ):
        if found := _CMDLINE_LOG.search(line):
            return CommandLine(_parameters(found[1]), found[1].strip())
        if grub := _GRUB.match(line.rstrip()):
            if grub[1].strip():
                planned = CommandLine(_parameters(grub[1]), grub[1], planned=True)
            continue
        if line.lstrip().startswith("["):
            continue
        named = titled and line.strip() and "GRUB" not in line
        if named or _CMDLINE.search(line) or (_IOMMU_WORD.search(line) and _only_parameters(line)):
            return CommandLine(_parameters(line), line.strip())
    return planned


def _only_parameters(line: str) -> bool:
    """Whether the line is nothing but parameters, at least one of them with a value."""
    words = [_PARAMETER.fullmatch(word) for word in line.split()]
    return all(words) and any(word["value"] for word in words if word is not None)


def _parameters(text: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in re.findall(r'(?:[^\s"]|"[^"]*")+', text))
    return {key: value.strip('"') for key, _, value in pairs}


# --- the log ------------------------------------------------------------------------------------------------


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


_KERNEL_LINE = re.compile(
    r"(?:<\d+>)?\[\s*\d+\.\d+\]|\[\w{3} \w{3}\s+\d|\w{3}\s+\d+ [\d:]{8} \S+ kernel:"
    r"|\d{4}-\d\d-\d\dT\S+ |kern\s*:"
    # Without a time stamp, as `dmesg -t` prints them:
    r"|NVRM: |(?:nvidia|pcieport|pci|vfio-pci|nouveau)[-\w]* [0-9a-f]{4}:"
    r"|(?:AMD-Vi|DMAR|iommu|smpboot|mce|EDAC)[: ]"
)
# What the forms above begin with; "Mar  2 10:15:01 …" has white space in fourth place.
_KERNEL_FIRST = frozenset("<[0123456789kNnpvADisemE")
_ALTERNATIVES: dict[str, tuple[str, ...]] = {
    "needs_open": (
        r"requires use of the NVIDIA open kernel modules",
        r"open kernel modules? (?:is|are) required",
    ),
    "rm_init_failed": (r"RmInitAdapter failed", r"rm_init_adapter failed"),
    "off_the_bus": (r"fallen off the bus", r"GPU is lost"),
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
        r"BAR \d+[^\n]*(?:failed to assign|no space for|can't assign)",
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
    "hardware_errors": (r"\[Hardware Error\]", r"mce: .*(?:Machine Check|error)", r"EDAC .*(?:CE|UE)\b"),
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
_TITLE = re.compile(r"\b(?:dmesg|journalctl|kern\.log|syslog)\b")
# What says nothing with these in it is only counted.
_WORDS = tuple(
    dict.fromkeys(
        [word for rule in _RULES.values() for word in rule.words]
        + ["NVRM", "nvidia", "loading NVIDIA UNIX ", "DMAR: IOMMU enabled", *_DOMAIN_WORDS]
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
        and (titled or ((text[0] in _KERNEL_FIRST or text[3:4].isspace()) and _KERNEL_LINE.match(text)))
    ]
    denied = [text for line in block.lines_with("dmesg: ") if _DENIED.search(text := line.strip())]
    if denied:
        log.denied = denied[-1]
        refusals = set(denied)
        lines = [text for text in lines if text not in refusals]
    log.lines = len(lines)
    for text in lines_with(lines, [word for word in _WORDS if word in block.text]) if lines else ():
        _read(log, text)
    return log if log.lines or log.denied else None


def _read(log: KernelLog, text: str) -> None:
    """Write down what one line says."""
    if "loading NVIDIA UNIX " in text and (module := _MODULE.search(text)):
        if module[1] or "Open Kernel Module" in text:
            log.open_module = module[2]
        else:
            log.closed_module = module[2]
    if "Xid (" in text and (xid := _XID.search(text)):
        log.xids.append(Xid(int(xid["number"]), xid["device"], text))
    if any(word in text for word in _DOMAIN_WORDS):
        domain = _DOMAIN.search(text)
        if domain and (domain["domain"] or log.iommu_domain is None):
            told = domain["domain"] or ("passthrough" if domain["pt"] else "translated")
            log.iommu_domain, log.iommu_domain_line = told.lower(), text
    if log.iommu_active is None and any(word in text for word in _ACTIVE_WORDS):
        log.iommu_active = text
    log.about_gpus = log.about_gpus or "NVRM" in text or "nvidia" in text
    for name, rule in _RULES.items():
        if rule.may_fit(text) and rule.pattern.search(text):
            getattr(log, name).append(text)
            break


# --- settings
# -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelSettings:
    """Settings read from sysctl, sysfs or their files; None: not read."""

    numa_balancing: int | None = None
    governors: tuple[str, ...] = ()
    hmm_disabled: bool | None = None
    aspm_policy: str | None = None


_GOVERNORS = {"performance", "powersave", "schedutil", "ondemand", "conservative", "userspace"}
_SETTING_WORDS = ("numa_balancing", "uvm_disable_hmm", "[default]", *sorted(_GOVERNORS))


def parse_settings(block: Block) -> KernelSettings | None:
    """Given `sysctl`, `cat` of governors, of uvm_disable_hmm or of the ASPM policy, return what was read."""
    balancing: int | None = None
    hmm: bool | None = None
    aspm: str | None = None
    governors: list[str] = []
    titled = "numa_balancing" in block.title or "uvm_disable_hmm" in block.title
    for line in block.lines if titled else block.lines_with(*_SETTING_WORDS):
        text = line.strip()
        if found := re.search(r"(?:kernel[./])?numa_balancing\s*[=:]\s*(\d)\b", text):
            balancing = int(found[1])
        elif "numa_balancing" in block.title and re.fullmatch(r"\d", text, re.ASCII):
            balancing = int(text)
        elif found := re.search(r"uvm_disable_hmm\s*[=:]\s*([01YNyn])\b", text):
            hmm = found[1] in "1Yy"
        elif "uvm_disable_hmm" in block.title and re.fullmatch(r"[01YN]", text):
            hmm = text in "1Y"
        elif found := re.search(r'(?:scaling_governor\s*[:=]\s*|The governor ")(\w+)', text):
            governors.append(found[1])
        elif text in _GOVERNORS:
            governors.append(text)
        elif found := re.fullmatch(
            r"(?:\w+ )*\[(default|performance|powersave|powersupersave)\](?: \w+)*", text
        ):
            aspm = found[1]
    settings = KernelSettings(
        balancing, tuple(dict.fromkeys(g for g in governors if g in _GOVERNORS)), hmm, aspm
    )
    return None if settings == KernelSettings() else settings
