"""The machine against the model's weights: room on the disk, memory, and how long reading them takes."""

from __future__ import annotations

from collections.abc import Iterator

from deploy_kit.configs.schema import Model
from deploy_kit.doctor.facts.machine import Machine
from deploy_kit.doctor.facts.storage import FileSystem, StorageFacts
from deploy_kit.doctor.model import Finding, Verdict

_GIB = 1024**3
# Beside the weights in the page cache: eight ranks' processes, pinned buffers, the system. An estimate.
_PROCESSES_BYTES = 64 * _GIB
_LONG_READ_SECONDS = 1800.0


def check(machine: Machine, model: Model, folder: str | None = None) -> Iterator[Finding]:
    """Given the model to be served and where its weights lie, yield what disk and memory mean for it.

    What was not read is unknown, with the command to run.
    """
    storage = machine.storage or StorageFacts()
    yield _disk(storage, model, folder)
    yield _memory(storage, model)
    yield _reading(storage, model)


def _disk(storage: StorageFacts, model: Model, folder: str | None) -> Finding:
    size = model.size_bytes
    where = _file_system(storage, folder)
    if where is None:
        return Finding(
            "weights.disk",
            Verdict.UNKNOWN,
            f"the disk for the weights ({_gb(size)}) was not read",
            f"run `df -h {folder or 'MODELS_DIRECTORY'}`",
        )
    evidence = (f"{where.mount}: {_gb(where.size_bytes)}, {_gb(where.free_bytes)} free",)
    if where.size_bytes < size:
        return Finding(
            "weights.disk",
            Verdict.FAIL,
            f"{where.mount} can never hold the weights: {_gb(where.size_bytes)}, they are {_gb(size)}",
            "mount a larger disk there, or set models_directory in the host file to one",
            evidence,
        )
    used = where.size_bytes - where.free_bytes
    if where.free_bytes < size and used < size:
        return Finding(
            "weights.disk",
            Verdict.WARN,
            f"the weights ({_gb(size)}) cannot be on {where.mount} yet, and do not fit beside what is there",
            "free space there before the download",
            evidence,
        )
    return Finding(
        "weights.disk",
        Verdict.OK,
        f"{where.mount} has room for the weights ({_gb(size)})"
        if where.free_bytes >= size
        else f"the weights ({_gb(size)}) fit on {where.mount} if they are there already",
        None,
        evidence,
    )


def _memory(storage: StorageFacts, model: Model) -> Finding:
    size, available = model.size_bytes, storage.memory_available_bytes
    if available is None:
        return Finding(
            "weights.memory", Verdict.UNKNOWN, "free memory was not read", "run `cat /proc/meminfo`"
        )
    if available < _PROCESSES_BYTES:
        return Finding(
            "weights.memory",
            Verdict.WARN,
            f"{_gb(available)} of memory are free: too little for eight ranks' processes and their buffers",
            "stop what holds the memory before the start (`ps aux --sort=-rss`)",
        )
    if available < size + _PROCESSES_BYTES:
        return Finding(
            "weights.memory",
            Verdict.OK,
            f"{_gb(available)} of memory are free: the weights ({_gb(size)}) do not stay cached, so each "
            "start reads them from the disk",
        )
    return Finding(
        "weights.memory",
        Verdict.OK,
        f"{_gb(available)} of memory are free: the weights ({_gb(size)}) stay cached for the next start",
    )


def _reading(storage: StorageFacts, model: Model) -> Finding:
    size, speed = model.size_bytes, storage.read_bytes_per_second
    if not speed:
        return Finding(
            "weights.read",
            Verdict.UNKNOWN,
            f"how fast the weights ({_gb(size)}) are read was not measured",
            "run `dd if=WEIGHTS.safetensors of=/dev/null bs=8M count=32 iflag=direct`",
        )
    seconds = size / speed
    slow = seconds > _LONG_READ_SECONDS
    return Finding(
        "weights.read",
        Verdict.WARN if slow else Verdict.OK,
        f"reading the weights ({_gb(size)}) takes {seconds / 60:.0f} minutes at {speed / 1e9:.2f} GB/s",
        "put the weights on local NVMe" if slow else None,
    )


def _file_system(storage: StorageFacts, folder: str | None) -> FileSystem | None:
    """Return the file system that holds the folder: the longest mount point above it."""
    if folder is None:
        return storage.file_systems[0] if len(storage.file_systems) == 1 else None
    above = [
        system
        for system in storage.file_systems
        if system.mount == "/" or folder == system.mount or folder.startswith(system.mount.rstrip("/") + "/")
    ]
    return max(above, key=lambda system: len(system.mount), default=None)


def _gb(number: int) -> str:
    return f"{number / 1e9:.0f} GB"
