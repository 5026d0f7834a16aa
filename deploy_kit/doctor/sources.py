"""Reading the machine: commands and files, all read-only, each with a time limit."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from deploy_kit.doctor.blocks import Block
from deploy_kit.doctor.facts.environment import matters
from deploy_kit.doctor.facts.machine import NO_GPU_TEXT
from deploy_kit.doctor.model import Unknown

_COMMAND_SECONDS = 20
_LIMIT_BYTES = 20_000_000


@dataclass(frozen=True)
class Source:
    """One thing to read: a command, or a function that returns text; `gpu` when it means nothing without
    GPUs."""

    name: str
    title: str
    read: Callable[[], str]
    gpu: bool = False


class NotReadableError(Exception):
    """A source could not be read; the text says why."""


def read_machine(models_directory: str | None = None) -> tuple[list[Block], list[Unknown]]:
    """Read everything this machine shows, in parallel; nothing is changed, what cannot be read is Unknown."""
    sources = live_sources(models_directory)
    with ThreadPoolExecutor(max_workers=8) as pool:
        results = list(pool.map(_read, sources))
    # In a container or a WSL machine the bus may be hidden while the driver answers.
    answered = {s.name for s, result in zip(sources, results, strict=True) if isinstance(result, Block)}
    has_gpu = nvidia_devices() > 0 or bool(answered & {"topology", "gpus", "module"})
    blocks = [result for result in results if isinstance(result, Block)]
    unknown = [
        result
        for source, result in zip(sources, results, strict=True)
        if isinstance(result, Unknown) and (has_gpu or not source.gpu)
    ]
    if not has_gpu:
        blocks.append(Block("deploy-kit: NVIDIA devices on the PCI bus", NO_GPU_TEXT))
    return blocks, unknown


def live_sources(models_directory: str | None = None) -> list[Source]:
    """Return what is read on a live machine."""
    smi = "nvidia-smi"
    return [
        _command("topology", smi, "topo", "-m", gpu=True),
        _command("p2p-read", smi, "topo", "-p2p", "r", gpu=True),
        _command("p2p-write", smi, "topo", "-p2p", "w", gpu=True),
        _command("p2p-atomics", smi, "topo", "-p2p", "a", gpu=True),
        Source("gpus", "nvidia-smi -q", _nvidia_smi_or_nvml, gpu=True),
        _command("capability", smi, "--query-gpu=index,pci.bus_id,compute_cap", "--format=csv", gpu=True),
        Source("pci", "lspci -vv", _lspci_or_sysfs),
        Source("kernel-log", "dmesg", _kernel_log),
        _file("cmdline", "/proc/cmdline"),
        _command("cpu", "lscpu"),
        Source("numa", "numactl -H", _numactl_or_sysfs),
        Source("governor", "cat /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", _governors),
        _file("numa-balancing", "/proc/sys/kernel/numa_balancing"),
        _file("hmm", "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm", gpu=True),
        _file("aspm-policy", "/sys/module/pcie_aspm/parameters/policy"),
        _file("module", "/proc/driver/nvidia/version", gpu=True),
        _file("module-parameters", "/proc/driver/nvidia/params", gpu=True),
        _file("limits", "/proc/self/limits"),
        _command("shared-memory", "df", "-h", "/dev/shm"),  # noqa: S108
        _command("docker", "docker", "info"),
        _command("cdi", "nvidia-ctk", "cdi", "list", gpu=True),
        Source("environment", "env", _environment),
        Source("nccl-packages", "pip list", _nccl_packages, gpu=True),
        _command("libraries", "ldconfig", "-p"),
        _command("disk", "df", "-h", models_directory or "/"),
        Source(
            "disk-read",
            "dd if=WEIGHTS.safetensors of=/dev/null bs=8M count=32 iflag=direct",
            lambda: _read_speed(models_directory),
            gpu=True,
        ),
        _file("memory", "/proc/meminfo"),
        Source("virtual", "systemd-detect-virt", _virtual),
    ]


def nvidia_devices(root: Path = Path("/sys/bus/pci/devices")) -> int:
    """Return how many NVIDIA display devices the PCI bus has."""
    return sum(1 for _ in _nvidia_slots(root))


def _nvidia_slots(root: Path) -> Iterator[Path]:
    for device in sorted(root.glob("*")) if root.is_dir() else ():
        if _text(device / "vendor") == "0x10de" and (_text(device / "class") or "").startswith("0x03"):
            yield device


def _read(source: Source) -> Block | Unknown:
    try:
        text = source.read()
    except NotReadableError as error:
        return Unknown(source.name, str(error), source.title)
    except OSError as error:
        return Unknown(source.name, error.strerror or type(error).__name__, source.title)
    if not text.strip():
        return Unknown(source.name, "it printed nothing", source.title)
    return Block(source.title, text)


def _command(name: str, *argv: str, gpu: bool = False) -> Source:
    return Source(name, " ".join(argv), lambda: run(*argv), gpu)


def _file(name: str, path: str, *, gpu: bool = False) -> Source:
    def read() -> str:
        with Path(path).open("rb") as handle:
            return handle.read(_LIMIT_BYTES).decode(errors="replace")

    return Source(name, f"cat {path}", read, gpu)


def run(*argv: str) -> str:
    """Run one read-only command and return what it printed; NotReadableError when it is missing, slow or
    refuses."""
    program = shutil.which(argv[0]) or shutil.which(argv[0], path="/usr/sbin:/sbin:/usr/local/sbin")
    if program is None:
        raise NotReadableError(f"{argv[0]} is not installed")
    try:
        done = subprocess.run(
            [program, *argv[1:]],
            capture_output=True,
            timeout=_COMMAND_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as error:
        raise NotReadableError(f"no answer in {_COMMAND_SECONDS} s") from error
    text = done.stdout[:_LIMIT_BYTES].decode(errors="replace")
    errors = done.stderr[:20_000].decode(errors="replace")
    if done.returncode and not text.strip():
        # nvidia-smi and docker say on stderr what is wrong: that is the fact to judge.
        if argv[0] in ("nvidia-smi", "docker") and errors.strip():
            return errors
        first = errors.strip().split("\n")[0][:200] or "no message"
        raise NotReadableError(f"{argv[0]} ended with code {done.returncode}: {first}")
    # Docker prints what it could find out of the client even when the engine does not answer.
    return text + (errors if argv[0] == "docker" and done.returncode else "")


def _nvidia_smi_or_nvml() -> str:
    if shutil.which("nvidia-smi"):
        return run("nvidia-smi", "-q")
    from deploy_kit.doctor.facts.nvml import nvml_as_csv

    return nvml_as_csv()


def _lspci_or_sysfs() -> str:
    from deploy_kit.doctor.facts.sysfs import pci_as_lspci

    if shutil.which("lspci") or Path("/usr/bin/lspci").exists():
        return run("lspci", "-vv")
    return pci_as_lspci()


def _numactl_or_sysfs() -> str:
    from deploy_kit.doctor.facts.sysfs import nodes_as_numactl

    return run("numactl", "-H") if shutil.which("numactl") else nodes_as_numactl()


def _kernel_log() -> str:
    try:
        return run("dmesg")
    except NotReadableError as refused:
        try:
            return run("journalctl", "-k", "-b", "--no-pager")
        except NotReadableError:
            raise refused from None


def _governors(root: Path = Path("/sys/devices/system/cpu")) -> str:
    found = {text for path in root.glob("cpu[0-9]*/cpufreq/scaling_governor") if (text := _text(path))}
    if not found:
        raise NotReadableError(
            "this kernel shows no frequency governor (virtual machine, or firmware control)"
        )
    return "\n".join(f"scaling_governor: {governor}" for governor in sorted(found))


def _environment() -> str:
    kept = {name: value for name, value in sorted(os.environ.items()) if matters(name)}
    return (
        "\n".join(f"{name}={value}" for name, value in kept.items()) or "deploy-kit: none that matters is set"
    )


def _nccl_packages() -> str:
    from importlib import metadata

    found = {
        dist.metadata["Name"]: dist.version
        for dist in metadata.distributions()
        if "nccl" in (dist.metadata["Name"] or "").lower()
    }
    return (
        "\n".join(f"{name} {version}" for name, version in found.items())
        or "deploy-kit: no NCCL package here"
    )


def _virtual() -> str:
    # systemd-detect-virt ends with code 1 and prints "none" on bare metal.
    return run("systemd-detect-virt", "--vm")


def _read_speed(models_directory: str | None) -> str:
    """Read up to 256 MiB of the largest weight file, past the page cache where the system allows it."""
    from deploy_kit.doctor.facts.sysfs import read_speed_as_dd

    folder = Path(models_directory) if models_directory else None
    if folder is None or not folder.is_dir():
        raise NotReadableError("no folder with weights is known (models_directory of the host file)")
    return read_speed_as_dd(folder)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
