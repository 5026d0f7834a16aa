"""What the kernel's log tells of GPUs: failed starts, Xid errors, link errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from deploy_kit.doctor.facts.kernel import KernelLog
from deploy_kit.doctor.facts.machine import Machine
from deploy_kit.doctor.model import Finding, Verdict

# Number → (verdict, meaning, remedy), after NVIDIA's catalogue of Xid errors.
# An excerpt is shorter; only a whole log can say that nothing is wrong.
_WHOLE_LOG_LINES = 200
_RESET = "stop what runs on it, reset the GPU or reboot; replace the card when it comes back"
_APPLICATION = "a program's fault first of all: look at the engine's log at that time; run compute-sanitizer"
XIDS: dict[int, tuple[Verdict, str, str]] = {
    13: (Verdict.WARN, "a program's illegal access (graphics engine exception)", _APPLICATION),
    31: (Verdict.WARN, "a program's illegal memory access (GPU memory page fault)", _APPLICATION),
    43: (Verdict.WARN, "a program's work was stopped by the GPU", _APPLICATION),
    45: (Verdict.WARN, "work was stopped because its process ended or failed", "look for the Xid before it"),
    48: (Verdict.FAIL, "double-bit ECC error: GPU memory is damaged", _RESET),
    61: (Verdict.FAIL, "the GPU's internal microcontroller stopped", _RESET),
    62: (Verdict.FAIL, "the GPU's internal microcontroller halted", _RESET),
    63: (Verdict.WARN, "a memory row was remapped (or waits for it)", "reset the GPU at the next pause"),
    64: (Verdict.FAIL, "remapping a memory row failed", "reset the GPU; replace the card (RMA)"),
    68: (Verdict.WARN, "video engine exception", _APPLICATION),
    69: (Verdict.WARN, "graphics engine class error", _APPLICATION),
    74: (Verdict.FAIL, "NVLink error", "check the NVLink bridges; reset the GPU"),
    79: (
        Verdict.FAIL,
        "the GPU has fallen off the bus: power, heat, or the PCIe link",
        (
            "power-cycle the machine; check power cables and supply, riser and slot, temperature; look for"
            " AER lines just"
            " before it"
        ),
    ),
    92: (Verdict.WARN, "many correctable ECC errors", "watch it"),
    94: (
        Verdict.WARN,
        "contained ECC error: one program was stopped",
        "restart the engine; reset the GPU soon",
    ),
    95: (Verdict.FAIL, "uncontained ECC error: all work on the GPU is lost", _RESET),
    109: (Verdict.WARN, "context switch timeout", _APPLICATION),
    119: (
        Verdict.FAIL,
        "the GPU's system processor (GSP) does not answer: timeout",
        "power-cycle; update driver and GPU firmware; it returns under load with a weak link or supply",
    ),
    120: (Verdict.FAIL, "the GPU's system processor (GSP) failed", _RESET),
    140: (Verdict.FAIL, "unrecovered ECC error", _RESET),
    143: (Verdict.FAIL, "the GPU could not be initialised", _RESET),
    145: (Verdict.FAIL, "NVLink error", _RESET),
    149: (Verdict.FAIL, "NVLink error", _RESET),
    154: (Verdict.FAIL, "the driver asks for a recovery action (reset or reboot)", "do what the line says"),
}


def check(machine: Machine) -> Iterator[Finding]:
    """Yield the faults in the kernel's log."""
    log = machine.log
    if log is None:
        return
    if log.denied and not log.lines:
        yield Finding(
            "log.denied",
            Verdict.UNKNOWN,
            f"the kernel's log may not be read ({log.denied})",
            "`sudo dmesg` (or `journalctl -k` as root)",
        )
        return
    findings = [*_start(log), *_xids(log), *_links(log), *_system(log)]
    yield from findings
    if log.cpu_offline:
        yield Finding(
            "cpu.offline-at-boot",
            Verdict.OK,
            "a CPU did not come up (firmware limit of 255 APIC ids without interrupt remapping); harmless",
            "mention only",
            tuple(log.cpu_offline[:2]),
        )
    elif not findings and not log.iommu_faults:
        if not log.about_gpus and log.lines < _WHOLE_LOG_LINES:
            if not (log.iommu_domain or log.iommu_active or log.command_line):
                yield Finding(
                    "log.too-short",
                    Verdict.UNKNOWN,
                    f"{log.lines} lines of the kernel's log, none about GPUs or PCIe: too little to judge",
                    "`sudo dmesg` (all of it)",
                )
            return
        yield Finding("log", Verdict.OK, f"nothing known to be bad in {log.lines} lines of the kernel's log")


def _start(log: KernelLog) -> Iterator[Finding]:
    failed = log.rm_init_failed
    closed = log.closed_module is not None and log.open_module is None
    if log.needs_open or (failed and closed):
        yield Finding(
            "driver.closed-module",
            Verdict.FAIL,
            "the closed kernel module is loaded"
            + (f" ({log.closed_module})" if log.closed_module else "")
            + " on a GPU that needs the open one",
            "install the open kernel modules (Blackwell has no other); a loaded open module prints"
            " 'NVIDIA UNIX Open"
            " Kernel Module'",
            (*log.needs_open[:1], *failed[:1]),
            consequence="nvidia-smi sees no GPU; the card itself is fine",
            ansible="nvidia_driver_open_modules",
        )
    elif failed:
        yield Finding(
            "driver.init-failed",
            Verdict.FAIL,
            "the driver could not initialise a GPU (RmInitAdapter failed)"
            + (" with the open kernel module" if log.open_module else ""),
            "check Resizable BAR and Above-4G decoding in the firmware first; then power cables, slot,"
            " and Xid lines",
            tuple(failed[:2]),
        )
    if log.bar_failures:
        yield Finding(
            "gpu.bar-not-assigned",
            Verdict.FAIL,
            "the firmware or kernel could not place a GPU's memory window (BAR)",
            "enable Above-4G decoding (and a large enough MMIO window) in the firmware; pci=realloc as a"
            " last resort",
            tuple(log.bar_failures[:3]),
        )
    if log.api_mismatch:
        yield Finding(
            "driver.mismatch",
            Verdict.FAIL,
            "driver libraries and the loaded kernel module have different versions",
            "reboot, or unload and load the nvidia modules; keep unattended upgrades off the driver",
            tuple(log.api_mismatch[:2]),
        )
    if log.probe_blocked:
        yield Finding(
            "driver.nouveau",
            Verdict.FAIL,
            "another driver (nouveau, vfio or an old one) holds the GPUs",
            "blacklist nouveau, rebuild the initramfs, reboot",
            tuple(log.probe_blocked[:2]),
            ansible="nvidia_driver",
        )
    if log.signature_refused:
        yield Finding(
            "driver.secure-boot",
            Verdict.FAIL,
            "Secure Boot refused the NVIDIA module: its signature is not trusted",
            "enrol the module's key (`mokutil --import`) or use the distribution's signed modules",
            tuple(log.signature_refused[:2]),
        )


def _xids(log: KernelLog) -> Iterator[Finding]:
    counts = Counter(xid.number for xid in log.xids)
    for number, count in counts.items():
        verdict, meaning, remedy = XIDS.get(
            number, (Verdict.WARN, "see NVIDIA's catalogue of Xid errors", "look it up by its number")
        )
        lines = tuple(xid.line for xid in log.xids if xid.number == number)
        devices = sorted({xid.device for xid in log.xids if xid.number == number})
        yield Finding(
            f"gpu.xid-{number}",
            verdict,
            f"Xid {number}{f' ({count} times)' if count > 1 else ''} on {', '.join(devices[:4])}: {meaning}",
            remedy,
            lines[:3],
        )
    if log.off_the_bus and 79 not in counts:
        verdict, meaning, remedy = XIDS[79]
        yield Finding("gpu.off-the-bus", verdict, meaning, remedy, tuple(log.off_the_bus[:2]))


def _links(log: KernelLog) -> Iterator[Finding]:
    if log.aer_uncorrected:
        yield Finding(
            "link.aer-uncorrected",
            Verdict.FAIL,
            f"{len(log.aer_uncorrected)} uncorrected PCIe error{_s(log.aer_uncorrected)} in the log (AER)",
            "reseat the card, check riser, retimer and power; lower the slot's generation to see whether"
            " it stops",
            tuple(log.aer_uncorrected[:3]),
        )
    if log.aer_corrected:
        yield Finding(
            "link.aer-corrected",
            Verdict.WARN,
            f"{len(log.aer_corrected)} corrected PCIe error{_s(log.aer_corrected)} in the log (AER): the"
            f" link works, with"
            " replays",
            "reseat the card or riser; switch ASPM off; a flood of them slows transfers (do not just"
            " hide them with"
            " pci=noaer)",
            tuple(log.aer_corrected[:3]),
        )
    if log.link_downgraded:
        yield Finding(
            "link.limited-at-boot",
            Verdict.WARN,
            "the kernel says a link is slower than its device can do",
            "compare with `nvidia-smi -q` under load: idle cards train down",
            tuple(log.link_downgraded[:2]),
        )


def _system(log: KernelLog) -> Iterator[Finding]:
    if log.hardware_errors:
        yield Finding(
            "system.hardware-errors",
            Verdict.WARN,
            f"{len(log.hardware_errors)} hardware error{_s(log.hardware_errors)} of the machine (memory or"
            " processor) in the log",
            "`ras-mc-ctl --summary`, the board's event log",
            tuple(log.hardware_errors[:2]),
        )
    if log.out_of_memory:
        yield Finding(
            "system.out-of-memory",
            Verdict.WARN,
            "the kernel killed processes for lack of memory",
            "look who it was; give the engine more memory or load with fewer threads",
            tuple(log.out_of_memory[:2]),
        )
    if log.hung_tasks:
        yield Finding(
            "system.hung-tasks",
            Verdict.WARN,
            "tasks were blocked for minutes (disk, network storage or a GPU that does not answer)",
            "look at the call trace below the line",
            tuple(log.hung_tasks[:2]),
        )


def _s(items: list[str]) -> str:
    return "" if len(items) == 1 else "s"
