"""CPUs, NUMA nodes, and the kernel settings that matter."""

from __future__ import annotations

from collections.abc import Iterator

from deploy_kit.doctor.facts.cpu import CpuFacts, NumaFacts
from deploy_kit.doctor.facts.machine import Machine
from deploy_kit.doctor.model import Finding, Verdict


def check(machine: Machine) -> Iterator[Finding]:
    """Yield what lscpu, numactl and settings say."""
    if machine.cpu is not None:
        yield from _cpu(machine.cpu, has_gpu=not machine.no_gpu)
    if machine.numa is not None:
        yield from _numa(machine.numa)
    settings = machine.settings
    if settings is None:
        return
    if settings.numa_balancing:
        yield Finding(
            "kernel.numa-balancing",
            Verdict.WARN,
            "automatic NUMA balancing is on: the kernel moves pages under running ranks",
            "sysctl kernel.numa_balancing=0",
            (f"kernel.numa_balancing = {settings.numa_balancing}",),
            consequence="jitter in launch and all-reduce times",
            ansible="kernel_numa_balancing",
        )
    elif settings.numa_balancing == 0:
        yield Finding("kernel.numa-balancing", Verdict.OK, "automatic NUMA balancing is off")
    slow = [governor for governor in settings.governors if governor != "performance"]
    if slow:
        yield Finding(
            "cpu.governor",
            Verdict.WARN,
            f"CPU frequency governor {', '.join(slow)}: CPUs slow down between kernel launches",
            "set the governor to performance (`cpupower frequency-set -g performance`)",
            tuple(f"scaling_governor {governor}" for governor in slow),
            consequence="longer host gaps in each decode step",
            ansible="cpu_governor",
        )
    elif settings.governors:
        yield Finding("cpu.governor", Verdict.OK, "CPU frequency governor performance")
    if settings.hmm_disabled is False:
        yield Finding(
            "driver.hmm",
            Verdict.WARN,
            "heterogeneous memory management (HMM) of nvidia-uvm is on; on such boxes it was seen to"
            " cost P2P",
            "options nvidia_uvm uvm_disable_hmm=1 in /etc/modprobe.d, reload the module",
            ("uvm_disable_hmm = N",),
            ansible="nvidia_uvm_disable_hmm",
        )
    elif settings.hmm_disabled:
        yield Finding("driver.hmm", Verdict.OK, "HMM of nvidia-uvm is off")


def _cpu(cpu: CpuFacts, *, has_gpu: bool) -> Iterator[Finding]:
    if cpu.hypervisor and has_gpu:
        yield Finding(
            "cpu.virtual",
            Verdict.WARN,
            f"this is a virtual machine ({cpu.hypervisor}): topology and NUMA are what the hypervisor shows",
            "check P2P with `nvidia-smi topo -p2p r`; pin virtual CPUs and memory to the GPUs' node on"
            " the host",
        )
    if cpu.sockets is None and cpu.online is None and cpu.numa_nodes is None:
        return
    parts = [
        f"{cpu.sockets} socket{'s' if cpu.sockets != 1 else ''}" if cpu.sockets is not None else "",
        f"{cpu.numa_nodes} NUMA node{'s' if cpu.numa_nodes != 1 else ''}"
        if cpu.numa_nodes is not None
        else "",
        f"{cpu.online_count} CPUs on line" if cpu.online_count is not None else "",
    ]
    text = ", ".join(part for part in parts if part)
    if cpu.offline:
        yield Finding(
            "cpu.offline",
            Verdict.OK,
            f"CPU {cpu.offline} off line; {text}: harmless",
            "mention only: affinity strings must leave it out",
            (f"Off-line CPU(s) list: {cpu.offline}",),
        )
    else:
        yield Finding("cpu", Verdict.OK, text)


def _numa(numa: NumaFacts) -> Iterator[Finding]:
    if numa.truncated:
        yield Finding(
            "numa.truncated",
            Verdict.UNKNOWN,
            f"the list of NUMA nodes is cut off ({len(numa.nodes)} of {numa.announced or '?'} complete)",
            "paste all of `numactl -H`",
        )
    bare = [node.node for node in numa.nodes if node.cpus and node.size_mb == 0]
    without_cpus = [node.node for node in numa.nodes if node.cpus == () and node.size_mb]
    sizes = [node.size_mb for node in numa.nodes if node.cpus and node.size_mb]
    if bare:
        rest = f"; {_and(without_cpus)} have memory and no CPUs" if without_cpus else ""
        yield Finding(
            "numa.memoryless-node",
            Verdict.WARN,
            f"node {_and(bare)} has CPUs and no memory{rest}: per-rank cpunodebind + membind to one node"
            f" cannot work",
            "turn NUMA binding off (no membind), or put memory modules into that socket's slots",
            tuple(f"node {n} size: 0 MB" for n in bare),
            consequence="numactl --membind fails at start, or every access goes to another node",
            ansible="numa_binding",
        )
    elif without_cpus:
        yield Finding(
            "numa.cpuless-node",
            Verdict.OK,
            f"node {_and(without_cpus)} has memory and no CPUs (CXL or device memory); bind only to nodes"
            f" with both",
        )
    if len(sizes) > 1 and max(sizes) > 2 * min(sizes):
        yield Finding(
            "numa.unbalanced",
            Verdict.WARN,
            f"memory is unevenly spread over the NUMA nodes ({min(sizes)} to {max(sizes)} MB)",
            "fill both sockets' memory channels alike; do not bind memory to the small node",
        )
    full = [
        n.node
        for n in numa.nodes
        if n.size_mb and n.free_mb is not None and n.cpus and n.free_mb < 0.01 * n.size_mb
    ]
    if full and not bare:
        yield Finding(
            "numa.node-full",
            Verdict.WARN,
            f"node {_and(full)} has almost no free memory",
            "free page cache or memory there before binding ranks to it",
        )
    if not numa.truncated and not bare and not full:
        yield Finding(
            "numa",
            Verdict.OK,
            f"{len(numa.nodes)} NUMA node{'s' if len(numa.nodes) != 1 else ''} with memory",
        )


def _and(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:-1])) + (" and " if len(numbers) > 1 else "") + str(numbers[-1])
