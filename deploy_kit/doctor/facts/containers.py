"""`docker info` and the container toolkit's device list."""

from __future__ import annotations

import re
from dataclasses import dataclass

from deploy_kit.doctor.blocks import Block


@dataclass(frozen=True)
class DockerFacts:
    """Facts of `docker info`; None: not in the output."""

    version: str | None = None
    runtimes: tuple[str, ...] = ()
    cgroup_driver: str | None = None
    cgroup_version: str | None = None
    root: str | None = None
    cdi_devices: tuple[str, ...] = ()
    snap: bool = False
    rootless: bool = False


@dataclass(frozen=True)
class CdiFacts:
    """How many devices `nvidia-ctk cdi list` names."""

    devices: int


_KEYS = (
    "Server Version", "Runtimes", "Default Runtime", "Storage Driver", "Cgroup Driver", "Cgroup Version",
    "Docker Root Dir",
)  # fmt: skip


def parse_docker(block: Block) -> DockerFacts | None:
    """Given `docker info`, return its facts; None when it is no such output."""
    values: dict[str, str] = {}
    for line in block.lines_with(*_KEYS) if block.has("Server Version", "Runtimes") else ():
        key, colon, value = line.strip().partition(":")
        if colon:
            values.setdefault(key.strip(), value.strip())
    if not ({"Server Version", "Runtimes"} & values.keys()) or not (
        {"Server Version", "Storage Driver", "Cgroup Driver", "Docker Root Dir", "Default Runtime"}
        & values.keys()
    ):
        return None
    root = values.get("Docker Root Dir")
    return DockerFacts(
        version=values.get("Server Version"),
        runtimes=tuple(values.get("Runtimes", "").split()),
        cgroup_driver=values.get("Cgroup Driver"),
        cgroup_version=values.get("Cgroup Version"),
        root=root,
        cdi_devices=tuple(re.findall(r"cdi: (\S*nvidia\S*)", block.text)),
        snap="/snap/" in (root or ""),
        rootless="rootless" in block.text,
    )


def parse_cdi(block: Block) -> CdiFacts | None:
    """Given `nvidia-ctk cdi list`, return how many devices it found."""
    found = re.search(r"Found (\d{1,5}) CDI devices", block.text)
    return CdiFacts(int(found[1])) if found else None
