"""How GPUs reach each other: topology, the P2P matrix, and transfers that prove or refute it."""

from __future__ import annotations

from collections.abc import Iterator

from deploy_kit.doctor.facts.machine import Machine
from deploy_kit.doctor.facts.topology import P2pMatrix, Topology
from deploy_kit.doctor.model import Finding, Verdict

# Published for 8 x RTX PRO 6000 and this model at one stream (see docs/doctor.md): what P2P is worth.
NO_P2P = "every all-reduce goes through host memory: expect about 44 instead of 90 tok/s at one stream"

# A judgement: about three times the 34 us published for eight such GPUs at 64 KB; 122 of them take 12 ms.
SLOW_SMALL_ALLREDUCE_US = 100.0

_WORDS = {
    "CNS": "chipset not supported: the platform is not on the driver's table, which is"
    " the usual sign of a virtual"
    " machine with an emulated chipset",
    "GNS": "GPU not supported: the driver does not grant peer access on this GPU model"
    " (GeForce cards, or BAR1"
    " smaller than the GPU's memory)",
    "TNS": "topology not supported: the driver grants no peer access over this path"
    " (between sockets or host bridges)",
    "NS": "not supported between these GPUs",
    "DR": "disabled by a registry key of the driver module",
    "CS": "chipset not supported",
    "U": "the driver does not know",
}
_REMEDIES = {
    "CNS": "run on bare metal, or pass the GPUs through with a real PCIe topology"
    " (virtual root ports, all GPUs of one"
    " switch together) and a driver that allows it; until then set NCCL_P2P_DISABLE=1",
    "GNS": "a driver with P2P for this GPU (on RTX PRO cards the open kernel modules"
    " have it; GeForce cards need a"
    " patched one), with Resizable BAR on; until then NCCL_P2P_DISABLE=1",
    "TNS": "move the GPUs to one socket or switch, or a driver with P2P override for this path"
    " (NVreg_RegistryDwords); `nvidia-smi topo -m` shows the path",
    "NS": "`nvidia-smi topo -p2p r`, `w` and `topo -m` for all pairs; update the"
    " driver; check MIG and Resizable BAR",
    "DR": "remove the P2P entry from NVreg_RegistryDwords in /etc/modprobe.d, rebuild the initramfs, reboot",
    "CS": "run on bare metal or update the driver",
    "U": "`nvidia-smi topo -p2p r` again with all GPUs visible; look for driver errors in `dmesg`",
}


def check(machine: Machine) -> Iterator[Finding]:
    """Yield what topology, P2P matrices and transfer tests say."""
    if machine.topology is not None:
        yield from _topology(machine.topology)
    for matrix in machine.p2p:
        yield from _matrix(matrix, machine)
    yield from _transfers(machine)
    yield from _bandwidth(machine)
    yield from _small_allreduce(machine)


def _topology(topology: Topology) -> Iterator[Finding]:
    count = len(topology.gpus)
    if topology.missing:
        yield Finding(
            "topology.truncated",
            Verdict.UNKNOWN,
            f"the matrix is cut off: rows or cells of {', '.join(topology.missing)} are missing",
            "paste all of `nvidia-smi topo -m`",
        )
        return
    if 0 < len(topology.numa) < count:
        yield Finding(
            "topology.affinity-cut",
            Verdict.UNKNOWN,
            "the NUMA node is told for some GPUs only: the table is cut off",
            "paste all of `nvidia-smi topo -m`",
        )
        return
    groups = topology.numa_groups()
    sockets = topology.socket_groups()
    parts = []
    if len(groups) > 1 and len({len(group) for group in groups.values()}) == 1:
        parts.append(f"{_count(len(groups))} NUMA nodes of {len(next(iter(groups.values())))} GPUs")
    elif len(groups) == 1 and count > 1:
        parts.append(f"{count} GPUs on one node")
    elif not groups and len(sockets) > 1 and len({len(group) for group in sockets}) == 1:
        parts.append(f"{count} GPUs in {_count(len(sockets))} groups of {len(sockets[0])}")
    else:
        parts.append(f"{count} GPU{'s' if count != 1 else ''}")
    for path in ("PIX", "PXB"):
        if pairs := topology.pairs(path):
            plural = "s" if len(pairs) != 1 else ""
            parts += [f"{len(pairs)} {path} pair{plural} (behind a switch)"]
    if not topology.switch and count > 1 and not topology.nvlink:
        parts.append("no switch")
    parts.append("NVLink between GPUs" if topology.nvlink else "no NVLink")
    if topology.worst_path:
        parts.append(f"farthest path {topology.worst_path}")
    remedies = []
    if topology.worst_path == "SYS":
        remedies.append(
            "set NCCL_P2P_LEVEL=SYS: without it NCCL uses shared host memory (SHM), not P2P, between the"
            " sockets"
        )
    if not topology.switch and not topology.nvlink and count > 1:
        remedies.append(
            "custom CUDA all-reduce kernels need a driver P2P override on direct-attached slots; NCCL"
            " alone does not"
        )
    yield Finding(
        "topology",
        Verdict.OK,
        "; ".join(parts),
        "; ".join(remedies) or None,
        evidence=tuple(
            f"GPU{row} {path} GPU{column}" for (row, column), path in list(topology.paths.items())[:2]
        ),
        ansible="nccl_environment" if topology.worst_path == "SYS" else None,
    )
    sizes = {node: len(gpus) for node, gpus in groups.items()}
    if len(sizes) > 1 and len(set(sizes.values())) > 1:
        placed = ", ".join(f"node {node}: {n}" for node, n in sizes.items())
        yield Finding(
            "topology.unbalanced",
            Verdict.WARN,
            f"GPUs are spread unevenly over the NUMA nodes ({placed})",
            "move cards so that each socket has as many GPUs, or run tensor parallel inside one node",
            consequence="rings cross the socket link more often than they must",
        )
    odd = {pair for pair, path in topology.paths.items() if path == "N/A"}
    if odd:
        yield Finding(
            "topology.unknown-path",
            Verdict.UNKNOWN,
            f"the path of {len(odd) // 2 or 1} GPU pairs is N/A: the platform hides it (a container or a VM)",
            "run `nvidia-smi topo -m` on the host itself",
        )


def _matrix(matrix: P2pMatrix, machine: Machine) -> Iterator[Finding]:
    word = matrix.mode or "peer access"
    if matrix.missing:
        yield Finding(
            "p2p.truncated",
            Verdict.UNKNOWN,
            "the P2P matrix is cut off: not all pairs are in it",
            "paste all of `nvidia-smi topo -p2p r` and `w`",
        )
    refused: dict[str, list[tuple[int, int]]] = {}
    for pair, status in matrix.status.items():
        if status not in ("OK", "X"):
            refused.setdefault(status, []).append(pair)
    granted = sum(1 for status in matrix.status.values() if status == "OK")
    if matrix.mode == "nvlink":
        yield Finding(
            "topology.nvlink",
            Verdict.OK,
            "NVLink between GPUs"
            if granted
            else "no NVLink between the GPUs (NS is normal on a PCIe-only box)",
        )
        return
    for status, pairs in refused.items():
        evidence = tuple(f"GPU{a} - GPU{b}: {status}" for a, b in pairs[:4])
        where = "all GPU pairs" if len(pairs) == len(matrix.status) else _pairs(pairs)
        if status == "N/A" or status == "U":
            yield Finding(
                "p2p.unknown",
                Verdict.UNKNOWN,
                f"the driver does not say whether P2P works for {where} ({status})",
                _REMEDIES["U"],
                evidence,
            )
        elif matrix.mode == "atomics":
            yield Finding(
                "p2p.no-atomics",
                Verdict.WARN if granted else Verdict.OK,
                f"no P2P atomics for {where} ({status}): usual over PCIe; NCCL does not need them",
                None,
                evidence,
            )
        else:
            known_virtual = f" (here: {machine.virtual})" if machine.virtual and status == "CNS" else ""
            yield Finding(
                "p2p.not-granted",
                Verdict.FAIL,
                f"P2P ({word}) is not granted for {where}: {status},"
                f" {_WORDS.get(status, 'refused')}{known_virtual}",
                _REMEDIES.get(status, _REMEDIES["NS"]),
                evidence,
                consequence=NO_P2P,
            )
    if granted and not refused and not matrix.missing:
        proven = any(t.p2p and t.outcome == "ok" for t in machine.transfers)
        tail = "and a transfer with it succeeded" if proven else "this is no proof that transfers work"
        yield Finding(
            "p2p.granted",
            Verdict.OK,
            f"the driver grants P2P ({word}) between all {len(matrix.gpus)} GPUs; {tail}",
            None if proven else "`deploy-kit probe allreduce` proves it",
            tuple(f"GPU{a} - GPU{b}: OK" for a, b in list(matrix.status)[:1]),
        )


def _transfers(machine: Machine) -> Iterator[Finding]:
    with_p2p = [t for t in machine.transfers if t.p2p]
    bad = [t for t in with_p2p if t.outcome in ("hang", "wrong", "crash")]
    stalled = [
        log.stalled
        for log in machine.nccl
        if log.stalled and not any("P2P_DISABLE" in log.title for _ in (0,))
    ]
    works_without = any(not t.p2p and t.outcome == "ok" for t in machine.transfers)
    granted = any("OK" in matrix.status.values() for matrix in machine.p2p)
    if bad or stalled:
        outcome = bad[0].outcome if bad else "hang"
        what = {"hang": "the first transfer never returns", "wrong": "transfers deliver wrong data"}.get(
            outcome, outcome
        )
        if granted or works_without:
            because = " (it works with P2P disabled)" if works_without else ""
            yield Finding(
                "p2p.not-delivering",
                Verdict.FAIL,
                f"P2P is granted but not delivering: {what}{because}. Suspects: ACS redirect on the PCIe"
                f" ports, IOMMU"
                " translation, or the driver's mapping",
                "look at ACSCtl of root and switch ports (`sudo lspci -vv`: ReqRedir, CmpltRedir must be"
                " off) and at"
                " iommu= (pt or off); until that is fixed set NCCL_P2P_DISABLE=1",
                tuple(t.line for t in bad[:2]) or tuple(stalled[:2]),
                consequence="a load ends in a hang at graph capture or the first request",
                ansible="pcie_disable_acs, kernel_iommu",
            )
        else:
            yield Finding(
                "transfer.failed",
                Verdict.FAIL,
                f"a transfer between GPUs failed: {what}",
                "run it again with NCCL_P2P_DISABLE=1: if that works, P2P is granted but not delivering",
                tuple(t.line for t in bad[:2]) or tuple(stalled[:2]),
            )
    elif any(t.outcome != "ok" for t in machine.transfers):
        first = next(t for t in machine.transfers if t.outcome != "ok")
        yield Finding(
            "transfer.failed",
            Verdict.FAIL,
            "transfers fail even with P2P disabled: not (only) P2P is at fault",
            "check /dev/shm, the driver and `dmesg`",
            (first.line,),
        )


def _bandwidth(machine: Machine) -> Iterator[Finding]:
    test = machine.bandwidth
    if test is None:
        return
    if test.latency_on_us is not None and test.latency_on_us > 100:
        yield Finding(
            "p2p.latency",
            Verdict.FAIL,
            f"P2P writes take {test.latency_on_us:.0f} µs between GPUs: peer access is granted but does"
            f" not deliver"
            " (IOMMU translation or ACS redirect)",
            "boot with iommu=pt (or off) and switch off ACS redirection; until then NCCL_P2P_DISABLE=1",
            consequence=NO_P2P,
            ansible="kernel_iommu, pcie_disable_acs",
        )
    if test.bandwidth_on is not None and test.bandwidth_off is not None:
        if test.bandwidth_on < 0.5 * test.bandwidth_off:
            yield Finding(
                "p2p.bandwidth",
                Verdict.FAIL,
                f"P2P is slower than host memory ({test.bandwidth_on:.1f} against"
                f" {test.bandwidth_off:.1f} GB/s)",
                "look at ACS redirection, iommu= and the links; until then NCCL_P2P_DISABLE=1",
                ansible="pcie_disable_acs, kernel_iommu",
            )
        elif test.latency_on_us is None or test.latency_on_us <= 100:
            yield Finding(
                "p2p.bandwidth",
                Verdict.OK,
                f"P2P copies run at {test.bandwidth_on:.1f} GB/s (without P2P {test.bandwidth_off:.1f})",
            )
    if test.no_access:
        yield Finding(
            "p2p.not-granted",
            Verdict.FAIL,
            "CUDA reports no peer access between GPUs",
            "`nvidia-smi topo -p2p r` says why",
            test.no_access[:4],
            consequence=NO_P2P,
        )


def _small_allreduce(machine: Machine) -> Iterator[Finding]:
    wrong = [row for row in machine.allreduce_times if row.wrong]
    if wrong:
        yield Finding(
            "allreduce.wrong",
            Verdict.FAIL,
            f"an all-reduce gave {wrong[0].wrong} wrong values at {wrong[0].size_bytes} bytes: transfers"
            f" deliver wrong data",
            "run it with NCCL_P2P_DISABLE=1: when that is right, P2P corrupts data (ACS, IOMMU, driver"
            " mapping)",
        )
    times = [row for row in machine.allreduce_times if 1024 <= row.size_bytes <= 65536]
    slow = [row for row in times if row.time_us > SLOW_SMALL_ALLREDUCE_US]
    if slow:
        worst = max(slow, key=lambda row: row.time_us)
        yield Finding(
            "allreduce.slow",
            Verdict.WARN,
            f"a small all-reduce takes {worst.time_us:.0f} µs ({worst.size_bytes} bytes); healthy boxes"
            f" of this kind take"
            " 27 to 34 µs at 16 to 64 KB over 8 GPUs",
            "look for P2P, ACS and IOMMU faults; then `deploy-kit probe allreduce`",
            tuple(f"{row.size_bytes} bytes: {row.time_us:g} µs" for row in slow[:3]),
            consequence="times 122 all-reduces for each decode or verify forward of 61 layers",
        )
    elif times:
        worst = max(times, key=lambda row: row.time_us)
        yield Finding("allreduce", Verdict.OK, f"small all-reduces take up to {worst.time_us:.0f} µs")


def _pairs(pairs: list[tuple[int, int]]) -> str:
    unique = sorted({(min(pair), max(pair)) for pair in pairs})
    shown = ", ".join(f"{a}-{b}" for a, b in unique[:6])
    return (
        f"{len(unique)} GPU pair{'s' if len(unique) != 1 else ''} ({shown}{', …' if len(unique) > 6 else ''})"
    )


def _count(number: int) -> str:
    return {1: "one", 2: "two", 3: "three", 4: "four"}.get(number, str(number))
