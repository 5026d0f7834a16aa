"""Variations of kernel logs in every form of time stamp, of the kernel's command line, and of lspci."""

# ruff: noqa: E501  (the lines of logs are data)
from __future__ import annotations

from collections.abc import Callable

import pytest

from deploy_kit.doctor.blocks import split_blocks
from deploy_kit.doctor.examine import examine

Judge = Callable[[str, str, str], None]
Variations = dict[str, tuple[str, str, str]]

XID = "NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
STAMPS = {
    "plain": "[12345.678901] {}",
    "level": "<3>[12345.678901] {}",
    "ctime": "[Mon Nov  2 10:15:01 2026] {}",
    "ctime-german": "[Mo Nov  2 10:15:01 2026] {}",
    "ctime-french": "[lun. nov.  2 10:15:01 2026] {}",
    "human": "[Nov 2 10:15] {}",
    "human-delta": "[  +0.000012] {}",
    "delta": "[12345.678901 <    0.000012>] {}",
    "delta-only": "[<    0.000012>] {}",
    "iso": "2026-11-02T10:15:01,123456+01:00 {}",
    "decoded": "kern  :err   : [12345.678901] {}",
    "decoded-ctime": "kern  :err   : [Mon Nov  2 10:15:01 2026] {}",
    "syslog": "Nov  2 10:15:01 box1 kernel: {}",
    "syslog-with-uptime": "Nov  2 10:15:01 box1 kernel: [12345.678901] {}",
    "syslog-german": "Mär  2 10:15:01 box1 kernel: {}",
    "short-precise": "Nov 02 10:15:01.123456 box1 kernel: {}",
    "short-full": "Mon 2026-11-02 10:15:01 CET box1 kernel: {}",
    "short-unix": "1793610901.123456 box1 kernel: {}",
    "short-monotonic": "[12345.678901] box1 kernel: {}",
    "short-iso": "2026-11-02T10:15:01+0100 box1 kernel: {}",
    "thread": "[12345.678901] [ T1234] {}",
    "thread-in-stamp": "[12345.678901][ T1234] {}",
    "none": "{}",
    "grep-number": "1234:[12345.678901] {}",
    "grep-file": "/var/log/kern.log.1:Nov  2 10:15:01 box1 kernel: {}",
    "tab": "\t[12345.678901] {}",
}

CORRECTED = (
    "[  10.1] pcieport 0000:40:01.1: AER: Corrected error message received from 0000:41:00.0\n"
    "[  10.1] nvidia 0000:41:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID)\n"
    "[  10.1] nvidia 0000:41:00.0:   device [10de:2bb1] error status/mask=00000080/0000a000\n"
    "[  10.1] nvidia 0000:41:00.0:    [ 7] BadDLLP\n"
)
UNCORRECTED = (
    "[  20.1] pcieport 0000:40:01.1: AER: Uncorrectable (Fatal) error message received from 0000:41:00.0\n"
    "[  20.1] nvidia 0000:41:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer,"
    " (Requester ID)\n"
    "[  20.1] nvidia 0000:41:00.0:   device [10de:2bb1] error status/mask=00004000/00000000\n"
    "[  20.1] nvidia 0000:41:00.0: AER:   Error of this Agent is reported first\n"
)
FIRMWARE = (
    "[ 30.1] {1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 512\n"
    "[ 30.1] {1}[Hardware Error]: event severity: corrected\n"
    "[ 30.1] {1}[Hardware Error]:  Error 0, type: corrected\n"
    "[ 30.1] {1}[Hardware Error]:   section_type: PCIe error\n"
    "[ 30.1] {1}[Hardware Error]:   port_type: 4, root port\n"
    "[ 30.1] {1}[Hardware Error]:   device_id: 0000:40:01.1\n"
)
MEMORY = (
    "[ 40.1] mce: [Hardware Error]: Machine check events logged\n"
    "[ 40.1] [Hardware Error]: Corrected error, no action required.\n"
    "[ 40.1] [Hardware Error]: CPU:2 (19:11:1) MC21_STATUS[Over|CE|MiscV]: 0xdc2040000400011b\n"
    "[ 40.1] [Hardware Error]: Error Addr: 0x0000000012345678\n"
    "[ 40.1] EDAC MC0: 1 CE on mc#0csrow#1channel#2 (csrow:1 channel:2 page:0x1 offset:0x0)\n"
)

LOGS: Variations = {
    "aer-once": (CORRECTED, "warn", "link.aer-corrected '~1 corrected PCIe error '"),
    "aer-twice": (CORRECTED + CORRECTED.replace("10.1", "10.2"), "warn", "'~2 corrected PCIe errors'"),
    "aer-messages-only": (
        "".join(line for line in CORRECTED.splitlines(True) if "AER:" in line) * 3,
        "warn",
        "'~3 corrected PCIe errors'",
    ),
    "aer-details-only": (
        "".join(line for line in CORRECTED.splitlines(True) if "severity=" in line) * 2,
        "warn",
        "'~2 corrected PCIe errors'",
    ),
    "aer-two-devices-of-one-message": (
        (
            "[ 1.1] pcieport 0000:40:01.1: AER: Multiple Corrected error message received from 0000:41:00.0\n"
            "[ 1.1] nvidia 0000:41:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID)\n"
            "[ 1.1] pcieport 0000:40:01.1: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID)\n"
        ),
        "warn",
        "'~2 corrected PCIe errors'",
    ),
    "aer-fatal-once": (UNCORRECTED, "fail", "link.aer-uncorrected '~1 uncorrected PCIe error '"),
    "aer-both": (CORRECTED + UNCORRECTED, "fail", "'~1 corrected' '~1 uncorrected'"),
    "aer-enabled-is-no-error": (
        "[ 1.1] pcieport 0000:40:01.1: AER: enabled with IRQ 34\n[ 2.1] nvidia 0000:41:00.0: enabling device\n",
        "ok",
        "log !link.aer-corrected",
    ),
    "aer-by-firmware": (FIRMWARE, "warn", "link.aer-corrected !system.hardware-errors"),
    "aer-by-firmware-fatal": (
        FIRMWARE.replace("corrected", "fatal"),
        "fail",
        "link.aer-uncorrected !system.hardware-errors",
    ),
    "memory-error-counts-once": (MEMORY, "warn", "system.hardware-errors '~1 hardware error '"),
    "xid-154-to-none": (
        (
            "[ 1.1] NVRM: Xid (PCI:0000:41:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required)"
            " to 0x0 (None)\n"
        ),
        "ok",
        "!gpu.xid-154",
    ),
    "xid-154-to-reboot": (
        (
            "[ 1.1] NVRM: Xid (PCI:0000:41:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node"
            " Reboot Required)\n"
        ),
        "fail",
        "gpu.xid-154",
    ),
    "xid-old-form": ("[ 1.1] NVRM: Xid (0000:41:00): 31, Ch 00000010\n", "warn", "gpu.xid-31"),
    "bridge-io-window": (
        (
            "[ 1.1] pcieport 0000:00:1c.0: BAR 13: no space for [io  size 0x1000]\n"
            "[ 1.1] pcieport 0000:00:1c.0: BAR 13: failed to assign [io  size 0x1000]\n"
            "[ 1.2] nvidia 0000:41:00.0: enabling device (0140 -> 0142)\n"
        ),
        "ok",
        "!gpu.bar-not-assigned",
    ),
    "bridge-io-window-new": (
        (
            "[ 1.1] pci 0000:00:1c.0: bridge window [io  size 0x1000]: can't assign; no space\n"
            "[ 1.1] pci 0000:00:1c.0: bridge window [io  size 0x1000]: failed to assign\n"
            "[ 1.2] nvidia 0000:41:00.0: enabling device (0140 -> 0142)\n"
        ),
        "ok",
        "!gpu.bar-not-assigned",
    ),
    "bar-assigned-in-the-end": (
        (
            "[ 1.1] pci 0000:41:00.0: BAR 1: no space for [mem size 0x2000000000 64bit pref]\n"
            "[ 1.1] pci 0000:41:00.0: BAR 1: failed to assign [mem size 0x2000000000 64bit pref]\n"
            "[ 1.2] pci 0000:41:00.0: BAR 1: assigned [mem 0x20000000000-0x21fffffffff 64bit pref]\n"
            "[ 1.3] nvidia 0000:41:00.0: enabling device (0140 -> 0142)\n"
        ),
        "ok",
        "!gpu.bar-not-assigned",
    ),
    "bar-new-wording": (
        (
            "[ 1.1] pci 0000:41:00.0: BAR 1 [mem size 0x2000000000 64bit pref]: can't assign; no space\n"
            "[ 1.1] pci 0000:41:00.0: BAR 1 [mem size 0x2000000000 64bit pref]: failed to assign\n"
        ),
        "fail",
        "gpu.bar-not-assigned",
    ),
    "bar-of-virtual-functions": (
        (
            "[ 1.1] pci 0000:81:00.0: BAR 7: no space for [mem size 0x00400000 64bit pref]\n"
            "[ 1.1] pci 0000:81:00.0: BAR 7: failed to assign [mem size 0x00400000 64bit pref]\n"
            "[ 1.2] nvidia 0000:41:00.0: enabling device (0140 -> 0142)\n"
        ),
        "ok",
        "!gpu.bar-not-assigned",
    ),
    "bandwidth-idle": (
        (
            "[ 1.1] pci 0000:41:00.0: 32.000 Gb/s available PCIe bandwidth, limited by 2.5 GT/s PCIe x16 link at"
            " 0000:40:01.1 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)\n"
            "[ 1.2] nvidia 0000:41:00.0: enabling device (0140 -> 0142)\n"
        ),
        "ok",
        "!link.limited-at-boot",
    ),
    "bandwidth-narrow": (
        (
            "[ 1.1] pci 0000:41:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x4 link at"
            " 0000:40:01.1 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)\n"
        ),
        "warn",
        "link.limited-at-boot",
    ),
    "bandwidth-slot": (
        (
            "[ 1.1] pci 0000:41:00.0: 126.024 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x16 link at"
            " 0000:40:01.1 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)\n"
        ),
        "warn",
        "link.limited-at-boot",
    ),
    "power-state": (
        "[ 1.1] nvidia 0000:41:00.0: Unable to change power state from D3cold to D0, device inaccessible\n",
        "fail",
        "gpu.off-the-bus",
    ),
    "tainting-is-harmless": (
        (
            "[ 1.1] nvidia: module license 'NVIDIA' taints kernel.\n"
            "[ 1.1] nvidia: module verification failed: signature and/or required key missing - tainting kernel\n"
            "[ 1.2] nvidia-nvlink: Nvlink Core is being initialized, major device number 511\n"
        ),
        "ok",
        "log",
    ),
    "modprobe-rejected": (
        "$ sudo modprobe nvidia\nmodprobe: ERROR: could not insert 'nvidia': Key was rejected by service\n",
        "fail",
        "driver.secure-boot",
    ),
    "modprobe-not-found": (
        "modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.8.0-60-generic\n",
        "fail",
        "driver.not-installed",
    ),
    "modprobe-no-device": (
        "modprobe: ERROR: could not insert 'nvidia': No such device\n",
        "fail",
        "driver.not-loaded",
    ),
    "modinfo-not-found": (
        "# modinfo nvidia\nmodinfo: ERROR: Module nvidia not found.\n",
        "fail",
        "driver.not-installed",
    ),
    "modinfo-license-only": ("$ modinfo -F license nvidia\nNVIDIA\n", "fail", "driver.closed-module"),
    "modinfo-license-open": (
        "$ modinfo -F license nvidia\nDual MIT/GPL\n",
        "ok",
        "driver.open-module",
    ),
    "dkms-installed": (
        "$ dkms status\nnvidia/580.95.05, 6.8.0-60-generic, x86_64: installed\n",
        "ok",
        "driver.dkms",
    ),
    "dkms-added": ("$ dkms status\nnvidia/580.95.05: added\n", "fail", "driver.not-built"),
    "lsmod-nvidia": (
        (
            "Module                  Size  Used by\nnvidia_uvm           4063232  0\n"
            "nvidia_modeset       1814528  1 nvidia_drm\nnvidia             113606656  2 nvidia_uvm,nvidia_modeset\n"
        ),
        "ok",
        "driver.loaded",
    ),
    "lsmod-nouveau": (
        "Module                  Size  Used by\nnouveau              3096576  1\nmxm_wmi                16384  1 nouveau\n",
        "fail",
        "driver.nouveau",
    ),
    "lsmod-nouveau-headless": (
        "Module                  Size  Used by\nnouveau              3096576  0\nmxm_wmi                16384  1 nouveau\n",
        "fail",
        "driver.nouveau",
    ),
    "mixed-drivers": (
        "[ 1.1] NVRM: The NVIDIA probe routine was not called for 1 device(s).\n",
        "fail",
        "driver.nouveau",
    ),
}

GPU = "41:00.0 VGA compatible controller: NVIDIA Corporation Device 2bb1 (rev a1) (prog-if 00 [VGA controller])\n"
PORT = (
    "40:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Device 14ab (rev 01) (prog-if 00 [Normal decode])\n"
    "\tBus: primary=40, secondary=41, subordinate=41, sec-latency=0\n"
)
ACS_OFF = "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd+ EgressCtrl- DirectTrans-\n"
ACS_ON = "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-\n"
NIC = "81:00.0 Ethernet controller: Mellanox Technologies MT2892 Family [ConnectX-6 Dx]\n"

PCI: Variations = {
    "acs-of-an-endpoint": (PORT + ACS_OFF + GPU + NIC + ACS_ON, "ok", "acs !acs.redirect"),
    "acs-of-an-endpoint-grepped": (NIC + ACS_ON + "00:01.0 PCI bridge: X\n" + ACS_OFF, "ok", "!acs.redirect"),
    "acs-of-another-port": (
        PORT
        + ACS_OFF
        + GPU
        + "80:01.1 PCI bridge: AMD\n\tBus: primary=80, secondary=81, subordinate=81, sec-latency=0\n"
        + ACS_ON,
        "ok",
        "acs !acs.redirect '~above the GPUs'",
    ),
    "acs-of-another-domain": (
        (PORT + ACS_OFF + GPU)
        .replace("40:01.1", "0000:40:01.1", 1)
        .replace("41:00.0 VGA", "0000:41:00.0 VGA")
        + "10000:40:01.0 PCI bridge: Intel\n\tBus: primary=40, secondary=41, subordinate=41, sec-latency=0\n"
        + ACS_ON,
        "ok",
        "acs !acs.redirect",
    ),
    "acs-half": (PORT + ACS_ON.replace("CmpltRedir+", "CmpltRedir-") + GPU, "fail", "acs.redirect"),
    "acs-with-numbers": (
        PORT.replace("bridge:", "bridge [0604]:") + ACS_ON + GPU.replace("controller:", "controller [0300]:"),
        "fail",
        "acs.redirect '~40:01.1'",
    ),
    "link-full": (
        GPU + "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1, Exit Latency L1 unlimited\n"
        "\t\tLnkSta:\tSpeed 32GT/s, Width x16\n",
        "ok",
        "link",
    ),
    "link-old-words": (
        GPU + "\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM not supported\n"
        "\t\tLnkSta:\tSpeed 16GT/s (ok), Width x16 (ok)\n\t\t\tTrErr- Train- SlotClk+ DLActive- BWMgmt-\n",
        "ok",
        "link",
    ),
    "link-x4": (
        GPU + "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1\n"
        "\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x4 (downgraded)\n",
        "warn",
        "link.width '~a quarter'",
    ),
    "link-x1": (
        GPU + "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1\n"
        "\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x1 (downgraded)\n",
        "fail",
        "link.width",
    ),
    "link-idle-not-told": (
        GPU + "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1\n"
        "\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16\n",
        "unknown",
        "link.generation",
    ),
    "aspm": (
        GPU + "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1\n"
        "\t\tLnkCtl:\tASPM L1 Enabled; RCB 64 bytes, Disabled- CommClk+\n\t\tLnkSta:\tSpeed 32GT/s, Width x16\n",
        "warn",
        "link.aspm",
    ),
    "aspm-off": (
        GPU + "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1\n"
        "\t\tLnkCtl:\tASPM Disabled; RCB 64 bytes, Disabled- CommClk+\n\t\tLnkSta:\tSpeed 32GT/s, Width x16\n",
        "ok",
        "link !link.aspm",
    ),
    "bar-unassigned": (
        GPU + "\tRegion 0: Memory at f8000000 (32-bit, non-prefetchable) [size=64M]\n"
        "\tRegion 1: Memory at <unassigned> (64-bit, prefetchable)\n",
        "fail",
        "gpu.bar-not-assigned",
    ),
    "bar-ignored": (
        GPU + "\tRegion 1: Memory at <ignored> (64-bit, prefetchable) [disabled]\n",
        "fail",
        "gpu.bar-not-assigned",
    ),
    "vfio": (
        GPU + "\tKernel driver in use: vfio-pci\n\tKernel modules: nvidiafb, nouveau, nvidia\n",
        "fail",
        "driver.vfio",
    ),
    "nouveau": (
        GPU + "\tKernel driver in use: nouveau\n\tKernel modules: nvidiafb, nouveau\n",
        "fail",
        "driver.nouveau",
    ),
    "no-driver": (
        GPU + "\tSubsystem: NVIDIA Corporation Device 204b\n\tKernel modules: nvidiafb, nouveau\n",
        "fail",
        "driver.not-bound",
    ),
    "driver": (
        GPU + "\tKernel driver in use: nvidia\n\tKernel modules: nvidiafb, nouveau, nvidia_drm, nvidia\n",
        "ok",
        "driver.bound !driver.not-bound",
    ),
}

LINE = "BOOT_IMAGE=/boot/vmlinuz-6.8.0-60-generic root=UUID=0 ro quiet"
CMDLINES: Variations = {
    "last-value-counts": (f"{LINE} iommu=pt iommu=off\n", "ok", "iommu '~IOMMU off'"),
    "passthrough-of-arm": (f"{LINE} iommu.passthrough=1\n", "ok", "iommu"),
    "intel-off-on-intel": (
        f"{LINE} intel_iommu=off\n--- lscpu\nVendor ID: GenuineIntel\nCPU(s): 64\nSocket(s): 2\n",
        "ok",
        "iommu",
    ),
    "intel-off-on-amd": (
        f"{LINE} intel_iommu=off\n--- lscpu\nVendor ID: AuthenticAMD\nCPU(s): 64\nSocket(s): 2\n",
        "unknown",
        "iommu.unknown",
    ),
    "amd-off-on-intel": (
        f"--- lscpu\nVendor ID: GenuineIntel\nCPU(s): 64\nSocket(s): 2\n--- cmdline\n{LINE} amd_iommu=off\n",
        "unknown",
        "iommu.unknown",
    ),
    "log-wins": (
        f"{LINE} quiet\n--- dmesg\n[ 1.1] iommu: Default domain type: Passthrough (set via kernel command line)\n",
        "ok",
        "iommu",
    ),
    "in-dmesg": (f"[    0.000000] Command line: {LINE} amd_iommu=on iommu=pt\n", "ok", "iommu"),
    "acs-override": (
        f"{LINE} iommu=pt pcie_acs_override=downstream,multifunction\n",
        "warn",
        "acs.override iommu",
    ),
    "grub": ('GRUB_CMDLINE_LINUX_DEFAULT="quiet splash iommu=pt"\n', "unknown", "iommu.planned"),
}


@pytest.mark.parametrize("stamp", STAMPS)
def test_xid_in_every_form_of_log(stamp: str, judge: Judge) -> None:
    judge(STAMPS[stamp].format(XID) + "\n", "fail", "gpu.xid-79")


@pytest.mark.parametrize("stamp", STAMPS)
def test_link_error_in_every_form_of_log(stamp: str, judge: Judge) -> None:
    lines = [line.partition("] ")[2] for line in CORRECTED.splitlines()]
    text = "\n".join(STAMPS[stamp].format(line) for line in lines)
    judge(text, "warn", "link.aer-corrected '~1 corrected PCIe error '")


@pytest.mark.parametrize("name", LOGS)
def test_log(name: str, judge: Judge) -> None:
    judge(*LOGS[name])


@pytest.mark.parametrize("name", PCI)
def test_pci(name: str, judge: Judge) -> None:
    judge(*PCI[name])


@pytest.mark.parametrize("name", CMDLINES)
def test_command_line(name: str, judge: Judge) -> None:
    judge(*CMDLINES[name])


def test_facts_count_events_not_lines() -> None:
    facts = examine(split_blocks(CORRECTED + UNCORRECTED)).facts
    assert (facts["aer_corrected"], facts["aer_uncorrected"]) == (1, 1)
