"""Variations of what nvidia-smi prints: the plain table, -q, CSV, topologies and P2P matrices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Judge = Callable[[str, str, str], None]
# Name: the text, the verdict it deserves, marks (conftest.py says what they are).
Variations = dict[str, tuple[str, str, str]]

HEAD = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
"""
RULE = "+-----------------------------------------+------------------------+----------------------+\n"


def row(index: int, ecc: str, mig: str, *, mode: str = "Default", name: str = "RTX PRO 6000 Blac...") -> str:
    """Return one GPU of the plain table."""
    return (
        f"|   {index}  NVIDIA {name:<20}    On  |   00000000:0{index + 1}:00.0 Off | {ecc:>20} |\n"
        f"| 30%   34C    P8             15W /  600W |       4MiB /  97887MiB |      0%  {mode:>11} |\n"
        f"|                                         |                        | {mig:>20} |\n{RULE}"
    )


# Before drivers of 2020 there was no third line, and columns were narrower.
OLD_TABLE = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 418.87.00    Driver Version: 418.87.00    CUDA Version: 10.1     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla V100-SXM2...  On   | 00000000:00:1E.0 Off |                   {ecc} |
| N/A   35C    P0    24W / 300W |      0MiB / 16160MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+
"""

MIG_TABLE = (
    HEAD
    + row(0, "On", "Enabled").replace("0%", "N/A")
    + """\
+-----------------------------------------------------------------------------------------+
| MIG devices:                                                                            |
+------------------+----------------------------------+-----------+-----------------------+
| GPU  GI  CI  MIG |                     Memory-Usage |        Vol|        Shared         |
|      ID  ID  Dev |                       BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |
|                  |                                  |        ECC|                       |
|==================+==================================+===========+=======================|
|  0    1   0   0  |              12MiB / 47616MiB    | 94      0 |  2   2    2    0    2 |
|                  |               0MiB / 32767MiB    |           |                       |
+------------------+----------------------------------+-----------+-----------------------+
"""
)

TABLES: Variations = {
    "table-errors": (HEAD + row(0, "0", "N/A") + row(1, "12", "N/A"), "fail", "gpu.ecc '~GPU 1: 12'"),
    "table-healthy": (
        HEAD + row(0, "0", "Disabled") + row(1, "0", "Disabled"),
        "ok",
        "gpu !gpu.ecc !gpu.mig",
    ),
    "table-off": (HEAD + row(0, "Off", "N/A"), "ok", "gpu !gpu.ecc !gpu.mig"),
    "table-not-available": (HEAD + row(0, "N/A", "N/A"), "ok", "!gpu.ecc !gpu.mig"),
    "table-brackets": (HEAD + row(0, "[N/A]", "[N/A]"), "ok", "!gpu.ecc !gpu.mig"),
    "table-mig": (HEAD + row(0, "0", "Enabled") + row(1, "0", "Disabled"), "fail", "gpu.mig"),
    "table-mig-devices": (MIG_TABLE, "fail", "gpu.mig !gpu.ecc"),
    "table-mig-pending": (HEAD + row(0, "0", "Enabled*"), "fail", "gpu.mig"),
    "table-exclusive": (HEAD + row(0, "0", "N/A", mode="E. Process"), "warn", "gpu.compute-mode"),
    "table-prohibited": (HEAD + row(0, "0", "N/A", mode="Prohibited"), "warn", "gpu.compute-mode"),
    "table-old": (OLD_TABLE.format(ecc="0"), "ok", "gpu"),
    "table-old-errors": (OLD_TABLE.format(ecc="3"), "fail", "gpu.ecc"),
    "table-cut": (
        (HEAD + row(0, "0", "Disabled") + row(1, "0", "Disabled")).rsplit("| 30%", 1)[0],
        "unknown",
        "gpu.listing-cut",
    ),
    "table-inforom": (
        HEAD + row(0, "0", "N/A") + "WARNING: infoROM is corrupted at gpu 0000:01:00.0\n",
        "warn",
        "gpu.inforom",
    ),
    "handle": (
        "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error\n",
        "fail",
        "driver.not-answering !container.nvml-lost-in-container",
    ),
}


def query(*parts: str, gpu: str = "01") -> str:
    """Return one GPU of `nvidia-smi -q`."""
    return (
        f"GPU 00000000:{gpu}:00.0\n    Product Name : NVIDIA RTX PRO 6000 Blackwell\n"
        + "\n".join(parts)
        + "\n"
    )


WHOLE = (
    "    FB Memory Usage",
    "        Total                             : 97887 MiB",
    "    BAR1 Memory Usage",
    "        Total                             : 131072 MiB",
    "    Performance State                     : P8",
    "    Temperature",
    "        GPU Current Temp                  : 34 C",
)

QUERIES: Variations = {
    "q-throttled-by-power": (
        query(
            "    Clocks Event Reasons",
            "        Idle                              : Not Active",
            "        SW Power Cap                      : Active",
            "        HW Slowdown                       : Not Active",
            "            HW Thermal Slowdown           : Not Active",
            "            HW Power Brake Slowdown       : Not Active",
            "        SW Thermal Slowdown               : Not Active",
        ),
        "ok",
        "gpu.power",
    ),
    "q-counters-are-no-state": (
        query(
            "    Clocks Event Reasons",
            "        HW Slowdown                       : Not Active",
            "            HW Thermal Slowdown           : Not Active",
            "    Clocks Event Reasons Counters",
            "        SW Power Capping                  : 12345678 us",
            "        HW Thermal Slowdown               : 1200 us",
            "        HW Power Braking                  : 0 us",
        ),
        "ok",
        "!gpu.thermal",
    ),
    "q-old-throttle-words": (
        query(
            "    Clocks Throttle Reasons",
            "        HW Slowdown                       : Active",
            "            HW Thermal Slowdown           : Not Active",
            "            HW Power Brake Slowdown       : Active",
        ),
        "warn",
        "gpu.power",
    ),
    "q-retired-double-bit": (
        query(
            "    Retired Pages",
            "        Single Bit ECC                    : 0",
            "        Double Bit ECC                    : 2",
            "        Pending Page Blacklist            : No",
        ),
        "warn",
        "gpu.ecc-history",
    ),
    "q-retired-pending": (
        query(
            "    Retired Pages",
            "        Single Bit ECC                    : 0",
            "        Double Bit ECC                    : 0",
            "        Pending Page Blacklist            : Yes",
        ),
        "warn",
        "gpu.row-remap-pending",
    ),
    "q-retired-none": (
        query(
            "    Retired Pages",
            "        Single Bit ECC                    : N/A",
            "        Double Bit ECC                    : N/A",
            "        Pending Page Blacklist            : N/A",
            "    Remapped Rows",
            "        Correctable Error                 : 0",
            "        Uncorrectable Error               : 0",
            "        Pending                           : No",
            "        Remapping Failure Occurred        : No",
        ),
        "ok",
        "!gpu.ecc-history !gpu.row-remap-pending",
    ),
    "q-old-ecc": (
        query(
            "    Ecc Mode",
            "        Current                           : Enabled",
            "        Pending                           : Enabled",
            "    ECC Errors",
            "        Volatile",
            "            Single Bit",
            "                Device Memory             : 0",
            "                Total                     : 0",
            "            Double Bit",
            "                Device Memory             : 4",
            "                Total                     : 4",
            "        Aggregate",
            "            Double Bit",
            "                Device Memory             : 4",
            "                Total                     : 4",
        ),
        "fail",
        "gpu.ecc '~4 uncorrectable'",
    ),
    "q-ecc-no-double-count": (
        query(
            "    ECC Errors",
            "        Volatile",
            "            SRAM Correctable              : 0",
            "            SRAM Uncorrectable Parity     : 0",
            "            SRAM Uncorrectable SEC-DED    : 0",
            "            DRAM Correctable              : 12",
            "            DRAM Uncorrectable            : 0",
            "        Aggregate",
            "            SRAM Correctable              : 0",
            "            DRAM Correctable              : 12",
            "            DRAM Uncorrectable            : 0",
            "            SRAM Threshold Exceeded       : No",
        ),
        "ok",
        "!gpu.ecc !gpu.ecc-history",
    ),
    "q-sram-threshold": (
        query(
            "    ECC Errors",
            "        Aggregate",
            "            SRAM Uncorrectable Parity     : 0",
            "            SRAM Threshold Exceeded       : Yes",
        ),
        "fail",
        "gpu.ecc-threshold",
    ),
    "q-drain-reset": (
        query(
            "    GPU Reset Status", "        Reset Required : No", "        Drain and Reset Recommended : Yes"
        ),
        "fail",
        "gpu.recovery",
    ),
    "q-recovery-none": (
        query("    GPU Recovery Action : None", "    Persistence Mode : Enabled"),
        "ok",
        "!gpu.recovery",
    ),
    "q-mig-pending": (
        query("    MIG Mode", "        Current : Disabled", "        Pending : Enabled"),
        "warn",
        "gpu.mig-pending",
    ),
    "q-cut-in-the-last-gpu": (
        "Attached GPUs : 3\n"
        + query(*WHOLE, gpu="01")
        + query(*WHOLE, gpu="02")
        + query(*WHOLE[:2], gpu="03"),
        "unknown",
        "gpu.listing-cut",
    ),
    "q-whole": (
        "Attached GPUs : 2\n" + query(*WHOLE, gpu="01") + query(*WHOLE, gpu="02"),
        "ok",
        "gpu.bar1 !gpu.listing-cut",
    ),
    "q-bar1-half": (
        query(
            "    FB Memory Usage",
            "        Total                             : 97887 MiB",
            "    BAR1 Memory Usage",
            "        Total                             : 65536 MiB",
        ),
        "fail",
        "gpu.bar1",
    ),
}

CSV: Variations = {
    "csv-ecc": (
        (
            "index, name, ecc.errors.uncorrected.volatile.total, ecc.errors.uncorrected.aggregate.total\n"
            "0, NVIDIA RTX PRO 6000, 0, 0\n1, NVIDIA RTX PRO 6000, 7, 7\n"
        ),
        "fail",
        "gpu.ecc",
    ),
    "csv-ecc-none": (
        (
            "index, name, ecc.errors.uncorrected.volatile.total, mig.mode.current\n"
            "0, NVIDIA RTX PRO 6000, [N/A], [N/A]\n1, NVIDIA RTX PRO 6000, 0, Disabled\n"
        ),
        "ok",
        "!gpu.ecc !gpu.mig",
    ),
    "csv-aggregate": (
        (
            "index, name, ecc.errors.uncorrected.volatile.total, ecc.errors.uncorrected.aggregate.total\n"
            "0, NVIDIA RTX PRO 6000, 0, 2\n"
        ),
        "warn",
        "gpu.ecc-history",
    ),
    "csv-mig": ("index, name, mig.mode.current\n0, NVIDIA RTX PRO 6000, Enabled\n", "fail", "gpu.mig"),
    "csv-remapped": (
        (
            "gpu_name, gpu_bus_id, remapped_rows.correctable, remapped_rows.uncorrectable,"
            " remapped_rows.pending, remapped_rows.failure\n"
            "NVIDIA RTX PRO 6000, 00000000:01:00.0, 0, 1, 1, 0\n"
        ),
        "warn",
        "gpu.row-remap-pending gpu.ecc-history",
    ),
    "csv-remap-failed": (
        (
            "gpu_name, gpu_bus_id, remapped_rows.pending, remapped_rows.failure\n"
            "NVIDIA RTX PRO 6000, 00000000:01:00.0, No, Yes\n"
        ),
        "fail",
        "gpu.row-remap-failed",
    ),
    "csv-reasons-mask": (
        "index, name, clocks_event_reasons.active\n0, NVIDIA RTX PRO 6000, 0x0000000000000048\n",
        "warn",
        "gpu.thermal",
    ),
    "csv-reasons-idle": (
        "index, name, clocks_throttle_reasons.active\n0, NVIDIA RTX PRO 6000, 0x0000000000000001\n",
        "ok",
        "gpu.power",
    ),
    "csv-retired": (
        "index, name, retired_pages.double_bit.count, retired_pages.pending\n0, Tesla V100, 3, Yes\n",
        "warn",
        "gpu.row-remap-pending gpu.ecc-history",
    ),
    "csv-no-header": (
        (
            "# nvidia-smi --format=csv --query-gpu=index,name,ecc.errors.uncorrected.volatile.total\n"
            "0, NVIDIA RTX PRO 6000, 9\n"
        ),
        "fail",
        "gpu.ecc",
    ),
    "csv-lost": (
        (
            "index, name, temperature.gpu, pstate\n0, NVIDIA RTX PRO 6000, 34, P8\n"
            "1, [GPU is lost], [GPU is lost], [GPU is lost]\n"
        ),
        "fail",
        "gpu.error",
    ),
    "csv-unknown-error": (
        "index, name, temperature.gpu, pstate\n0, NVIDIA RTX PRO 6000, [Unknown Error], [Unknown Error]\n",
        "fail",
        "gpu.error",
    ),
}

TOPO_NICS = (
    "\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tPIX\tSYS\tSYS\tPXB\tSYS\t0-31\t0\t\tN/A\n"
    "GPU1\tPIX\t X \tSYS\tSYS\tPXB\tSYS\t0-31\t0\t\tN/A\n"
    "GPU2\tSYS\tSYS\t X \tPIX\tSYS\tPXB\t32-63\t1\t\tN/A\n"
    "GPU3\tSYS\tSYS\tPIX\t X \tSYS\tPXB\t32-63\t1\t\tN/A\n"
    "NIC0\tPXB\tPXB\tSYS\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tSYS\tPXB\tPXB\tSYS\t X \t\t\t\t\n"
)


def matrix(cell: str, gpus: int = 4) -> str:
    """Return a P2P matrix with this status between all GPUs."""
    head = " \t" + "\t".join(f"GPU{n}" for n in range(gpus)) + "\t\n"
    rows = (
        f" GPU{r}\t" + "\t".join("X" if r == c else cell for c in range(gpus)) + "\t\n" for r in range(gpus)
    )
    return head + "".join(rows) + "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"


MATRICES: Variations = {
    "topo-4-nics": (TOPO_NICS, "ok", "topology '~two NUMA nodes of 2' '~2 PIX pairs'"),
    "topo-nic-rows-cut": (TOPO_NICS.partition("NIC0\tPXB")[0], "ok", "topology !topology.truncated"),
    "topo-gpu-row-cut": (TOPO_NICS.partition("GPU3\tSYS")[0], "unknown", "topology.truncated"),
    "topo-mlx-names": (
        (
            "\tGPU0\tGPU1\tmlx5_0\tmlx5_bond_0\tCPU Affinity\tNUMA Affinity\n"
            "GPU0\t X \tNODE\tPIX\tSYS\t0-31\t0\nGPU1\tNODE\t X \tNODE\tSYS\t0-31\t0\n"
            "mlx5_0\tPIX\tNODE\t X \tSYS\nmlx5_bond_0\tSYS\tSYS\tSYS\t X \n"
        ),
        "ok",
        "topology '~2 GPUs on one node' '~farthest path NODE'",
    ),
    "topo-other-nics": (
        (
            "\tGPU0\tGPU1\tibp65s0\trdmap0s6\tCPU Affinity\tNUMA Affinity\n"
            "GPU0\t X \tPHB\tPIX\tSYS\t0-31\t0\nGPU1\tPHB\t X \tNODE\tSYS\t0-31\t0\n"
            "ibp65s0\tPIX\tNODE\t X \tSYS\nrdmap0s6\tSYS\tSYS\tSYS\t X \n"
        ),
        "ok",
        "topology '~2 GPUs on one node' '~farthest path PHB'",
    ),
    "topo-hidden": (
        "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tN/A\t0-31\nGPU1\tN/A\t X \t0-31\n",
        "unknown",
        "topology.unknown-path",
    ),
    "topo-uneven": (
        (
            "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\n"
            "GPU0\t X \tPHB\tSYS\t0-31\t0\nGPU1\tPHB\t X \tSYS\t0-31\t0\nGPU2\tSYS\tSYS\t X \t32-63\t1\n"
        ),
        "warn",
        "topology.unbalanced",
    ),
    "topo-markdown": ("### `nvidia-smi topo -m`\n\n```text\n" + TOPO_NICS + "```\n", "ok", "topology"),
    "p2p-cns": (matrix("CNS"), "fail", "p2p.not-granted '~chipset not supported'"),
    "p2p-gns-8": (matrix("GNS", 8), "fail", "p2p.not-granted '~GPU not supported'"),
    "p2p-unknown": (matrix("U"), "unknown", "p2p.unknown"),
    "p2p-atomics": ("$ nvidia-smi topo -p2p a\n" + matrix("NS"), "ok", "p2p.no-atomics !p2p.not-granted"),
    "p2p-atomics-of-a-venv": (
        "(venv) ubuntu@box1:~$ nvidia-smi topo -p2p a\n" + matrix("NS"),
        "ok",
        "p2p.no-atomics",
    ),
    "p2p-atomics-heading": (
        "## nvidia-smi topo -p2p a\n```\n" + matrix("NS") + "```\n",
        "ok",
        "p2p.no-atomics",
    ),
    "p2p-atomics-bold": (
        "**nvidia-smi topo -p2p a**\n```\n" + matrix("NS") + "```\n",
        "ok",
        "p2p.no-atomics",
    ),
    "p2p-atomics-traced": ("+ nvidia-smi topo -p2p a\n" + matrix("NS"), "ok", "p2p.no-atomics"),
    "p2p-nvlink-zsh": ("➜  ~ nvidia-smi topo -p2p n\n" + matrix("NS"), "ok", "topology.nvlink"),
    "p2p-nvlink-starship": ("\u276f nvidia-smi topo -p2p n\n" + matrix("NS"), "ok", "topology.nvlink"),
    "p2p-nvlink-bash-version": ("bash-5.1# nvidia-smi topo -p2p n\n" + matrix("NS"), "ok", "topology.nvlink"),
    "p2p-nvlink-no-prompt": (
        "nvidia-smi topo -p2p n\n" + matrix("NS"),
        "ok",
        "topology.nvlink !p2p.not-granted",
    ),
    "p2p-nvlink-time-in-prompt": (
        "[10:01:12] root@box1 ~ # nvidia-smi topo -p2p n\n" + matrix("NS"),
        "ok",
        "topology.nvlink",
    ),
    "p2p-three-in-one": (
        "root@box1:~# nvidia-smi topo -p2p r\n"
        + matrix("OK")
        + "root@box1:~# nvidia-smi topo -p2p w\n"
        + matrix("OK")
        + "root@box1:~# nvidia-smi topo -p2p a\n"
        + matrix("NS"),
        "ok",
        "p2p.granted p2p.no-atomics !p2p.not-granted",
    ),
    "p2p-write-refused": (
        "$ nvidia-smi topo -p2p r\n" + matrix("OK") + "$ nvidia-smi topo -p2p w\n" + matrix("NS"),
        "fail",
        "p2p.not-granted",
    ),
    "p2p-cut": (matrix("OK").partition(" GPU3\t")[0], "unknown", "p2p.truncated"),
}


@pytest.mark.parametrize("name", TABLES)
def test_table(name: str, judge: Judge) -> None:
    judge(*TABLES[name])


@pytest.mark.parametrize("name", QUERIES)
def test_query(name: str, judge: Judge) -> None:
    judge(*QUERIES[name])


@pytest.mark.parametrize("name", CSV)
def test_csv(name: str, judge: Judge) -> None:
    judge(*CSV[name])


@pytest.mark.parametrize("name", MATRICES)
def test_matrix(name: str, judge: Judge) -> None:
    judge(*MATRICES[name])
