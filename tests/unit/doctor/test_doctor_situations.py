"""Situations beyond the public cases, in the fixed wording of each tool: verdict and the first finding."""

from __future__ import annotations

import pytest

from deploy_kit.doctor.blocks import split_blocks
from deploy_kit.doctor.examine import examine
from deploy_kit.doctor.model import Verdict


def lines(*parts: str) -> str:
    """Return the lines as one text."""
    return "\n".join(parts) + "\n"


SITUATIONS = {
    "acs-on": (
        lines(
            (
                "12:03.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0) (prog-if "
                "00 [Normal decode])"
            ),
            "\tCapabilities: [170 v1] Access Control Services",
            ("\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans+"),
            ("\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-"),
        ),
        "fail",
        "acs.redirect",
    ),
    "acs-grep": (
        lines(
            "ACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-",
            "ACSCtl: SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-",
        ),
        "fail",
        "acs.redirect",
    ),
    "denied": (
        lines(
            "16:00.0 3D controller: NVIDIA Corporation Device 2bb5 (rev a1)",
            "\tSubsystem: NVIDIA Corporation Device 204e",
            "\tCapabilities: <access denied>",
            "\tKernel driver in use: nvidia",
        ),
        "unknown",
        "acs.denied",
    ),
    "gns": (
        lines(
            " \tGPU0\tGPU1\t",
            " GPU0\tX\tGNS\t",
            " GPU1\tGNS\tX\t",
            "",
            "Legend:",
            "",
            "  X    = Self",
            "  OK   = Status Ok",
            "  CNS  = Chipset not supported",
        ),
        "fail",
        "p2p.not-granted",
    ),
    "tns-part": (
        lines(
            " \tGPU0\tGPU1\tGPU2\t",
            " GPU0\tX\tOK\tTNS",
            " GPU1\tOK\tX\tTNS",
            " GPU2\tTNS\tTNS\tX",
        ),
        "fail",
        "p2p.not-granted",
    ),
    "p2p-ok": (
        lines(
            " \tGPU0\tGPU1\t",
            " GPU0\tX\tOK\t",
            " GPU1\tOK\tX\t",
        ),
        "ok",
        "p2p.granted",
    ),
    "p2p-nvlink": (
        lines(
            "# nvidia-smi topo -p2p n",
            " \tGPU0\tGPU1\t",
            " GPU0\tX\tNS\t",
            " GPU1\tNS\tX\t",
        ),
        "ok",
        "topology.nvlink",
    ),
    "pt": (
        lines(
            "BOOT_IMAGE=/vmlinuz root=UUID=1 ro quiet iommu=pt intel_iommu=on",
        ),
        "ok",
        "iommu",
    ),
    "on": (
        lines(
            "BOOT_IMAGE=/vmlinuz root=UUID=1 ro quiet intel_iommu=on",
        ),
        "warn",
        "iommu.translation",
    ),
    "none": (
        lines(
            "BOOT_IMAGE=/vmlinuz root=UUID=1 ro quiet",
        ),
        "unknown",
        "iommu.unknown",
    ),
    "bare-words": (
        lines(
            "root@box1:~# cat /proc/cmdline",
            "BOOT_IMAGE=/vmlinuz root=UUID=1 ro amd_iommu=on iommu=pt",
        ),
        "ok",
        "iommu",
    ),
    "translated": (
        lines(
            "[    1.2] iommu: Default domain type: Translated",
            "[    1.3] AMD-Vi: Interrupt remapping enabled",
            "[   1.4] iommu: DMA domain TLB invalidation policy: lazy mode",
        ),
        "warn",
        "iommu.translation",
    ),
    "iofault": (
        lines(
            (
                "[  100.2] nvidia 0000:c1:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x002f"
                " address=0x3e000000000 flags=0x0020]"
            ),
        ),
        "fail",
        "iommu.faults",
    ),
    "xid79": (
        lines(
            "[12345.6] NVRM: GPU at PCI:0000:41:00: GPU-0a1b2c3d-0000-0000-0000-000000000000",
            (
                "[12345.6] NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU h"
                "as fallen off the bus."
            ),
            "[12345.7] NVRM: GPU 0000:41:00.0: GPU has fallen off the bus.",
        ),
        "fail",
        "gpu.xid-79",
    ),
    "xid31": (
        lines(
            (
                "[12345.6] NVRM: Xid (PCI:0000:41:00): 31, pid=4242, name=python, Ch 00000008, in"
                "tr 00000000. MMU Fault: ENGINE GRAPHICS"
            ),
        ),
        "warn",
        "gpu.xid-31",
    ),
    "xid119-new": (
        lines(
            (
                "Nov 12 10:00:01 box1 kernel: NVRM: Xid (PCI:0000:41:00): 119, pid=1, name=x, Tim"
                "eout after 45s of waiting for RPC response from GPU0 GSP!"
            ),
        ),
        "fail",
        "gpu.xid-119",
    ),
    "aer": (
        lines(
            (
                "[  10.1] pcieport 0000:40:01.1: AER: Multiple Corrected error message received f"
                "rom 0000:41:00.0"
            ),
            (
                "[  10.1] nvidia 0000:41:00.0: PCIe Bus Error: severity=Corrected, type=Data Link"
                " Layer, (Receiver ID)"
            ),
            "[  10.1] nvidia 0000:41:00.0:    [ 7] BadDLLP",
        ),
        "warn",
        "link.aer-corrected",
    ),
    "rminit-open": (
        lines(
            (
                "[ 5.1] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Relea"
                "se Build  (dvs-builder@U22)  Tue Sep 23"
            ),
            "[ 6.1] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x24:0xffff:1589)",
        ),
        "fail",
        "driver.init-failed",
    ),
    "smi-mismatch": (
        lines(
            "Failed to initialize NVML: Driver/library version mismatch",
            "NVML library version: 580.95",
        ),
        "fail",
        "driver.not-answering",
    ),
    "load-gen1": (
        lines(
            "GPU 00000000:01:00.0",
            "    Product Name                          : NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "    Performance State                     : P0",
            "    PCI",
            "        GPU Link Info",
            "            PCIe Generation",
            "                Max                       : 5",
            "                Current                   : 1",
            "                Device Current            : 1",
            "                Device Max                : 5",
            "                Host Max                  : 5",
            "            Link Width",
            "                Max                       : 16x",
            "                Current                   : 16x",
            "    Utilization",
            "        GPU                               : 98 %",
            "        Memory                            : 40 %",
        ),
        "fail",
        "link.generation-under-load",
    ),
    "gen4-slot": (
        lines(
            "GPU 00000000:01:00.0",
            "    Product Name                          : NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "    Performance State                     : P0",
            "    PCI",
            "        GPU Link Info",
            "            PCIe Generation",
            "                Max                       : 4",
            "                Current                   : 4",
            "                Device Current            : 1",
            "                Device Max                : 5",
            "                Host Max                  : 4",
            "            Link Width",
            "                Max                       : 16x",
            "                Current                   : 16x",
            "    Utilization",
            "        GPU                               : 98 %",
            "        Memory                            : 40 %",
        ),
        "warn",
        "link.slot-generation",
    ),
    "csv": (
        lines(
            (
                "index, name, pcie.link.gen.current, pcie.link.gen.max, pcie.link.width.current, "
                "pcie.link.width.max, pstate, utilization.gpu [%]"
            ),
            "0, NVIDIA RTX PRO 6000 Blackwell, 4, 5, 16, 16, P0, 97 %",
            "1, NVIDIA RTX PRO 6000 Blackwell, 5, 5, 16, 16, P0, 97 %",
        ),
        "warn",
        "link.generation-under-load",
    ),
    "nccl-ipc": (
        lines(
            "NCCL version 2.28.9+cuda13.0",
            "box1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
            "box1:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/direct pointer",
            (
                "box1:1:2 [0] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 3"
                "2 p2p channels, 32 p2p channels per peer"
            ),
        ),
        "ok",
        "nccl",
    ),
    "nccl-net": (
        lines(
            "box1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0",
            "box1:1:2 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [receive] via NET/Socket/0",
        ),
        "fail",
        "nccl.network-on-one-host",
    ),
    "nccl-mixed": (
        lines(
            "box1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
            "box1:1:2 [3] NCCL INFO Channel 00/0 : 3[3] -> 4[4] via SHM/direct/direct",
        ),
        "warn",
        "nccl.shm-in-part",
    ),
    "nccl-shm-on-purpose": (
        lines(
            "box1:1:2 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.",
            "box1:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",
        ),
        "warn",
        "nccl.p2p-off-on-purpose",
    ),
    "nccl-algo": (
        lines(
            "box1:1:2 [0] NCCL INFO NCCL_ALGO set by environment to Tree",
            (
                "box1:1:2 [0] enqueue.cc:1 NCCL WARN Error : no algorithm/protocol available for "
                "function AllGather with datatype ncclInt8. NCCL_ALGO was set to Tree."
            ),
        ),
        "fail",
        "nccl.no-algorithm",
    ),
    "nccl-init-only": (
        lines(
            "box1:1:2 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 - Init COMPLETE",
        ),
        "unknown",
        "nccl.unproven",
    ),
    "nccl-shm": (
        lines(
            (
                "box1:1:2 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl"
                "-abc to 33030532 bytes, error: No space left on device (28)"
            ),
            "box1:1:2 [0] NCCL INFO x",
        ),
        "fail",
        "nccl.shm-too-small",
    ),
    "docker-snap": (
        lines(
            "Client:",
            " Version: 27",
            "Server:",
            " Server Version: 27.2.0",
            " Runtimes: io.containerd.runc.v2 runc",
            " Docker Root Dir: /var/snap/docker/common/var-lib-docker",
        ),
        "fail",
        "container.snap",
    ),
    "shm64": (
        lines(
            "Filesystem      Size  Used Avail Use% Mounted on",
            "shm              64M     0   64M   0% /dev/shm",
        ),
        "fail",
        "limits.shm",
    ),
    "ulimit": (
        lines(
            "$ ulimit -l",
            "8192",
        ),
        "warn",
        "limits.memlock",
    ),
    "env": (
        lines(
            "NCCL_ALGO=Tree",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            "HF_TOKEN=hf_abcdefgh",
        ),
        "fail",
        "environment.NCCL_ALGO",
    ),
    "numabal": (
        lines(
            "kernel.numa_balancing = 1",
        ),
        "warn",
        "kernel.numa-balancing",
    ),
    "gov": (
        lines(
            "powersave",
            "powersave",
        ),
        "warn",
        "cpu.governor",
    ),
    "two-nccl": (
        lines(
            "nvidia-nccl-cu12 2.21.5",
            "nvidia-nccl-cu13 2.28.9",
        ),
        "warn",
        "nccl.two-builds",
    ),
    "numactl-ok": (
        lines(
            "available: 2 nodes (0-1)",
            "node 0 cpus: 0 1 2 3",
            "node 0 size: 515000 MB",
            "node 0 free: 400000 MB",
            "node 1 cpus: 4 5 6 7",
            "node 1 size: 516000 MB",
            "node 1 free: 400000 MB",
            "node distances:",
            "node   0   1 ",
            "  0:  10  32 ",
            "  1:  32  10 ",
        ),
        "ok",
        "numa",
    ),
    "numactl-one": (
        lines(
            "available: 2 nodes (0-1)",
            "node 0 cpus: 0 1 2 3",
            "node 0 size: 515000 MB",
        ),
        "unknown",
        "numa.truncated",
    ),
    "wrapped": (
        lines(
            "\tGPU0\tGPU1\tCPU Affinity\tNUMA",
            " Affinity\tGPU NUMA ID",
            "GPU0\t X \tPHB\t0-31\t0\t\tN/A",
            "GPU1\tPHB\t X \t0-31\t0\t\tN/A",
        ),
        "ok",
        "topology",
    ),
    "trunc-topo": (
        lines(
            "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity",
            "GPU0\t X \tPHB\tSYS\tSYS\t0-31",
            "GPU1\tPHB\t X \tSY",
        ),
        "unknown",
        "topology.truncated",
    ),
    "trunc-topo-head": (
        lines(
            "GPU2\tSYS\tSYS\t X \tPIX\t32-63\t1",
            "GPU3\tSYS\tSYS\tPIX\t X \t32-63\t1",
        ),
        "unknown",
        "topology.truncated",
    ),
    "nvlink": (
        lines(
            "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity",
            "GPU0\t X \tNV18\t0-31\t0",
            "GPU1\tNV18\t X \t0-31\t0",
        ),
        "ok",
        "topology",
    ),
    "rev-ff": (
        lines(
            "41:00.0 VGA compatible controller: NVIDIA Corporation Device 2bb1 (rev ff) (prog-if ff)",
            "\t!!! Unknown header type 7f",
            "\tKernel driver in use: nvidia",
        ),
        "fail",
        "link.gone",
    ),
    "rebar-lspci": (
        lines(
            "01:00.0 VGA compatible controller: NVIDIA Corporation GB202GL (rev a1)",
            "\tRegion 1: Memory at 38000000000 (64-bit, prefetchable) [size=256M]",
            "\tCapabilities: [bb0 v1] Physical Resizable BAR",
            (
                "\t\tBAR 1: current size: 256MB, supported: 64MB 128MB 256MB 512MB 1GB 2GB 4GB 8GB "
                "16GB 32GB 64GB 128GB"
            ),
        ),
        "fail",
        "gpu.bar1",
    ),
    "ecc": (
        lines(
            "    ECC Errors",
            "        Volatile",
            "            SRAM Correctable                           : 0",
            "            SRAM Uncorrectable Parity                  : 0",
            "            DRAM Uncorrectable                         : 3",
            "        Aggregate",
            "            DRAM Uncorrectable                         : 3",
            "    Remapped Rows",
            "        Correctable Error                              : 0",
            "        Uncorrectable Error                            : 1",
            "        Pending                                        : Yes",
            "        Remapping Failure Occurred                     : No",
        ),
        "fail",
        "gpu.ecc",
    ),
    "thermal": (
        lines(
            "    Clocks Event Reasons",
            "        Idle                                           : Not Active",
            "        HW Slowdown                                    : Active",
            "            HW Thermal Slowdown                        : Active",
            "            HW Power Brake Slowdown                    : Not Active",
            "        SW Thermal Slowdown                            : Not Active",
        ),
        "warn",
        "gpu.thermal",
    ),
    "table": (
        lines(
            ("+-----------------------------------------------------------------------------------------+"),
            ("| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |"),
            ("|-----------------------------------------+------------------------+----------------------+"),
            ("|   0  NVIDIA RTX PRO 6000 Blac...    Off |   00000000:01:00.0 Off |                    0 |"),
            ("| 30%   34C    P8             15W /  600W |       4MiB /  97887MiB |      0%      Default |"),
            ("|                                         |                        |             Disabled |"),
            ("+-----------------------------------------+------------------------+----------------------+"),
            ("|   1  NVIDIA RTX PRO 6000 Blac...    On  |   00000000:02:00.0 Off |                    0 |"),
            "|ERR!  ERR!  ERR!            ERR!/ERR!    |   N/A      |      N/A      Default |",
        ),
        "fail",
        "gpu.error",
    ),
    "p2pbw": (
        lines(
            "P2P Connectivity Matrix",
            "     D\\D     0     1",
            "     0\t     1     1",
            "     1\t     1     1",
            "Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)",
            "   D\\D     0      1 ",
            "     0 1500.0  38.2 ",
            "     1  38.1 1500.2 ",
            "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)",
            "   D\\D     0      1 ",
            "     0 1500.0   2.2 ",
            "     1   2.1 1500.2 ",
            "P2P=Disabled Latency Matrix (us)",
            "   GPU     0      1 ",
            "     0   2.2   14.1 ",
            "     1  14.0   2.1 ",
            "P2P=Enabled Latency (P2P Writes) Matrix (us)",
            "   GPU     0      1 ",
            "     0   2.2   49205.1 ",
            "     1  49204.0   2.1 ",
        ),
        "fail",
        "p2p.latency",
    ),
    "closed-modinfo": (
        lines(
            "filename: /lib/modules/6/nvidia.ko",
            "version: 580.95.05",
            "license:        NVIDIA",
        ),
        "fail",
        "driver.closed-module",
    ),
    "proc-version": (
        lines(
            ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x)  Tue"),
            "GCC version: gcc",
        ),
        "ok",
        "driver.open-module",
    ),
    "nodev-only": (
        lines(
            "No devices were found",
        ),
        "fail",
        "gpu.none",
    ),
    "garbage": (
        lines(
            "hello world",
            "foo bar",
        ),
        "unknown",
        "input.not-recognised",
    ),
    "empty": (
        lines(),
        "unknown",
        "input.not-recognised",
    ),
    "dmesg-denied": (
        lines(
            "# dmesg",
            "dmesg: read kernel buffer failed: Operation not permitted",
        ),
        "unknown",
        "log.denied",
    ),
    "vm-lscpu": (
        lines(
            "CPU(s): 32",
            "On-line CPU(s) list: 0-31",
            "Model name: Intel Xeon",
            "Socket(s): 32",
            "NUMA node(s): 1",
            "Hypervisor vendor: KVM",
        ),
        "warn",
        "cpu.virtual",
    ),
    "rlimit": (
        lines(
            (
                "Error response from daemon: failed to create shim task: OCI runtime create faile"
                "d: runc create failed: unable to start container process: error during container"
                " init: error setting rlimits for ready process: error setting rlimit type 8: ope"
                "ration not permitted: unknown"
            ),
        ),
        "fail",
        "container.rlimit-memlock",
    ),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_situation(name: str) -> None:
    text, verdict, first = SITUATIONS[name]
    report = examine(split_blocks(text))
    assert report.verdict == verdict
    assert first in [finding.id for finding in report.worst]
    assert all(finding.remedy for finding in report.findings if finding.verdict is not Verdict.OK)


@pytest.mark.parametrize("name", SITUATIONS)
def test_escapes_and_line_ends_change_nothing(name: str) -> None:
    text, verdict, _ = SITUATIONS[name]
    dressed = "".join(f"\x1b[1m{line}\x1b[0m\r\n" for line in text.split("\n"))
    assert examine(split_blocks(dressed)).verdict == verdict


def test_secrets_of_the_environment_are_not_kept() -> None:
    report = examine(split_blocks("NCCL_DEBUG=INFO\nHF_TOKEN=hf_secret\nSGLANG_API_KEY=abc\n")).as_dict()
    assert report["facts"]["environment"] == {"NCCL_DEBUG": "INFO"}


def test_many_outputs_in_one_text_are_told_apart() -> None:
    parts = ["acs-on", "xid79", "numactl-ok", "nvlink", "shm64"]
    text = "".join(f"--- part {i}\n{SITUATIONS[name][0]}" for i, name in enumerate(parts))
    ids = {finding.id for finding in examine(split_blocks(text)).findings}
    assert {"acs.redirect", "gpu.xid-79", "numa", "topology", "limits.shm"} <= ids


def test_outputs_without_any_heading_are_told_apart() -> None:
    parts = ["acs-on", "xid79", "numactl-ok", "nvlink", "shm64"]
    text = "".join(SITUATIONS[name][0] for name in parts)
    ids = {finding.id for finding in examine(split_blocks(text)).findings}
    assert {"acs.redirect", "gpu.xid-79", "numa", "topology", "limits.shm"} <= ids
