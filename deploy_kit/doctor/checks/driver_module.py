"""The driver's kernel module: which one, whether it is loaded, and who holds the GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from deploy_kit.doctor.facts.machine import Machine
from deploy_kit.doctor.facts.pci import PciDevice
from deploy_kit.doctor.model import Finding, Verdict

_NO_NOUVEAU = "blacklist nouveau (modprobe.d), rebuild the initramfs, reboot"


def check(machine: Machine) -> Iterator[Finding]:
    """Yield what the module's own files, lsmod, modprobe, dkms and lspci say."""
    yield from _module(machine)
    yield from _bound(machine)


def _module(machine: Machine) -> Iterator[Finding]:
    driver = machine.driver
    if driver is None:
        return
    if driver.nouveau:
        yield Finding(
            "driver.nouveau",
            Verdict.FAIL,
            "the nouveau driver holds the GPUs, so NVIDIA's cannot",
            _NO_NOUVEAU,
            ansible="nvidia_driver",
        )
    if driver.open_module is False:
        yield Finding(
            "driver.closed-module",
            Verdict.FAIL,
            "the closed kernel module is installed; Blackwell GPUs work with the open kernel modules only",
            "install the open kernel modules (package nvidia-open)",
            (f"version {driver.version}",) if driver.version else (),
            ansible="nvidia_driver_open_modules",
        )
    elif driver.open_module:
        yield Finding("driver.open-module", Verdict.OK, f"open kernel modules {driver.version or ''}".strip())
    libraries = next((smi.driver for smi in machine.host_smi if smi.driver), None)
    if driver.version and libraries and driver.version != libraries:
        yield Finding(
            "driver.mismatch",
            Verdict.FAIL,
            f"kernel module {driver.version} and libraries {libraries} differ: the driver was updated"
            f" without a reload",
            "reboot, or unload and load the nvidia modules",
        )
    if driver.refusal:
        yield _refusal(driver.refusal)
    unbuilt = [name for name, states in driver.dkms.items() if "installed" not in states]
    if driver.dkms and len(unbuilt) == len(driver.dkms):
        yield Finding(
            "driver.not-built",
            Verdict.FAIL,
            f"{unbuilt[0]} is known to dkms and installed for no kernel",
            "install the headers of the running kernel (linux-headers-$(uname -r)), then `sudo dkms"
            " autoinstall`",
            tuple(f"{name}: {', '.join(driver.dkms[name])}" for name in unbuilt[:4]),
            ansible="nvidia_driver",
        )
    elif driver.dkms:
        names = [name for name in driver.dkms if name not in unbuilt]
        yield Finding("driver.dkms", Verdict.OK, f"{', '.join(names)} is built and installed by dkms")
    if driver.loaded and not driver.nouveau:
        yield Finding("driver.loaded", Verdict.OK, "the NVIDIA kernel module is loaded")


def _refusal(text: str) -> Finding:
    """Given what modprobe or modinfo said, return what it means."""
    if "not found" in text:
        return Finding(
            "driver.not-installed",
            Verdict.FAIL,
            "there is no NVIDIA module for the running kernel",
            "install the driver with its open kernel modules; after a kernel update `dkms status` shows"
            " whether it was built for this kernel",
            (text,),
            ansible="nvidia_driver",
        )
    if "Key was rejected" in text or "Required key" in text:
        return Finding(
            "driver.secure-boot",
            Verdict.FAIL,
            "Secure Boot refused the NVIDIA module: its signature is not trusted",
            "enrol the module's key (`mokutil --import`) or use the distribution's signed modules",
            (text,),
        )
    return Finding(
        "driver.not-loaded",
        Verdict.FAIL,
        f"the NVIDIA module does not load ({text.rpartition(': ')[2]})",
        "`sudo dmesg | grep -E 'NVRM|nvidia'` tells why: another driver holds the GPUs, a GPU that needs the"
        " open module, or no GPU on the bus (`lspci -d 10de:`)",
        (text,),
        ansible="nvidia_driver",
    )


def _bound(machine: Machine) -> Iterator[Finding]:
    """What lspci says of the driver each GPU has."""
    gpus = [device for device in machine.pci if device.is_gpu and not device.gone]
    told = [device for device in gpus if device.driver or device.lists_modules]
    nouveau = [device for device in told if device.driver == "nouveau"]
    vfio = [device for device in told if device.driver and device.driver.startswith("vfio")]
    bare = [device for device in told if device.driver is None]
    if nouveau:
        yield Finding(
            "driver.nouveau",
            Verdict.FAIL,
            f"the nouveau driver holds {_slots(nouveau)}",
            _NO_NOUVEAU,
            _evidence(nouveau),
            ansible="nvidia_driver",
        )
    if vfio:
        yield Finding(
            "driver.vfio",
            # Some for a virtual machine and the rest for this host may be meant so.
            Verdict.FAIL if len(vfio) == len(told) else Verdict.WARN,
            f"vfio-pci holds {_slots(vfio)} for a virtual machine",
            "when they are meant for this host: remove vfio-pci.ids= from the kernel's command line and"
            " `options vfio-pci ids=` from /etc/modprobe.d, rebuild the initramfs, reboot",
            _evidence(vfio),
        )
    if bare:
        yield Finding(
            "driver.not-bound",
            Verdict.FAIL,
            f"no driver holds {_slots(bare)}",
            "`sudo modprobe nvidia`, then `dmesg | tail`: not installed, not built for this kernel, or"
            " refused",
            _evidence(bare),
            ansible="nvidia_driver",
        )
    if told and not (nouveau or vfio or bare):
        yield Finding("driver.bound", Verdict.OK, f"the {told[0].driver} driver holds the GPUs")


def _slots(devices: list[PciDevice]) -> str:
    slots = ", ".join(device.slot for device in devices[:8])
    return f"{len(devices)} GPU{'s' if len(devices) != 1 else ''} ({slots})"


def _evidence(devices: list[PciDevice]) -> tuple[str, ...]:
    return tuple(f"{device.slot} Kernel driver in use: {device.driver or '(none)'}" for device in devices[:4])
