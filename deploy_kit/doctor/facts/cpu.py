"""`lscpu` and `numactl -H`: processors, sockets, NUMA nodes and their memory."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from deploy_kit.doctor.blocks import Block


@dataclass(frozen=True)
class CpuFacts:
    """Facts of `lscpu`; None: not in the output. `numa_cpus` maps node to its on-line CPUs as printed."""

    model: str | None = None
    cpus: int | None = None
    online: str | None = None
    offline: str | None = None
    sockets: int | None = None
    numa_nodes: int | None = None
    numa_cpus: dict[int, str] = field(default_factory=dict)
    hypervisor: str | None = None
    vendor: str | None = None

    @property
    def maker(self) -> str | None:
        """Return "amd" or "intel", None for others."""
        words = f"{self.vendor or ''} {self.model or ''}".lower()
        return "amd" if "amd" in words else "intel" if "intel" in words else None

    @property
    def online_count(self) -> int | None:
        """Return how many CPUs are on line."""
        return None if self.online is None else len(expand_cpus(self.online))


@dataclass(frozen=True)
class NumaNode:
    """One node of `numactl -H`; sizes in MB, None when not printed."""

    node: int
    cpus: tuple[int, ...] | None = None
    size_mb: int | None = None
    free_mb: int | None = None


@dataclass(frozen=True)
class NumaFacts:
    """Facts of `numactl -H`: nodes and their distances (row node → distances)."""

    nodes: tuple[NumaNode, ...]
    announced: int | None = None
    distances: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def truncated(self) -> bool:
        """Whether fewer nodes were printed than announced, or a node lost its size."""
        return (self.announced is not None and len(self.nodes) < self.announced) or any(
            node.size_mb is None or node.cpus is None for node in self.nodes
        )


_MOST_CPUS = 65_536


def expand_cpus(text: str) -> list[int]:
    """Given a CPU list such as "0-3,8", return the numbers: [0, 1, 2, 3, 8]; parts that are none are left
    out."""
    cpus: list[int] = []
    for part in text.split(","):
        if len(cpus) > _MOST_CPUS:
            break  # no machine: a mangled list must not fill the memory
        found = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part, re.ASCII)
        if found:
            first, last = int(found[1]), int(found[2] or found[1])
            cpus.extend(range(first, last + 1))
    return cpus


_KEYS = ("CPU(s)", "Socket(s)", "NUMA node", "Model name", "Hypervisor vendor", "Vendor ID")
# lscpu speaks the language of its user.
_GERMAN = {
    "Liste der Online-CPU(s)": "On-line CPU(s) list",
    "Liste der Offline-CPU(s)": "Off-line CPU(s) list",
    "Anbieterkennung": "Vendor ID",
    "Modellname": "Model name",
    "Sockel": "Socket(s)",
    "NUMA-Knoten": "NUMA node(s)",
    "Hypervisor-Anbieter": "Hypervisor vendor",
}


def parse_lscpu(block: Block) -> CpuFacts | None:
    """Given `lscpu`, return its facts; None when this is no such output."""
    values: dict[str, str] = {}
    german = _GERMAN if block.has("Sockel:", "NUMA-Knoten", "Anbieterkennung") else ()
    for line in block.lines_with(*_KEYS, *german):
        key, colon, value = line.partition(":")
        if colon and value.strip():
            key = re.sub(r"^NUMA-Knoten(?=\d)", "NUMA node", key.strip())
            values.setdefault(_GERMAN.get(key, key), value.strip())
    numa = {
        int(found[1]): value
        for key, value in values.items()
        if (found := re.fullmatch(r"NUMA node(\d{1,4}) CPU\(s\)", key, re.ASCII))
    }
    facts = CpuFacts(
        model=values.get("Model name") if "CPU(s)" in values or numa or "Socket(s)" in values else None,
        cpus=_integer(values.get("CPU(s)")),
        online=values.get("On-line CPU(s) list"),
        offline=values.get("Off-line CPU(s) list"),
        sockets=_integer(values.get("Socket(s)")),
        numa_nodes=_integer(values.get("NUMA node(s)")),
        numa_cpus=numa,
        hypervisor=values.get("Hypervisor vendor"),
        vendor=values.get("Vendor ID"),
    )
    return None if facts == CpuFacts(vendor=facts.vendor) else facts


def parse_numactl(block: Block) -> NumaFacts | None:
    """Given `numactl -H`, return nodes, memory and distances; an empty CPU list is a node without CPUs."""
    announced: int | None = None
    cpus: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    free: dict[int, int] = {}
    distances: dict[int, tuple[int, ...]] = {}
    last_cpus: int | None = None
    for line in block.lines if block.has(" cpus:", " size:", " free:") else ():
        text = line.strip()
        if not (text[:1].isdigit() or text.startswith(("node ", "available: "))):
            last_cpus = None
        elif found := re.match(r"available: (\d{1,4}) nodes?\b", text, re.ASCII):
            announced = int(found[1])
        elif found := re.match(r"node (\d{1,4}) cpus:((?:\s+\d{1,5})*)\s*$", text, re.ASCII):
            last_cpus = int(found[1])
            cpus[last_cpus] = [int(cpu) for cpu in found[2].split()]
            continue
        elif found := re.match(r"node (\d{1,4}) size:\s*(\d{1,12})\s*MB", text, re.ASCII):
            sizes[int(found[1])] = int(found[2])
        elif found := re.match(r"node (\d{1,4}) free:\s*(\d{1,12})\s*MB", text, re.ASCII):
            free[int(found[1])] = int(found[2])
        elif found := re.match(r"(\d{1,4}):((?:\s+\d{1,4})+)\s*$", text, re.ASCII):
            distances[int(found[1])] = tuple(int(number) for number in found[2].split())
        elif last_cpus is not None and re.fullmatch(r"\d{1,5}(?:\s+\d{1,5})*", text, re.ASCII):
            cpus[last_cpus] += [int(cpu) for cpu in text.split()]  # a wrapped list
            continue
        last_cpus = None
    numbers = sorted({*cpus, *sizes, *free})
    if not numbers:
        return None
    nodes = tuple(
        NumaNode(n, tuple(cpus[n]) if n in cpus else None, sizes.get(n), free.get(n)) for n in numbers
    )
    return NumaFacts(nodes, announced, distances)


def _integer(text: str | None) -> int | None:
    found = re.match(r"\d{1,9}\b", text or "", re.ASCII)
    return int(found[0]) if found else None
