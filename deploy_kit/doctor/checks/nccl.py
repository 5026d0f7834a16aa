"""What NCCL's own log says about the way the data takes."""

from __future__ import annotations

from collections.abc import Iterator

from deploy_kit.doctor.checks.peers import NO_P2P
from deploy_kit.doctor.facts.machine import Machine
from deploy_kit.doctor.facts.nccl import NcclLog
from deploy_kit.doctor.model import Finding, Verdict

# Below these, NCCL's graph search has failed on such a box: a healthy one models 20 GB/s and more a channel
# pair.
LOW_RING_CHANNELS = 2
LOW_RING_GBPS = 20.0
LOW_TREE_GBPS = 1.0


def check(machine: Machine) -> Iterator[Finding]:
    """Yield what each NCCL log says."""
    for log in machine.nccl:
        yield from _log(log, machine)


def _log(log: NcclLog, machine: Machine) -> Iterator[Finding]:
    p2p = sum(count for kind, count in log.transports.items() if kind.startswith("P2P"))
    shm = sum(count for kind, count in log.transports.items() if kind.startswith("SHM"))
    net = sum(count for kind, count in log.transports.items() if kind.startswith("NET"))
    off_on_purpose = log.environment.get("NCCL_P2P_DISABLE") == "1" or "NCCL_P2P_DISABLE=1" in log.title
    pairs = ", ".join(f"{a}-{b}" for a, b in log.disabled_pairs)
    if log.no_algorithm:
        yield Finding(
            "nccl.no-algorithm",
            Verdict.FAIL,
            "NCCL has no algorithm left for a collective: NCCL_ALGO or NCCL_PROTO excludes all of them",
            "unset NCCL_ALGO (or list several: NCCL_ALGO=Ring,Tree)",
            (log.no_algorithm,),
            consequence="a crash at graph capture, after the load",
            ansible="nccl_environment",
        )
    if shm and not p2p and not net and off_on_purpose:
        yield Finding(
            "nccl.p2p-off-on-purpose",
            Verdict.WARN,
            "all traffic by host memory (SHM) because NCCL_P2P_DISABLE=1 is set",
            "leave it out once P2P is proven to deliver (`deploy-kit probe allreduce`)",
            tuple(log.transport_lines[:2]),
            consequence=NO_P2P,
            ansible="nccl_environment",
        )
    elif (shm and not p2p) or log.disabled_pairs:
        seen = "all traffic by host memory (SHM)" if shm and not p2p else "P2P in part"
        between = f"; peer access disabled at driver or platform level between GPUs {pairs}" if pairs else ""
        if not pairs:
            between = ": no P2P between the GPUs that are in the log"
            if log.environment.get("NCCL_P2P_LEVEL"):
                between += f" (NCCL_P2P_LEVEL={log.environment['NCCL_P2P_LEVEL']})"
        yield Finding(
            "nccl.shm-fallback",
            Verdict.FAIL,
            f"{seen}{between}. NCCL prints this only for near pairs: the log does not tell about those"
            f" across sockets",
            "`nvidia-smi topo -p2p r` and `topo -p2p w` to learn why; across sockets also NCCL_P2P_LEVEL=SYS",
            (*log.disabled_lines[:2], *log.transport_lines[:2]),
            consequence=NO_P2P,
            ansible="nccl_environment",
        )
    elif shm and p2p:
        yield Finding(
            "nccl.shm-in-part",
            Verdict.WARN,
            f"P2P between some GPUs, host memory (SHM) between others ({shm} of {shm + p2p} connections)",
            "across sockets NCCL uses P2P only with NCCL_P2P_LEVEL=SYS; near pairs: `nvidia-smi topo -p2p r`",
            tuple(log.transport_lines[:3]),
            consequence="the slowest connection of the ring sets the all-reduce time",
            ansible="nccl_environment",
        )
    if net and log.network_same_host:
        kinds = sorted(kind for kind in log.transports if kind.startswith("NET"))
        yield Finding(
            "nccl.network-on-one-host",
            Verdict.FAIL,
            f"GPUs of one host talk over the network ({', '.join(kinds)}): neither P2P nor shared memory"
            f" is usable",
            "give the container `ipc: host` (or a large shm_size), unset NCCL_SHM_DISABLE, run all ranks"
            " in one container;"
            " then `nvidia-smi topo -p2p r`",
            tuple(log.transport_lines[:2]),
            consequence="all-reduces take milliseconds",
        )
    poor = (
        log.ring_channels is not None
        and log.ring_channels <= LOW_RING_CHANNELS
        and (log.ring_bandwidth_gbps or 0) < LOW_RING_GBPS
    ) or (log.tree_bandwidth_gbps is not None and log.tree_bandwidth_gbps < LOW_TREE_GBPS)
    if poor:
        bands = " and ".join(
            f"{b:g}" for b in (log.ring_bandwidth_gbps, log.tree_bandwidth_gbps) if b is not None
        )
        lead = "P2P in use, but " if p2p and not shm else ""
        yield Finding(
            "nccl.poor-graph",
            Verdict.WARN,
            f"{lead}NCCL's graph search fell to {log.ring_channels or log.channels or 1} channels (bw"
            f" {bands}): slow small"
            " all-reduces",
            "an NCCL with the fix for this platform (AMD Turin), or NCCL_GRAPH_FILE, or"
            " NCCL_MIN_NCHANNELS=8 /"
            " NCCL_PROTO=LL after a measurement (`deploy-kit probe allreduce`)",
            tuple(log.pattern_lines[:2]),
            ansible="nccl_environment",
        )
    elif p2p and not shm and not net and not log.disabled_pairs:
        ways = ", ".join(sorted(kind for kind in log.transports if kind.startswith("P2P")))
        yield Finding(
            "nccl",
            Verdict.OK,
            f"NCCL uses P2P ({ways}) between the GPUs in the log",
            None,
            tuple(log.transport_lines[:1]),
        )
    yield from _warnings(log)
    if log.init_complete and not log.transports and not log.stalled and not _proven(machine):
        yield Finding(
            "nccl.unproven",
            Verdict.UNKNOWN,
            "NCCL initialised, but the log shows no transfer that ended",
            "run an all-reduce (`deploy-kit probe allreduce`, or all_reduce_perf of nccl-tests)",
        )
    elif log.init_started > log.init_complete and not log.transports:
        yield Finding(
            "nccl.init-unfinished",
            Verdict.UNKNOWN,
            f"{log.init_started} ranks began to initialise, {log.init_complete} finished: cut off, or"
            f" hanging in init",
            "paste the end of the log; when nothing more comes, look at the rank that is missing",
        )


def _proven(machine: Machine) -> bool:
    return bool(machine.transfers)


def _warnings(log: NcclLog) -> Iterator[Finding]:
    for warning in log.warnings:
        lower = warning.lower()
        if "shared memory" in lower or "/dev/shm" in lower:  # noqa: S108
            yield Finding(
                "nccl.shm-too-small",
                Verdict.FAIL,
                "NCCL cannot get shared memory: /dev/shm is too small or full",
                "give the container `ipc: host` or shm_size: 32g",
                (warning,),
            )
        elif "peer access is not supported" in lower or ("ipc" in lower and "fail" in lower):
            yield Finding(
                "nccl.peer-access",
                Verdict.FAIL,
                "CUDA refused peer access between two GPUs",
                "`nvidia-smi topo -p2p r`; in containers all GPUs must be visible to each rank",
                (warning,),
                consequence=NO_P2P,
            )
        elif "cuda failure" in lower or "unhandled" in lower or "timeout" in lower or "timed out" in lower:
            yield Finding(
                "nccl.failure",
                Verdict.FAIL,
                f"NCCL failed: {warning.split('NCCL WARN', 1)[-1].strip()[:160]}",
                "the first WARN of all ranks is the cause; `dmesg` for Xid lines at that time",
                (warning,),
            )
        else:
            continue
        return
