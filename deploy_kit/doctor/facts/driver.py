"""Which NVIDIA kernel module runs: /proc/driver/nvidia/version and params, modinfo, lsmod."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from deploy_kit.doctor.blocks import Block


@dataclass(frozen=True)
class DriverFacts:
    """Facts of the kernel module; None: not read. `parameters` are those of /proc/driver/nvidia/params."""

    version: str | None = None
    open_module: bool | None = None
    nouveau: bool = False
    parameters: dict[str, str] = field(default_factory=dict)


_PARAMETERS = ("RegistryDwords", "DmaRemapPeerMmio", "EnableResizableBar", "GrdmaPciTopoCheckOverride")


def parse_driver(block: Block) -> DriverFacts | None:
    """Given one of those outputs, return what it says; None when it says nothing about the module."""
    version: str | None = None
    is_open: bool | None = None
    nouveau = False
    parameters: dict[str, str] = {}
    for line in block.lines_with("NVRM version: ", "license:", "nouveau", *_PARAMETERS):
        text = line.strip()
        if found := re.search(r"NVRM version: NVIDIA UNIX (Open )?.*?(\d{3}\.[\d.]+)", text):
            is_open, version = bool(found[1]), found[2].rstrip(".")
        elif found := re.match(r"license:\s*(Dual MIT/GPL|NVIDIA)\s*$", text):
            is_open = found[1] != "NVIDIA"
        elif re.match(r"nouveau\s+\d+\s+[1-9]", text):
            nouveau = True
        elif found := re.match(rf"({'|'.join(_PARAMETERS)}): ?(.*)$", text):
            parameters[found[1]] = found[2].strip('"')
    facts = DriverFacts(version, is_open, nouveau, parameters)
    return None if facts == DriverFacts() else facts
