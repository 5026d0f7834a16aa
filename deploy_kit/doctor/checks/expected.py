"""The machine against its host file: what it should have, and does not."""

from __future__ import annotations

from collections.abc import Iterator

from deploy_kit.configs.schema import Host
from deploy_kit.doctor.facts.cpu import expand_cpus
from deploy_kit.doctor.facts.machine import Machine
from deploy_kit.doctor.model import Finding, Verdict

_MIB = 1024**2


def check(machine: Machine, host: Host) -> Iterator[Finding]:
    """Yield each difference between the machine and its host file; facts that were not read yield nothing."""
    found = machine.gpu_count
    if found is not None and found != host.gpus:
        yield Finding(
            "expected.gpus",
            Verdict.FAIL,
            f"{found} GPUs, the host file {host.name} says {host.gpus}",
            "look for missing cards (`lspci -d 10de:`, Xid 79 in `dmesg`), or correct the host file",
        )
    elif found is not None:
        yield Finding("expected.gpus", Verdict.OK, f"{found} GPUs, as {host.name} says")
    for gpu in machine.gpus:
        if host.gpu_name and gpu.name and not _same_name(host.gpu_name, gpu.name):
            yield _differs("name", gpu.label, gpu.name, host.gpu_name)
        if host.capability and gpu.compute_capability and gpu.compute_capability != host.capability:
            yield _differs(
                "capability", gpu.label, gpu.compute_capability, host.capability, verdict=Verdict.FAIL
            )
        if host.memory_bytes and gpu.fb_mib and gpu.fb_mib * _MIB < 0.95 * host.memory_bytes:
            yield _differs("memory", gpu.label, f"{gpu.fb_mib} MiB", f"{host.memory_bytes // _MIB} MiB")
        if host.pcie and gpu.max_gen and gpu.max_gen < host.pcie.generation:
            yield _differs("pcie-generation", gpu.label, gpu.max_gen, host.pcie.generation)
        if host.pcie and gpu.current_width and gpu.current_width < host.pcie.width:
            yield _differs("pcie-width", gpu.label, f"x{gpu.current_width}", f"x{host.pcie.width}")
    topology = machine.topology
    if topology is not None and host.numa and topology.numa:
        expected = {str(node.node): sorted(node.gpus) for node in host.numa}
        groups = topology.numa_groups()
        if groups != expected:
            yield Finding(
                "expected.numa",
                Verdict.WARN,
                f"GPUs on NUMA nodes {groups}, the host file says {expected}",
                "correct [[numa]] in the host file: CPU sets of ranks are taken from it",
            )
    if topology is not None and topology.nvlink != host.nvlink:
        yield _differs("nvlink", "the GPUs", topology.nvlink, host.nvlink)
    offline = machine.cpu.offline if machine.cpu else None
    if offline:
        named = {cpu for node in host.numa for cpu in expand_cpus(node.cpus)} & set(expand_cpus(offline))
        if named:
            yield Finding(
                "expected.offline-cpus",
                Verdict.WARN,
                f"the host file's CPU sets name CPU {', '.join(map(str, sorted(named)[:8]))}, which is"
                f" off line",
                "leave it out of [[numa]] cpus: a container with it does not start",
            )


def _differs(
    what: str, who: str, found: object, expected: object, verdict: Verdict = Verdict.WARN
) -> Finding:
    return Finding(
        f"expected.{what}",
        verdict,
        f"{who}: {what.replace('-', ' ')} {found}, the host file says {expected}",
        "find out why, or correct the host file",
    )


def _same_name(expected: str, found: str) -> bool:
    # nvidia-smi's table cuts names: "NVIDIA RTX PRO 6000 Blac...".
    short = found.removesuffix("...").strip().lower()
    return (
        expected.lower() in found.lower() or short in expected.lower() or expected.lower().startswith(short)
    )
