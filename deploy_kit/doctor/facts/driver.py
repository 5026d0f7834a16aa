"""Which NVIDIA kernel module there is: /proc/driver/nvidia, modinfo, lsmod, modprobe, dkms."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from deploy_kit.doctor.blocks import Block


@dataclass(frozen=True)
class DriverFacts:
    """Facts of the kernel module; None: not read. `parameters` are those of /proc/driver/nvidia/params;
    `dkms` maps a module with its version to the states that dkms gives it."""

    version: str | None = None
    open_module: bool | None = None
    nouveau: bool = False
    loaded: bool = False
    refusal: str | None = None
    dkms: dict[str, tuple[str, ...]] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)


_PARAMETERS = ("RegistryDwords", "DmaRemapPeerMmio", "EnableResizableBar", "GrdmaPciTopoCheckOverride")
_WORDS = (
    "NVRM version: ", "license:", "nouveau ", "nvidia ", "nvidia/", "modprobe: ", "modinfo: ", *_PARAMETERS,
)  # fmt: skip
_REFUSED = re.compile(
    r"mod(?:probe|info): (?:ERROR|FATAL): (?:could not insert '?nvidia\w*'?: .*|Module nvidia not found.*)"
)
_DKMS = re.compile(r"(?P<module>nvidia[\w-]*/[\d.]+)(?:, [^:]*)?: (?P<state>added|built|installed)\b")
# lsmod: name, size in bytes, how many use it.
_LOADED = re.compile(r"(?P<module>nvidia|nouveau)\s+\d{4,10}\s+(?P<uses>\d{1,6})(?:\s|$)")


def parse_driver(block: Block) -> DriverFacts | None:
    """Given one of those outputs, return what it says; None when it says nothing about the module."""
    version: str | None = None
    is_open: bool | None = None
    refusal: str | None = None
    modules: dict[str, int] = {}
    dkms: dict[str, tuple[str, ...]] = {}
    parameters: dict[str, str] = {}
    asks_license = "modinfo" in block.title and "license" in block.title
    words = (
        "NVRM version: ",
        "license:",
        "nouveau ",
        "nvidia ",
        "nvidia/",
        "modprobe: ",
        "modinfo: ",
        *_PARAMETERS,
    )
    for line in block.lines if asks_license else block.lines_with(*words):
        text = line.strip()
        if found := re.search(r"NVRM version: NVIDIA UNIX (Open )?.*?(\d{3}\.[\d.]+)", text):
            is_open, version = bool(found[1]), found[2].rstrip(".")
        elif found := re.match(r"license:\s*(Dual MIT/GPL|NVIDIA)\s*$", text):
            is_open = found[1] != "NVIDIA"
        elif asks_license and text in ("Dual MIT/GPL", "NVIDIA"):
            is_open = text != "NVIDIA"
        elif found := _LOADED.match(text):
            modules[found["module"]] = int(found["uses"])
        elif found := _REFUSED.search(text):
            refusal = found[0]
        elif found := _DKMS.match(text):
            dkms[found["module"]] = (*dkms.get(found["module"], ()), found["state"])
        elif found := re.match(rf"({'|'.join(_PARAMETERS)}): ?(.*)$", text):
            parameters[found[1]] = found[2].strip('"')
    # nouveau without a screen has no users; beside a loaded NVIDIA module it may have no card either.
    nouveau = modules.get("nouveau", -1) >= (1 if "nvidia" in modules else 0)
    facts = DriverFacts(version, is_open, nouveau, "nvidia" in modules, refusal, dkms, parameters)
    return None if facts == DriverFacts() else facts
