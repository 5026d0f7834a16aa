"""Each GPU: present, driver, memory window (BAR1), power, heat, ECC, modes."""

from __future__ import annotations

from collections.abc import Iterator

from deploy_kit.doctor.checks.peers import NO_P2P
from deploy_kit.doctor.facts.gpu import Gpu
from deploy_kit.doctor.facts.machine import Machine
from deploy_kit.doctor.model import Finding, Verdict

_HARMFUL = {
    "HW Power Brake Slowdown": "power-brake",
    "HW Thermal Slowdown": "thermal",
    "SW Thermal Slowdown": "thermal",
    "HW Slowdown": "hardware-slowdown",
}


def check(machine: Machine) -> Iterator[Finding]:
    """Yield what nvidia-smi and the module's own files say about GPUs and driver."""
    yield from _present(machine)
    gpus = machine.gpus
    yield from _bar1(machine, gpus)
    yield from _power(gpus)
    yield from _health(gpus)
    yield from _modes(gpus)


def _present(machine: Machine) -> Iterator[Finding]:
    for smi in machine.host_smi:
        if smi.no_devices and machine.log is None:
            yield Finding(
                "gpu.none",
                Verdict.FAIL,
                "nvidia-smi finds no GPU although the driver answers",
                "`sudo dmesg | grep -E 'NVRM|nvidia'`: RmInitAdapter and 'open kernel modules' lines"
                " tell why",
                ("No devices were found",),
            )
    lost = [gpu for gpu in machine.gpus if gpu.error_fields]
    if lost:
        yield Finding(
            "gpu.error",
            Verdict.FAIL,
            f"{', '.join(gpu.label for gpu in lost[:4])} reports ERR! or unknown errors instead of values",
            "look for Xid lines in `dmesg`; reset the GPU or reboot",
            tuple(f"{gpu.label}: {', '.join(gpu.error_fields[:4])}" for gpu in lost[:4]),
        )
    for smi in machine.host_smi:
        listed = len(smi.gpus)
        if smi.attached is not None and listed and smi.attached != listed:
            yield Finding(
                "gpu.listing-cut",
                Verdict.UNKNOWN,
                f"the listing names {smi.attached} attached GPUs and describes {listed}: it is cut off",
                "paste all of `nvidia-smi -q`",
            )
        elif smi.cut:
            yield Finding(
                "gpu.listing-cut",
                Verdict.UNKNOWN,
                f"the listing ends in the middle of {smi.gpus[-1].label}: it is cut off",
                "paste all of what nvidia-smi printed",
            )
        if smi.inforom:
            yield Finding(
                "gpu.inforom",
                Verdict.WARN,
                "the inforom of a GPU (its memory of serial number, ECC counts and limits) is corrupted",
                "note its ECC counts elsewhere; ask the maker for a repair or a replacement (RMA)",
                (smi.inforom,),
            )
    if machine.gpus and not any(gpu.error_fields for gpu in machine.gpus):
        names = sorted({gpu.name for gpu in machine.gpus if gpu.name})
        driver = next((smi.driver for smi in machine.host_smi if smi.driver), None)
        if names or driver:
            with_driver = f", driver {driver}" if driver else ""
            yield Finding(
                "gpu", Verdict.OK, f"{len(machine.gpus)} x {', '.join(names) or 'GPU'}{with_driver}"
            )


def _bar1(machine: Machine, gpus: list[Gpu]) -> Iterator[Finding]:
    small = [g for g in gpus if g.bar1_mib is not None and g.fb_mib is not None and g.bar1_mib < g.fb_mib]
    read = [g for g in gpus if g.bar1_mib is not None and g.fb_mib is not None]
    if not read:
        for device in machine.pci:
            if device.is_gpu and device.bar1_mib is not None and device.bar1_mib <= 512:
                most = device.bar1_supported_mib
                firmware = f"; the card offers {most} MiB at most" if most else ""
                yield Finding(
                    "gpu.bar1",
                    Verdict.FAIL,
                    f"{device.slot} has a BAR1 of {device.bar1_mib} MiB, far below its memory{firmware}:"
                    f" Resizable BAR is"
                    " off",
                    "enable Resizable BAR and Above-4G decoding in the firmware"
                    if not most or most > 512
                    else "the card's own firmware (VBIOS) allows no more: ask the maker for an update",
                    consequence="no P2P through BAR1",
                )
    if unplaced := [device for device in machine.pci if device.is_gpu and device.bar1_unassigned]:
        yield Finding(
            "gpu.bar-not-assigned",
            Verdict.FAIL,
            f"BAR1 of {', '.join(device.slot for device in unplaced[:4])} has no place in the address space",
            "enable Above-4G decoding (and a large enough MMIO window) in the firmware; pci=realloc as a last"
            " resort",
            ("Region 1: Memory at <unassigned>",),
            consequence="the driver cannot start on this GPU",
        )
    if small:
        gpu = small[0]
        yield Finding(
            "gpu.bar1",
            Verdict.FAIL,
            f"BAR1 is {gpu.bar1_mib} MiB, far below the {gpu.fb_mib} MiB of memory, on"
            f" {len(small)} GPU{'s' if len(small) != 1 else ''}: Resizable BAR is off",
            "enable Resizable BAR and Above-4G decoding in the firmware (in a virtual machine: in the"
            " host's, and give the"
            " machine a large enough 64-bit PCI window)",
            (f"BAR1 Total {gpu.bar1_mib} MiB, FB Total {gpu.fb_mib} MiB",),
            consequence=NO_P2P,
        )
    elif read:
        yield Finding(
            "gpu.bar1", Verdict.OK, f"BAR1 {read[0].bar1_mib} MiB covers the memory (Resizable BAR on)"
        )


def _power(gpus: list[Gpu]) -> Iterator[Finding]:
    parts: list[str] = []
    evidence: list[str] = []
    active = sorted({reason for gpu in gpus for reason in gpu.active_reasons if reason in _HARMFUL})
    if "HW Power Brake Slowdown" in active:
        parts.append("hardware power brake active")
        evidence.append("HW Power Brake Slowdown: Active")
    thermal = [reason for reason in active if "Thermal" in reason]
    if thermal:
        parts.append(f"thermal slowdown active ({', '.join(thermal)})")
        evidence += [f"{reason}: Active" for reason in thermal]
    if active == ["HW Slowdown"]:
        parts.append("hardware slowdown active")
        evidence.append("HW Slowdown: Active")
    for gpu in gpus:
        limit, requested, default = gpu.power_limit_w, gpu.requested_power_limit_w, gpu.default_power_limit_w
        if limit and requested and limit < requested:
            parts.append(
                f"enforced limit {limit:.0f} W below the requested {requested:.0f} W (power supply or"
                f" board limit)"
            )
            evidence.append(f"Current Power Limit {limit:.0f} W, Requested {requested:.0f} W")
            break
        if limit and default and limit < 0.6 * default:
            parts.append(f"power limit {limit:.0f} W, far below the default {default:.0f} W")
            evidence.append(f"Current Power Limit {limit:.0f} W, Default {default:.0f} W")
            break
    if parts:
        hot = bool(thermal)
        yield Finding(
            "gpu.power" if not hot else "gpu.thermal",
            Verdict.WARN,
            " and ".join(parts),
            ("check air flow, fans and inlet temperature" if hot else "")
            + ("; " if hot and len(parts) > 1 else "")
            + (
                "check the auxiliary power cables and the supply's capacity; `nvidia-smi -pl` sets a"
                " limit on purpose"
                if not hot or len(parts) > 1
                else ""
            ),
            tuple(evidence),
            consequence="clocks drop under load: the slowest GPU sets the pace of every all-reduce",
            ansible="nvidia_power_limit",
        )
    elif any(gpu.read_reasons for gpu in gpus):
        yield Finding("gpu.power", Verdict.OK, "no harmful slowdown is active")


def _health(gpus: list[Gpu]) -> Iterator[Finding]:
    for gpu in gpus:
        if gpu.remap_failure or gpu.unrepairable:
            yield Finding(
                "gpu.row-remap-failed",
                Verdict.FAIL,
                f"{gpu.label}: row remapping failed, its memory can no longer repair itself",
                "replace the card (RMA)",
                ("Remapping Failure Occurred: Yes" if gpu.remap_failure else "Unrepairable Memory: Yes",),
            )
        if gpu.remap_pending or gpu.pages_pending or gpu.repair_pending:
            yield Finding(
                "gpu.row-remap-pending",
                Verdict.WARN,
                f"{gpu.label}: memory rows wait to be remapped (or pages to be retired)",
                "stop what runs on it and reset the GPU, or reboot",
                ("Pending: Yes",),
            )
        if gpu.uncorrectable_volatile:
            yield Finding(
                "gpu.ecc",
                Verdict.FAIL,
                f"{gpu.label}: {gpu.uncorrectable_volatile} uncorrectable ECC errors since the last start",
                "reset the GPU; when they come back, replace it",
                (f"Volatile uncorrectable: {gpu.uncorrectable_volatile}",),
            )
        elif past := (gpu.uncorrectable_aggregate or gpu.remapped_uncorrectable or gpu.retired_double_bit):
            yield Finding(
                "gpu.ecc-history",
                Verdict.WARN,
                f"{gpu.label}: uncorrectable memory errors in its history ({past})",
                "watch it; replace the card when the count grows",
            )
        if gpu.ecc_threshold:
            yield Finding(
                "gpu.ecc-threshold",
                Verdict.FAIL,
                f"{gpu.label}: more uncorrectable errors of its on-chip memory than NVIDIA's limit",
                "replace the card (RMA)",
                ("SRAM Threshold Exceeded: Yes",),
            )
        if gpu.recovery_action not in (None, "None", "N/A"):
            yield Finding(
                "gpu.recovery",
                Verdict.FAIL,
                f"{gpu.label}: the driver asks for a recovery action: {gpu.recovery_action}",
                "drain and reset the GPU, or reboot, as it says",
                (f"GPU Recovery Action: {gpu.recovery_action}",),
            )


def _modes(gpus: list[Gpu]) -> Iterator[Finding]:
    if without := [gpu for gpu in gpus if gpu.persistence is False]:
        yield Finding(
            "gpu.persistence",
            Verdict.WARN,
            f"persistence mode is off on {len(without)} GPU{'s' if len(without) != 1 else ''}",
            "enable nvidia-persistenced (or `nvidia-smi -pm 1`)",
            consequence="the driver unloads between processes: slow starts, lost settings",
            ansible="nvidia_persistence",
        )
    if [gpu for gpu in gpus if gpu.mig]:
        yield Finding(
            "gpu.mig",
            Verdict.FAIL,
            "MIG is enabled: GPU instances have no P2P and no full memory",
            "switch MIG off (`nvidia-smi -mig 0`) and reset the GPU",
            ("MIG Mode Current: Enabled",),
        )
    elif waiting := [gpu for gpu in gpus if gpu.mig_pending]:
        yield Finding(
            "gpu.mig-pending",
            Verdict.WARN,
            f"MIG is off and comes on with the next reset of {waiting[0].label}: then it has no P2P",
            "`nvidia-smi -mig 0`",
            ("MIG Mode Current: Disabled, Pending: Enabled",),
        )
    if [gpu for gpu in gpus if gpu.compute_mode in ("Prohibited", "Exclusive_Process")]:
        yield Finding(
            "gpu.compute-mode",
            Verdict.WARN,
            "the compute mode is not Default: several processes of one server cannot share a GPU",
            "`nvidia-smi -c 0`",
        )
    if machine_is_virtual := next(
        (g.virtualization for g in gpus if g.virtualization == "Pass-Through"), None
    ):
        yield Finding(
            "gpu.virtual",
            Verdict.WARN,
            f"the GPUs are passed through to a virtual machine ({machine_is_virtual}): the driver sees an"
            f" emulated"
            " topology",
            "check `nvidia-smi topo -p2p r`; bare metal is what the published numbers are from",
        )
