"""What nvidia-smi's refusals mean: a host and a container print the same words for different reasons."""

from __future__ import annotations

from collections.abc import Iterator

from deploy_kit.doctor.facts.machine import Machine
from deploy_kit.doctor.facts.smi import SmiFacts
from deploy_kit.doctor.model import Finding, Verdict
from deploy_kit.runtime.container_faults import ContainerFault, explain_container_fault

# Ids of container faults that are told here, by where the command ran.
TOLD_HERE = frozenset(
    {"driver-library-mismatch", "nvidia-smi-no-driver", "nvml-lost-in-container", "gpu-permission"}
)
_RECREATE = "recreate the container (`docker compose up -d --force-recreate SERVICE`)"
_IN_DOUBT = "this text does not say where it ran"


def check(machine: Machine) -> Iterator[Finding]:
    """Yield why nvidia-smi was refused, each reason once."""
    found = [finding for smi in machine.smi if smi.fault and (finding := _refusal(smi, machine)) is not None]
    yield from {(finding.id, finding.cause): finding for finding in found}.values()


def _refusal(smi: SmiFacts, machine: Machine) -> Finding | None:
    fault = smi.fault or ""
    if smi.in_container:
        return _in_container(fault, machine)
    if "mismatch" in fault:
        cause = "driver and library have different versions: the driver was updated, the old module is loaded"
        remedy = "reboot, or unload and load the nvidia modules; keep unattended upgrades off the driver"
        if not smi.on_host:
            remedy += f"; when it was in a container and the host's nvidia-smi works, {_RECREATE}"
    elif "couldn't communicate" in fault or "Driver Not Loaded" in fault:
        cause = "the NVIDIA kernel module is not running"
        remedy = "`sudo modprobe nvidia`, then `dmesg | tail`; `dkms status` shows whether it was built"
    elif "lost" in fault or "device handle" in fault:
        cause = "a GPU no longer answers the driver"
        remedy = "look for Xid 79 in `dmesg`; reboot, then check power cables and slot"
    elif fault.endswith("Unknown Error"):
        cause = "the driver answers with an unknown error: a GPU or the driver itself hangs"
        remedy = (
            "`sudo dmesg | grep -E 'NVRM|Xid'` tells more; `ls -l /dev/nvidia*` must show every GPU; then"
            " reset the GPU or reboot"
        )
        if not smi.on_host:
            return _in_doubt(fault, remedy)
    elif "Insufficient Permissions" in fault:
        cause = "this user may not open the GPUs' device files"
        remedy = (
            "`ls -l /dev/nvidia*`: add the user to the group that owns them, or correct NVreg_DeviceFileMode"
            " and NVreg_DeviceFileGID in /etc/modprobe.d"
        )
        if not smi.on_host:
            return _in_doubt(fault, remedy)
    else:
        return None  # other texts of containers: explained by the container check
    return Finding("driver.not-answering", Verdict.FAIL, cause, remedy, (fault,))


def _in_container(fault: str, machine: Machine) -> Finding | None:
    explained = explain_container_fault(fault)
    if explained is None or explained.id not in TOLD_HERE:
        return None
    if explained.id != "driver-library-mismatch":
        return _as_finding(explained)
    if any(smi.fault and "mismatch" in smi.fault for smi in machine.host_smi):
        return None  # the host has the same fault: it is told there
    if any(smi.driver or smi.gpus for smi in machine.host_smi):
        return Finding(
            "container.old-driver-libraries",
            Verdict.FAIL,
            "the container still holds the driver libraries from before an update of the host's driver; the"
            " host is fine",
            _RECREATE,
            (fault,),
        )
    return _as_finding(
        explained,
        remedy=f"`nvidia-smi` on the host: when it works there, {_RECREATE}; when it fails in the same way,"
        f" {explained.remedy}",
    )


def _in_doubt(fault: str, remedy_on_host: str) -> Finding | None:
    explained = explain_container_fault(fault)
    if explained is None:
        return None
    return _as_finding(
        explained,
        cause=f"{_IN_DOUBT}. In a container: {explained.cause}. On the host: the driver or the rights on its"
        " device files are at fault",
        remedy=f"in a container: {explained.remedy}. On the host: {remedy_on_host}",
    )


def _as_finding(fault: ContainerFault, *, cause: str | None = None, remedy: str | None = None) -> Finding:
    return Finding(
        f"container.{fault.id}",
        Verdict.FAIL,
        cause or fault.cause,
        remedy or fault.remedy,
        (fault.evidence,),
    )
