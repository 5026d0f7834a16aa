"""All facts of one machine, gathered from the outputs that are there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from deploy_kit.doctor.blocks import Block
from deploy_kit.doctor.facts.containers import CdiFacts, DockerFacts, parse_cdi, parse_docker
from deploy_kit.doctor.facts.cpu import CpuFacts, NumaFacts, parse_lscpu, parse_numactl
from deploy_kit.doctor.facts.driver import DriverFacts, parse_driver
from deploy_kit.doctor.facts.environment import parse_environment
from deploy_kit.doctor.facts.kernel import (
    CommandLine,
    KernelLog,
    KernelSettings,
    parse_command_line,
    parse_kernel_log,
    parse_settings,
)
from deploy_kit.doctor.facts.limits import Limits, parse_limits
from deploy_kit.doctor.facts.nccl import (
    AllreduceTime,
    BandwidthTest,
    NcclLog,
    Transfer,
    parse_allreduce_times,
    parse_bandwidth_test,
    parse_nccl,
    parse_transfers,
)
from deploy_kit.doctor.facts.packages import NcclBuilds, parse_nccl_builds
from deploy_kit.doctor.facts.pci import PciDevice, parse_pci
from deploy_kit.doctor.facts.smi import Gpu, SmiFacts, parse_smi
from deploy_kit.doctor.facts.storage import StorageFacts, parse_storage
from deploy_kit.doctor.facts.topology import P2pMatrix, Topology, parse_p2p, parse_topology
from deploy_kit.doctor.model import Unknown

# What the live reader writes where the PCI bus holds no NVIDIA GPU.
NO_GPU_TEXT = "deploy-kit: no NVIDIA GPU on this machine's PCI bus"

Merged = TypeVar("Merged", KernelSettings, Limits, StorageFacts, DriverFacts, CpuFacts)


@dataclass
class Machine:
    """The facts of one machine; None or empty: that source was not there. `unknown` says what could not be
    read."""

    topology: Topology | None = None
    p2p: list[P2pMatrix] = field(default_factory=list)
    smi: list[SmiFacts] = field(default_factory=list)
    pci: list[PciDevice] = field(default_factory=list)
    log: KernelLog | None = None
    command_line: CommandLine | None = None
    settings: KernelSettings | None = None
    cpu: CpuFacts | None = None
    numa: NumaFacts | None = None
    nccl: list[NcclLog] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    bandwidth: BandwidthTest | None = None
    allreduce_times: list[AllreduceTime] = field(default_factory=list)
    driver: DriverFacts | None = None
    limits: Limits | None = None
    docker: DockerFacts | None = None
    cdi: CdiFacts | None = None
    environment: dict[str, str] | None = None
    nccl_builds: list[NcclBuilds] = field(default_factory=list)
    storage: StorageFacts | None = None
    virtual: str | None = None
    no_gpu: bool = False
    unknown: list[Unknown] = field(default_factory=list)
    text: str = ""

    @property
    def host_smi(self) -> list[SmiFacts]:
        """Return the nvidia-smi outputs of the host itself."""
        return [smi for smi in self.smi if not smi.in_container]

    @property
    def gpus(self) -> list[Gpu]:
        """Return the GPUs with what every nvidia-smi output of the host said about them, merged."""
        merged: list[Gpu] = []
        for smi in self.host_smi:
            for position, gpu in enumerate(smi.gpus):
                twin = next((i for i, other in enumerate(merged) if _same(gpu, other)), None)
                if twin is None and gpu.bus_id is None and gpu.index is None and smi is not self.host_smi[0]:
                    twin = position if position < len(merged) else None
                if twin is None:
                    merged.append(gpu)
                else:
                    merged[twin] = _merge_gpu(merged[twin], gpu)
        return merged

    @property
    def gpu_count(self) -> int | None:
        """Return how many GPUs there are, from the source that knows best; None when no source says."""
        if self.topology is not None:
            return len(self.topology.gpus)
        if any(smi.no_devices for smi in self.host_smi):
            return 0
        counts = [len(smi.gpus) for smi in self.host_smi if smi.gpus]
        matrix = [len(matrix.gpus) for matrix in self.p2p]
        pci = [device for device in self.pci if device.is_gpu]
        if matrix:
            return max(matrix)
        return max(counts, default=0) or len(pci) or None

    @property
    def recognised(self) -> bool:
        """Whether any source was recognised."""
        empty = Machine(text=self.text, unknown=self.unknown)
        return self != empty


def gather(blocks: Iterable[Block], unknown: Iterable[Unknown] = ()) -> Machine:
    """Given outputs of commands, return all facts in them. Every parser looks at every block: shape
    decides."""
    machine = Machine(unknown=list(unknown))
    texts = []
    for block in blocks:
        texts.append(f"{block.title}\n{block.text}" if block.title else block.text)
        machine.topology = machine.topology or parse_topology(block)
        machine.p2p += parse_p2p(block)
        if smi := parse_smi(block):
            machine.smi.append(smi)
        machine.pci += parse_pci(block)
        log = parse_kernel_log(block)
        machine.log = log if machine.log is None else _merge_logs(machine.log, log)
        command_line = parse_command_line(block)
        if command_line and (machine.command_line is None or machine.command_line.planned):
            machine.command_line = command_line
        machine.settings = _merge(machine.settings, parse_settings(block))
        machine.cpu = _merge(machine.cpu, parse_lscpu(block))
        machine.numa = machine.numa or parse_numactl(block)
        if nccl := parse_nccl(block):
            machine.nccl.append(nccl)
        machine.transfers += parse_transfers(block)
        machine.bandwidth = machine.bandwidth or parse_bandwidth_test(block)
        machine.allreduce_times += parse_allreduce_times(block)
        machine.driver = _merge(machine.driver, parse_driver(block))
        machine.limits = _merge(machine.limits, parse_limits(block))
        machine.docker = machine.docker or parse_docker(block)
        machine.cdi = machine.cdi or parse_cdi(block)
        if environment := parse_environment(block):
            machine.environment = {**(machine.environment or {}), **environment}
        if builds := parse_nccl_builds(block):
            machine.nccl_builds.append(builds)
        machine.storage = _merge(machine.storage, parse_storage(block))
        machine.virtual = machine.virtual or _virtual(block)
        machine.no_gpu = machine.no_gpu or NO_GPU_TEXT in block.text
    machine.text = "\n".join(texts)
    if machine.virtual is None and machine.cpu is not None:
        machine.virtual = machine.cpu.hypervisor
    return machine


def _virtual(block: Block) -> str | None:
    """Return the kind of virtual machine when the block says so."""
    if "detect-virt" in block.title and re.fullmatch(r"\s*[a-z-]+\s*", block.text):
        kind = block.text.strip()
        return (
            None if kind in ("none", "docker", "lxc", "podman", "container-other", "systemd-nspawn") else kind
        )
    if re.search(r"Hypervisor detected: (\S+)", block.text) and "BHYVE" not in block.text:
        return (re.search(r"Hypervisor detected: (\S+)", block.text) or [""])[0].split(": ")[-1]
    if re.search(
        r"\b(?:QEMU|Q35 \+ ICH9|i440FX|82G33/G31/P35/P31|440FX|VMware Virtual Platform)\b", block.text
    ):
        return "emulated chipset"
    if re.search(r"Virtualization Mode\s*:\s*Pass-?Through", block.text):
        return "pass-through"
    return None


def _same(one: Gpu, other: Gpu) -> bool:
    if one.bus_id and other.bus_id:
        return one.bus_id.lower() == other.bus_id.lower()
    return one.index is not None and one.index == other.index


def _merge_gpu(first: Gpu, second: Gpu) -> Gpu:
    changes = {
        name: value
        for name, value in vars(second).items()
        if vars(first).get(name) in (None, (), False) and value not in (None, (), False)
    }
    return replace(first, **changes)


def _merge(first: Merged | None, second: Merged | None) -> Merged | None:
    """Return `first` with its gaps filled from `second`."""
    if first is None or second is None:
        return first or second
    changes = {
        name: value
        for name, value in vars(second).items()
        if vars(first).get(name) in (None, (), {}, False) and value not in (None, (), {}, False)
    }
    return replace(first, **changes)


def _merge_logs(first: KernelLog, second: KernelLog | None) -> KernelLog:
    if second is None:
        return first
    for name, value in vars(second).items():
        if isinstance(value, list):
            getattr(first, name).extend(line for line in value if line not in getattr(first, name))
        elif name == "lines":
            first.lines += second.lines
        elif getattr(first, name) in (None, False):
            setattr(first, name, value)
    return first
