"""What redirects peer traffic: ACS on PCIe ports, and the IOMMU."""

from __future__ import annotations

from collections.abc import Iterator

from deploy_kit.doctor.facts.machine import Machine
from deploy_kit.doctor.model import Finding, Verdict


def check(machine: Machine) -> Iterator[Finding]:
    """Yield what ACS and the IOMMU do to peer traffic."""
    if machine.no_gpu:
        return  # no peer traffic to redirect
    yield from _acs(machine)
    yield from _iommu(machine)


def _acs(machine: Machine) -> Iterator[Finding]:
    denied = [device for device in machine.pci if device.access_denied]
    gpus = [device for device in machine.pci if device.is_gpu and device.slot]
    # Bits of a network card or a GPU itself only keep its own functions apart: ports redirect. With bus
    # numbers only the ports above GPUs count; without them any port may be one.
    ports = [device for device in machine.pci if device.acs is not None and device.is_bridge]
    with_acs = [
        port
        for port in ports
        if port.bus_range is None or not gpus or any(port.leads_to(gpu) for gpu in gpus)
    ]
    relevant = [port for port in with_acs if port.redirects]
    if relevant:
        bits = sorted({bit for device in relevant for bit in device.redirects}, reverse=True)
        where = ", ".join(device.slot or "not named in the output" for device in relevant[:6])
        yield Finding(
            "acs.redirect",
            Verdict.FAIL,
            f"ACS redirects peer traffic to the root complex: {' and '.join(bits)} on {len(relevant)}"
            f" port{'s' if len(relevant) != 1 else ''} ({where})",
            "switch ACS off in the firmware, or boot with pci=disable_acs_redir=… / clear the bits at boot"
            " (`setpci -s PORT ECAP_ACS+6.w=0000`, gone after a reboot); only SrcValid may stay",
            tuple(
                f"{device.slot} ACSCtl: "
                + " ".join(f"{bit}{'+' if on else '-'}" for bit, on in (device.acs or {}).items())
                for device in relevant[:6]
            ),
            consequence=(
                "P2P takes the long way over the root complex: slow, and with IOMMU translation it hangs"
            ),
            ansible="pcie_disable_acs",
        )
    elif with_acs:
        yield Finding(
            "acs",
            Verdict.OK,
            f"no ReqRedir/CmpltRedir on {len(with_acs)} port{'s' if len(with_acs) != 1 else ''}"
            f"{' above the GPUs' if len(with_acs) < len(ports) else ''}: peer traffic is not redirected",
            evidence=tuple(f"{device.slot} ACSCtl read" for device in with_acs[:2]),
        )
    if denied and not ports:
        yield Finding(
            "acs.denied",
            Verdict.UNKNOWN,
            f"the capabilities of {len(denied)} PCI devices were not shown (<access denied>): ACS and"
            f" links are unknown",
            "run `sudo lspci -vv` as root",
        )


def _iommu(machine: Machine) -> Iterator[Finding]:
    log = machine.log
    if log is not None and log.iommu_faults:
        yield Finding(
            "iommu.faults",
            Verdict.FAIL,
            f"the IOMMU refused {len(log.iommu_faults)} accesses of devices (page faults): peer traffic"
            f" is translated"
            " and blocked",
            "boot with iommu=pt (keep intel_iommu/amd_iommu as they are), or switch the IOMMU off; until then"
            " NCCL_P2P_DISABLE=1",
            tuple(log.iommu_faults[:3]),
            consequence="P2P transfers hang or corrupt data",
            ansible="kernel_iommu",
        )
    mode, reason = iommu_mode(machine)
    line = machine.command_line
    evidence = tuple(
        text
        for text in (log.iommu_domain_line if log else None, _iommu_words(line.parameters) if line else None)
        if text
    )
    hint = next((nccl.iommu_hint for nccl in machine.nccl if nccl.iommu_hint), None)
    if mode == "translated" or (hint and mode not in ("off", "pt")):
        yield Finding(
            "iommu.translation",
            Verdict.WARN,
            f"the IOMMU translates device traffic ({reason or 'NCCL misses iommu=pt'}): P2P goes through"
            f" it, slow or not"
            " at all",
            "boot with iommu=pt, or switch the IOMMU off where it is not needed (not above 255 CPUs on AMD)",
            evidence or ((hint,) if hint else ()),
            consequence="P2P all-reduce slows down or hangs, above all together with ACS",
            ansible="kernel_iommu",
        )
    elif mode == "off":
        yield Finding(
            "iommu", Verdict.OK, f"IOMMU off ({reason}): no translation in the P2P path", None, evidence
        )
    elif mode == "pt":
        yield Finding(
            "iommu",
            Verdict.OK,
            f"IOMMU in passthrough ({reason}): no translation in the P2P path",
            None,
            evidence,
        )
    elif line is not None and not line.planned:
        yield Finding(
            "iommu.unknown",
            Verdict.UNKNOWN,
            "the kernel's command line sets no iommu=: the kernel's default decides whether device"
            " traffic is translated",
            "`sudo dmesg | grep -i 'Default domain type'`; iommu=pt makes it certain",
            evidence,
            ansible="kernel_iommu",
        )
    elif log is not None and log.iommu_active:
        yield Finding(
            "iommu.unknown",
            Verdict.UNKNOWN,
            "an IOMMU is active; the log does not say whether it translates device traffic",
            "`sudo dmesg | grep -i 'Default domain type'` and `cat /proc/cmdline`",
            (log.iommu_active,),
            ansible="kernel_iommu",
        )
    if line is not None and line.planned:
        yield Finding(
            "iommu.planned",
            Verdict.UNKNOWN,
            "this is the boot loader's configuration; the running kernel may have started with other"
            " parameters",
            "`cat /proc/cmdline`",
            (line.text[:200],),
        )
    if line is not None and line.parameters.get("mitigations") == "off":
        yield Finding(
            "kernel.mitigations",
            Verdict.OK,
            "mitigations=off is a security trade-off, not needed for P2P",
            "note: leave it out unless the machine runs trusted code only",
        )
    if line is not None and "pcie_acs_override" in line.parameters:
        yield Finding(
            "acs.override",
            Verdict.WARN,
            "pcie_acs_override splits IOMMU groups for pass-through; it does not switch ACS redirection off",
            "remove it; clear ReqRedir and CmpltRedir on the ports instead",
            ansible="kernel_iommu",
        )


def iommu_mode(machine: Machine) -> tuple[str | None, str | None]:
    """Return "off", "pt" or "translated" with what says so; (None, None) when nothing decides it."""
    log, line = machine.log, machine.command_line
    if log is not None and log.iommu_domain in ("passthrough", "identity"):
        return "pt", f"Default domain type: {log.iommu_domain.capitalize()}"
    if log is not None and log.iommu_domain == "translated":
        return "translated", "Default domain type: Translated"
    if line is None or line.planned:
        return None, None
    parameters = line.parameters
    # Each maker's parameter does nothing on the other's processors.
    maker = machine.cpu.maker if machine.cpu is not None else None
    names = [
        name
        for name in ("iommu", "amd_iommu", "intel_iommu")
        if name in ("iommu", f"{maker or name[:-6]}_iommu")
    ]
    for name in names:
        if "off" in parameters.get(name, "").split(","):
            return "off", f"{name}=off"
    if "soft" in parameters.get("iommu", "").split(","):
        return "off", "iommu=soft"
    if "pt" in parameters.get("iommu", "").split(","):
        return "pt", "iommu=pt"
    if parameters.get("iommu.passthrough") in ("1", "on", "y"):
        return "pt", "iommu.passthrough=1"
    if "nopt" in parameters.get("iommu", "").split(",") or parameters.get("iommu.passthrough") in (
        "0",
        "off",
        "n",
    ):
        return "translated", _iommu_words(parameters)
    for name in reversed(names):
        words = parameters.get(name, "").split(",")
        if {"on", "force", "force_enable", "strict"} & set(words):
            return "translated", f"{name}={parameters[name]} without iommu=pt"
    return None, None


def _iommu_words(parameters: dict[str, str]) -> str | None:
    return " ".join(f"{k}={v}" for k, v in parameters.items() if "iommu" in k) or None
