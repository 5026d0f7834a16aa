"""All facts of one machine, gathered from the outputs that are there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from deploy_kit.doctor.blocks import Block
from deploy_kit.doctor.facts.containers import CdiFacts, DockerFacts, parse_cdi, parse_docker
from deploy_kit.doctor.facts.cpu import CpuFacts, NumaFacts, parse_lscpu, parse_numactl
from deploy_kit.doctor.facts.driver import DriverFacts, parse_driver
from deploy_kit.doctor.facts.environment import parse_environment
from deploy_kit.doctor.facts.gpu import Gpu
from deploy_kit.doctor.facts.kernel import KernelLog, parse_kernel_log
from deploy_kit.doctor.facts.kernel_settings import (
    CommandLine,
    KernelSettings,
    parse_command_line,
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
from deploy_kit.doctor.facts.smi import SmiFacts, parse_smi
from deploy_kit.doctor.facts.storage import StorageFacts, parse_storage
from deploy_kit.doctor.facts.topology import P2pMatrix, Topology, parse_p2p, parse_topology
from deploy_kit.doctor.model import Unknown

# What is looked at for refusals of the container engine: the end of everything.
LONGEST_INPUT = 2_000_000
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
    _merged: tuple[int, list[Gpu]] | None = field(default=None, compare=False, repr=False)

    @property
    def host_smi(self) -> list[SmiFacts]:
        """Return the nvidia-smi outputs of the host itself."""
        return [smi for smi in self.smi if not smi.in_container]

    @property
    def gpus(self) -> list[Gpu]:
        """Return the GPUs with what every nvidia-smi output of the host said about them, merged."""
        if self._merged is None or self._merged[0] != len(self.smi):
            self._merged = (len(self.smi), _merge_gpus(self.host_smi))
        return self._merged[1]

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
    blocks = list(blocks)
    # Where the same shell also ran what is run on hosts only, all of it ran on the host.
    shells_of_hosts = {block.machine for block in blocks if block.shell_of_host}
    texts: list[str] = []
    logs: list[KernelLog] = []
    for block in blocks:
        texts += [block.title, block.text] if block.title else [block.text]
        machine.topology = machine.topology or parse_topology(block)
        machine.p2p += parse_p2p(block)
        if smi := parse_smi(block):
            on_host = smi.on_host or (block.machine in shells_of_hosts and not smi.in_container)
            machine.smi.append(replace(smi, on_host=on_host))
        machine.pci += parse_pci(block)
        if log := parse_kernel_log(block):
            logs.append(log)
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
            machine.environment = environment if machine.environment is None else machine.environment
            machine.environment.update(environment)
        if builds := parse_nccl_builds(block):
            machine.nccl_builds.append(builds)
        machine.storage = _merge(machine.storage, parse_storage(block))
        machine.virtual = machine.virtual or _virtual(block)
        machine.no_gpu = machine.no_gpu or block.has(NO_GPU_TEXT)
    machine.log = _merge_logs(logs)
    machine.text = _end_of(texts)
    if machine.virtual is None and machine.cpu is not None:
        machine.virtual = machine.cpu.hypervisor
    return machine


def _end_of(texts: list[str]) -> str:
    """Return as much of the texts' end as is looked at for refusals of the container engine."""
    kept: list[str] = []
    size = 0
    for text in reversed(texts):
        kept.append(text)
        size += len(text) + 1
        if size > LONGEST_INPUT:
            break
    return "\n".join(reversed(kept)) if len(kept) > 1 else "".join(kept)


def _virtual(block: Block) -> str | None:
    """Return the kind of virtual machine when the block says so."""
    if "detect-virt" in block.title and re.fullmatch(r"\s*[a-z-]+\s*", block.text):
        kind = block.text.strip()
        return (
            None if kind in ("none", "docker", "lxc", "podman", "container-other", "systemd-nspawn") else kind
        )
    detected = _HYPERVISOR.search(block.text)
    if detected and "BHYVE" not in block.text:
        return detected[1]
    if any(_CHIPSET.search(line) for line in block.lines_with(*_CHIPSET_WORDS)):
        return "emulated chipset"
    if _PASS_THROUGH.search(block.text):
        return "pass-through"
    return None


_HYPERVISOR = re.compile(r"Hypervisor detected: (\S+)")
_CHIPSET = re.compile(r"\b(?:QEMU|Q35 \+ ICH9|i440FX|82G33/G31/P35/P31|440FX|VMware Virtual Platform)\b")
_CHIPSET_WORDS = ("QEMU", "Q35 + ICH9", "440FX", "82G33/G31/P35/P31", "VMware Virtual Platform")
_PASS_THROUGH = re.compile(r"Virtualization Mode\s*:\s*Pass-?Through")


def _merge_gpus(outputs: list[SmiFacts]) -> list[Gpu]:
    """Return the GPUs of several outputs, each once: told apart by bus id, where one lacks it by index."""
    merged: list[Gpu] = []
    # The first place of each bus id; of each index; and of each index among those without a bus id.
    by_bus: dict[str, int] = {}
    by_index: dict[int, int] = {}
    by_index_alone: dict[int | None, int] = {}
    for number, smi in enumerate(outputs):
        for position, gpu in enumerate(smi.gpus):
            places = []
            if gpu.bus_id:
                places = [by_bus.get(gpu.bus_id.lower()), by_index_alone.get(gpu.index)]
            elif gpu.index is not None:
                places = [by_index.get(gpu.index)]
            twin = min((place for place in places if place is not None), default=None)
            if twin is None and gpu.bus_id is None and gpu.index is None and number:
                twin = position if position < len(merged) else None
            if twin is None:
                twin = len(merged)
                merged.append(gpu)
            else:
                before = merged[twin]
                if not before.bus_id and by_index_alone.get(before.index) == twin:
                    del by_index_alone[before.index]
                merged[twin] = _merge_gpu(before, gpu)
            now = merged[twin]
            if now.bus_id:
                by_bus[now.bus_id.lower()] = min(twin, by_bus.get(now.bus_id.lower(), twin))
            if now.index is not None:
                by_index[now.index] = min(twin, by_index.get(now.index, twin))
                if not now.bus_id:
                    by_index_alone[now.index] = min(twin, by_index_alone.get(now.index, twin))
    return merged


def _merge_gpu(first: Gpu, second: Gpu) -> Gpu:
    changes = _gaps_filled(_NOTHING_OF_A_GPU, first, second)
    return replace(first, **changes) if changes else first


def _merge(first: Merged | None, second: Merged | None) -> Merged | None:
    """Return `first` with its gaps filled from `second`."""
    if first is None or second is None:
        return first or second
    return replace(first, **_gaps_filled(type(first)(), first, second))


def _gaps_filled(nothing: object, first: object, second: object) -> dict[str, Any]:
    """Return what `second` knows and `first` does not: "off" and 0 are knowledge where None means that it was
    not read."""
    unread = vars(nothing)
    return {
        name: value
        for name, value in vars(second).items()
        if value != unread[name] and vars(first)[name] == unread[name]
    }


_NOTHING_OF_A_GPU = Gpu()


def _merge_logs(logs: list[KernelLog]) -> KernelLog | None:
    """Return all logs as one; a line of a later log that is known already is not repeated."""
    if not logs:
        return None
    first, *rest = logs
    for name in vars(first) if rest else ():
        value = getattr(first, name)
        if isinstance(value, list):
            known = set(value)
            for item in (item for log in rest for item in getattr(log, name)):
                if item not in known:
                    known.add(item)
                    value.append(item)
        elif name == "lines":
            first.lines += sum(log.lines for log in rest)
        else:
            told = (getattr(log, name) for log in logs)
            setattr(first, name, next((item for item in told if item not in (None, False)), value))
    return first
