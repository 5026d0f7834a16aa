"""`lspci -vv`: links, access control (ACS), BARs and drivers of PCI devices."""

from __future__ import annotations

import re
from dataclasses import dataclass

from deploy_kit.doctor.blocks import Block

_DEVICE = re.compile(
    r"^(?P<slot>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s+"
    r"(?P<kind>[A-Z0-9][^:\[]*?)(?: \[[0-9a-f]{4}\])?:\s+(?P<name>.*)$"
)
_CAP = re.compile(r"LnkCap:.*?Speed (\d{1,3}(?:\.\d{1,3})?)GT/s.*?Width x(\d+)(?:, ASPM ([^,]+))?")
_STA = re.compile(
    r"LnkSta:\s*Speed (?:(\d{1,3}(?:\.\d{1,3})?)GT/s|unknown)"
    r"\s*(?:\((\w+)\))?,\s*Width x(\d+)\s*(?:\((\w+)\))?"
)
_CTL = re.compile(r"LnkCtl:\s*ASPM ([^;]+);")
_ACS = re.compile(r"ACSCtl:\s*((?:\w+[+-]\s*)+)")
_BUS = re.compile(r"Bus: primary=([0-9a-f]{2}), secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})")
_REGION = re.compile(r"Region 1: Memory at .*\[size=(\d+)([KMGT])\]")
_REBAR = re.compile(r"BAR 1: current size: (\d+)([KMGT])B(?:, supported: (.*))?")
_GENERATION = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_MIB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


@dataclass
class PciDevice:
    """Facts of one PCI device; None: not in the output."""

    slot: str
    kind: str
    name: str
    cap_gen: int | None = None
    cap_width: int | None = None
    gen: int | None = None
    width: int | None = None
    speed_downgraded: bool = False
    width_downgraded: bool = False
    aspm: str | None = None
    acs: dict[str, bool] | None = None
    access_denied: bool = False
    gone: bool = False
    bus_range: tuple[int, int] | None = None
    bar1_mib: int | None = None
    bar1_supported_mib: int | None = None
    bar1_unassigned: bool = False
    driver: str | None = None
    lists_modules: bool = False

    @property
    def is_gpu(self) -> bool:
        """Whether this is an NVIDIA GPU."""
        return self.kind.startswith(("VGA compatible controller", "3D controller")) and "NVIDIA" in self.name

    @property
    def is_bridge(self) -> bool:
        """Whether this is a root port or a switch port."""
        return "bridge" in self.kind

    @property
    def bus(self) -> int:
        """Return the bus number."""
        return int(self.slot.split(":")[-2], 16)

    @property
    def domain(self) -> int:
        """Return the PCI domain; lspci leaves it out where all devices are in 0."""
        parts = self.slot.split(":")
        return int(parts[0], 16) if len(parts) > 2 else 0

    def leads_to(self, other: PciDevice) -> bool:
        """Whether the other device is below this bridge, as far as bus numbers are in the output."""
        if not self.is_bridge or self.bus_range is None or not other.slot or self.domain != other.domain:
            return False
        return self.bus_range[0] <= other.bus <= self.bus_range[1]

    @property
    def redirects(self) -> tuple[str, ...]:
        """Return the ACS bits that send peer traffic up to the root complex."""
        if self.acs is None:
            return ()
        return tuple(bit for bit in ("ReqRedir", "CmpltRedir") if self.acs.get(bit))


_WORDS = (
    "LnkCap:", "LnkSta:", "LnkCtl:", "ACSCtl:", "Bus: primary=", "Region 1: ", "BAR 1: current size: ",
    "<access denied>", "Unknown header type 7f", "Kernel driver in use: ", "Kernel modules: ",
)  # fmt: skip
_HEXADECIMAL = frozenset("0123456789abcdef")


def parse_pci(block: Block) -> list[PciDevice]:
    """Given `lspci -vv` (whole or a part, even only its ACSCtl lines), return the devices in order."""
    devices: list[PciDevice] = []
    current: PciDevice | None = None
    numbers = {at for at, line in enumerate(block.lines) if line.lstrip()[:1] in _HEXADECIMAL}
    if not numbers and not block.has("ACSCtl:"):
        return []
    numbers.update(block.numbers_with(*_WORDS))
    for line in [block.lines[at] for at in sorted(numbers)]:
        if head := _DEVICE.match(line.strip()) if not line.startswith(("\t", "    ")) else None:
            current = PciDevice(head["slot"], head["kind"].strip(), head["name"].strip())
            current.gone = "(rev ff)" in line
            devices.append(current)
            continue
        if (acs := _ACS.search(line)) and (current is None or current.acs is not None):
            # Lines filtered by grep: no device above them.
            current = PciDevice("", "PCI bridge", "(device not in the output)")
            devices.append(current)
        if current is None:
            continue
        if cap := _CAP.search(line):
            current.cap_gen, current.cap_width = _GENERATION.get(float(cap[1])), int(cap[2][:3])
        elif sta := _STA.search(line):
            current.gen = _GENERATION.get(float(sta[1])) if sta[1] else None
            current.width = int(sta[3][:3])
            current.speed_downgraded, current.width_downgraded = (
                sta[2] == "downgraded",
                sta[4] == "downgraded",
            )
        elif ctl := _CTL.search(line):
            current.aspm = ctl[1].strip()
        elif acs:
            current.acs = {word[:-1]: word.endswith("+") for word in acs[1].split()}
        elif bus := _BUS.search(line):
            current.bus_range = (int(bus[2], 16), int(bus[3], 16))
        elif "Region 1: " in line and ("<unassigned>" in line or "<ignored>" in line):
            current.bar1_unassigned = True
        elif region := _REGION.search(line):
            current.bar1_mib = int(int(region[1][:6]) * _MIB[region[2]])
        elif rebar := _REBAR.search(line):
            current.bar1_mib = int(int(rebar[1][:6]) * _MIB[rebar[2]])
            sizes = re.findall(r"(\d{1,6})([KMGT])B", rebar[3] or "")
            current.bar1_supported_mib = max((int(int(n) * _MIB[u]) for n, u in sizes), default=None)
        elif "<access denied>" in line:
            current.access_denied = True
        elif "Unknown header type 7f" in line:
            current.gone = True
        elif driver := re.match(r"\s*Kernel driver in use: (\S+)", line):
            current.driver = driver[1]
        elif "Kernel modules: " in line:
            current.lists_modules = True
    return [device for device in devices if device.slot or device.acs is not None]
