"""Live readers of /sys, in the shape of the commands that may be missing, so that one parser serves both."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

_ACS_BITS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
_ACS_CAPABILITY = 0x000D
_READ_BYTES = 256 * 1024**2
_READ_SECONDS = 1.5


def pci_as_lspci(root: Path = Path("/sys/bus/pci/devices")) -> str:
    """Return bridges and NVIDIA GPUs of /sys/bus/pci as `lspci -vv` would print the parts that are read.

    Access control (ACS) stands beyond the first 64 bytes of the configuration space, which only root may
    read.
    """
    lines: list[str] = []
    for device in sorted(root.glob("*")) if root.is_dir() else ():
        kind = _word(device / "class")
        gpu = _word(device / "vendor") == "0x10de" and kind.startswith("0x03")
        if not gpu and not kind.startswith("0x0604"):
            continue
        name = f"NVIDIA Corporation Device {_word(device / 'device')[2:]}" if gpu else "Device"
        lines.append(f"{device.name} {'3D controller' if gpu else 'PCI bridge'}: {name}")
        speed, width = _word(device / "max_link_speed"), _word(device / "max_link_width")
        now, lanes = _word(device / "current_link_speed"), _word(device / "current_link_width")
        if speed and width:
            lines.append(f"\tLnkCap: Port #0, Speed {_gt(speed)}, Width x{width}, ASPM unknown")
        if now and lanes:
            lines.append(f"\tLnkSta: Speed {_gt(now)}, Width x{lanes}")
        try:
            config = (device / "config").read_bytes()
        except OSError:
            config = b""
        if kind.startswith("0x0604") and len(config) >= 0x1B:
            lines.append(
                f"\tBus: primary={config[0x18]:02x}, secondary={config[0x19]:02x},"
                f" subordinate={config[0x1A]:02x}"
            )
        if 0 < len(config) <= 64:
            lines.append("\tCapabilities: <access denied>")
        elif (control := acs_control(config)) is not None:
            bits = " ".join(f"{bit}{'+' if control >> i & 1 else '-'}" for i, bit in enumerate(_ACS_BITS))
            lines.append(f"\tACSCtl:\t{bits}")
    return "\n".join(lines) or "deploy-kit: no bridge and no NVIDIA GPU on the PCI bus"


def acs_control(config: bytes) -> int | None:
    """Given a device's configuration space (4096 bytes), return its ACS control register; None without
    ACS."""
    offset = 0x100
    for _ in range(64):  # a damaged chain must not go round for ever
        if offset < 0x100 or offset + 8 > len(config):
            return None
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header in (0, 0xFFFFFFFF):
            return None
        if header & 0xFFFF == _ACS_CAPABILITY:
            return int.from_bytes(config[offset + 6 : offset + 8], "little")
        offset = header >> 20
    return None


def nodes_as_numactl(root: Path = Path("/sys/devices/system/node")) -> str:
    """Return the NUMA nodes of /sys as `numactl -H` prints them."""
    from deploy_kit.doctor.facts.cpu import expand_cpus

    nodes = sorted(int(path.name[4:]) for path in root.glob("node[0-9]*"))
    if not nodes:
        return ""
    lines = [f"available: {len(nodes)} nodes"]
    for node in nodes:
        folder = root / f"node{node}"
        lines.append(f"node {node} cpus: {' '.join(map(str, expand_cpus(_word(folder / 'cpulist'))))}")
        for line in _word(folder / "meminfo").split("\n"):
            words = line.split()
            if len(words) >= 4 and words[2] in ("MemTotal:", "MemFree:") and words[3].isdecimal():
                what = "size" if words[2] == "MemTotal:" else "free"
                lines.append(f"node {node} {what}: {int(words[3]) // 1024} MB")
    lines.append("node distances:")
    lines += [f"  {node}:  {_word(root / f'node{node}' / 'distance')}" for node in nodes]
    return "\n".join(lines)


def read_speed_as_dd(folder: Path) -> str:
    """Read the largest weight file's first 256 MiB, for 1.5 s at most, and say how fast, as `dd` does.

    Direct reads pass the page cache by; where the file system refuses them the line says so, because a cached
    read tells nothing about the disk, and no speed is given.
    """
    files = [path for path in folder.rglob("*.safetensors") if path.is_file()]
    if not files:
        return ""
    path = max(files, key=lambda file: file.stat().st_size)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return "deploy-kit: this file system has no direct reads, so the disk's own speed was not measured"
    done = 0
    buffer = mmap.mmap(-1, 8 * 1024**2)  # direct reads need aligned memory
    start = time.monotonic()
    try:
        while done < _READ_BYTES and time.monotonic() - start < _READ_SECONDS:
            count = os.readv(descriptor, [buffer])
            if count <= 0:
                break
            done += count
    except OSError:
        return "deploy-kit: this file system has no direct reads, so the disk's own speed was not measured"
    finally:
        os.close(descriptor)
        buffer.close()
    seconds = max(time.monotonic() - start, 1e-6)
    return f"{done} bytes copied, {seconds:.4f} s, {done / seconds / 1e6:.1f} MB/s"


def _word(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _gt(text: str) -> str:
    return text.split(" ", maxsplit=1)[0].removesuffix(".0") + "GT/s"
