"""The public cases: verdict exactly, every fact, the decisive words, and nothing of what must not be said."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy_kit.doctor.blocks import split_blocks
from deploy_kit.doctor.examine import examine

CASES = Path(__file__).parents[2] / "cases"


@dataclass(frozen=True)
class Words:
    """What a case's words come down to: patterns cause and remedy must have, and what neither may have."""

    cause: tuple[str, ...]
    remedy: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


WORDS = {
    "host-01": Words(
        ("two NUMA nodes of 4", "4 PIX", "no NVLink"), ("NCCL_P2P_LEVEL=SYS", "SHM"), ("NVLink between",)
    ),
    "host-02": Words(
        ("8 GPUs in two groups of 4", "no switch", "no NVLink"), ("P2P override", "NCCL alone does not")
    ),
    "host-03": Words(("2 GPUs on one node", "NODE"), (), (r"path SYS", r"\b4 GPUs")),
    "host-05": Words(
        ("granted but not delivering", "ACS redirect", "IOMMU"), ("ACSCtl", "iommu=", "NCCL_P2P_DISABLE=1")
    ),
    "host-07": Words(("no ReqRedir/CmpltRedir", "not redirected")),
    "host-09": Words(("full width", "idle power saving", "P8"), ("under load",), ("degraded",)),
    "host-11": Words(("both GPUs at x8 of x16", "half the bandwidth", "does not change with load")),
    "host-12": Words(
        ("chipset", "virtual machine", "BAR1"), ("bare metal", "Resizable BAR", "Above-4G"), (r"\bACS\b",)
    ),
    "host-13": Words(("IOMMU off", "no translation", "mitigations=off is a security trade-off")),
    "host-15": Words(
        ("host memory", "SHM", "driver or platform level"),
        ("topo -p2p",),
        ("P2P (?:works|is used) (?:across|between)",),
    ),
    "host-16": Words(
        ("P2P in use", "2 channels", "bw 15 and 0.1"),
        ("Turin", "NCCL_GRAPH_FILE", "NCCL_MIN_NCHANNELS=8", "NCCL_PROTO=LL"),
        ("P2P (?:fail|is off|is not)", "SHM"),
    ),
    "host-17": Words(
        ("node 2 has CPUs and no memory", "0, 1 and 3 have memory and no CPUs"), ("NUMA binding off",)
    ),
    "host-18": Words(("CPU 231 off line", "harmless", "255 APIC"), ("mention only",)),
    "host-19": Words(("closed kernel module",), ("open kernel modules",), ("dead", "replace")),
    "host-21": Words(
        ("power brake active", "300 W below the requested 600 W"),
        (),
        ("deprecated", "T.Limit", "thermal", "N/A"),
    ),
    "runtime-01": Words(
        ("Container Toolkit", "not restarted"),
        ("nvidia-ctk runtime configure", "restart docker"),
        ("driver (?:is )?missing",),
    ),
    "runtime-03": Words(
        ("CDI specification", "runtime.nvidia.com/gpu=all"), ("nvidia-ctk cdi generate", "cdi list", "legacy")
    ),
    "runtime-05": Words(
        ("cgroup", "host"),
        ("recreate the container", "/dev/nvidia", "CDI", "cgroupfs"),
        ("driver broken", "GPU (?:is )?lost"),
    ),
    "runtime-07": Words(("tag no longer exists",), ("digest", "copy"), ("login", "network")),
}


def _cases() -> list[Any]:
    files = sorted([*CASES.glob("host-*.yaml"), *CASES.glob("runtime-*.yaml")])
    return [pytest.param(file, id=file.stem) for file in files]


def test_every_case_has_its_words() -> None:
    found = {"-".join(param.values[0].stem.split("-")[:2]) for param in _cases()}
    assert found == set(WORDS)


@pytest.mark.parametrize("file", _cases())
def test_case(file: Path) -> None:
    case = yaml.safe_load(file.read_text())
    report = examine(split_blocks(case["input"])).as_dict()
    words = WORDS["-".join(file.stem.split("-")[:2])]
    assert report["verdict"] == case["expect"]["verdict"]
    for key, value in case["expect"].get("facts", {}).items():
        found = report["facts"][key]
        if isinstance(value, dict):
            value = {str(name): inner for name, inner in value.items()}
        assert found == value, key
    for pattern in words.cause:
        assert pattern in report["cause"], pattern
    for pattern in words.remedy:
        assert pattern in (report["remedy"] or ""), pattern
    for pattern in words.never:
        assert not re.search(pattern, f"{report['cause']} {report['remedy']}", re.IGNORECASE), pattern
    assert all(finding["verdict"] == "ok" or finding["remedy"] for finding in report["findings"])


def test_runtime_cases_differ() -> None:
    causes = {
        examine(split_blocks(yaml.safe_load(file.read_text())["input"])).as_dict()["cause"]
        for file in CASES.glob("runtime-*.yaml")
    }
    assert len(causes) == len(list(CASES.glob("runtime-*.yaml")))


def test_offline_cpu_is_in_no_affinity() -> None:
    from deploy_kit.doctor.facts.cpu import expand_cpus

    case = yaml.safe_load((CASES / "host-18-lscpu-offline-cpu.yaml").read_text())
    facts = examine(split_blocks(case["input"])).facts
    assert facts["numa_cpus"]
    assert all(231 not in expand_cpus(cpus) for cpus in facts["numa_cpus"].values())


def test_granted_or_initialised_alone_proves_nothing() -> None:
    matrix = " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n"
    assert "no proof" in examine(split_blocks(matrix)).as_dict()["cause"]
    init = "box1:1:2 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 - Init COMPLETE\n"
    assert examine(split_blocks(init)).verdict == "unknown"
