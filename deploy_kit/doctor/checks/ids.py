"""The ids that findings can have; `--only` is checked against them, so that no misspelt word looks passed."""

from __future__ import annotations

# An id that ends in a mark (".", "-") is a family: what follows is read from the machine.
IDS = (
    "acs", "acs.denied", "acs.override", "acs.redirect",
    "allreduce", "allreduce.slow", "allreduce.wrong",
    "container.", "container.cdi-devices", "container.cgroup-reload", "container.gpu",
    "container.no-cdi-devices", "container.no-devices", "container.no-nvidia-runtime",
    "container.old-driver-libraries", "container.snap",
    "cpu", "cpu.governor", "cpu.offline", "cpu.offline-at-boot", "cpu.virtual",
    "disk", "disk.full", "disk.read",
    "driver.bound", "driver.closed-module", "driver.dkms", "driver.hmm", "driver.init-failed",
    "driver.loaded", "driver.mismatch", "driver.not-answering", "driver.not-bound", "driver.not-built",
    "driver.not-installed", "driver.not-loaded", "driver.nouveau", "driver.open-module",
    "driver.secure-boot", "driver.vfio",
    "environment", "environment.",
    "expected.", "expected.capability", "expected.gpus", "expected.memory", "expected.numa",
    "expected.nvlink", "expected.offline-cpus", "expected.pcie-generation", "expected.pcie-width",
    "gpu", "gpu.absent", "gpu.bar-not-assigned", "gpu.bar1", "gpu.compute-mode", "gpu.ecc",
    "gpu.ecc-history", "gpu.ecc-threshold", "gpu.error", "gpu.inforom", "gpu.listing-cut", "gpu.mig",
    "gpu.mig-pending", "gpu.none", "gpu.off-the-bus",
    "gpu.persistence", "gpu.power", "gpu.recovery", "gpu.row-remap-failed", "gpu.row-remap-pending",
    "gpu.thermal", "gpu.virtual", "gpu.xid-",
    "input.not-recognised", "input.nothing-to-say",
    "iommu", "iommu.faults", "iommu.planned", "iommu.translation", "iommu.unknown",
    "kernel.mitigations", "kernel.numa-balancing",
    "limits.memlock", "limits.shm", "limits.shm-full",
    "link", "link.aer-corrected", "link.aer-uncorrected", "link.aspm", "link.aspm-policy",
    "link.generation", "link.generation-under-load", "link.gone", "link.limited-at-boot", "link.replays",
    "link.slot-generation", "link.width",
    "log", "log.denied", "log.too-short",
    "memory", "memory.low",
    "nccl", "nccl.builds", "nccl.failure", "nccl.init-unfinished", "nccl.network-on-one-host",
    "nccl.no-algorithm", "nccl.p2p-off-on-purpose", "nccl.peer-access", "nccl.poor-graph",
    "nccl.shm-fallback", "nccl.shm-in-part", "nccl.shm-too-small", "nccl.two-builds",
    "nccl.two-builds-loaded", "nccl.unproven",
    "numa", "numa.cpuless-node", "numa.memoryless-node", "numa.node-full", "numa.truncated",
    "numa.unbalanced",
    "p2p.bandwidth", "p2p.granted", "p2p.latency", "p2p.no-atomics", "p2p.not-delivering",
    "p2p.not-granted", "p2p.truncated", "p2p.unknown",
    "system.hardware-errors", "system.hung-tasks", "system.out-of-memory",
    "topology", "topology.affinity-cut", "topology.nvlink", "topology.truncated", "topology.unbalanced",
    "topology.unknown-path",
    "transfer.failed",
    "unread.",
    "weights.disk", "weights.memory", "weights.read",
)  # fmt: skip


def fits(found: str, word: str) -> bool:
    """Whether a finding with this id is asked for by this word: the id, its beginning up to a dot, or a
    family such as gpu.xid."""
    return (
        found == word or found.startswith(f"{word}.") or (f"{word}-" in IDS and found.startswith(f"{word}-"))
    )


def is_known(word: str) -> bool:
    """Whether a finding's id can fit this word."""
    return word[-1:] not in (".", "-") and any(
        fits(known, word) or (known[-1] in ".-" and word.startswith(known)) for known in IDS
    )


def known_words() -> list[str]:
    """Return what `--only` takes: each first word alone, then whole ids."""
    whole = [known.rstrip(".-") for known in IDS]
    return list(dict.fromkeys([known.partition(".")[0] for known in whole] + whole))
