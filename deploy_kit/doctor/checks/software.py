"""What the processes find: limits, shared memory, container runtime, environment, libraries, disk and
memory."""

from __future__ import annotations

from collections.abc import Iterator

from deploy_kit.doctor.checks.driver_answer import TOLD_HERE
from deploy_kit.doctor.checks.peers import NO_P2P
from deploy_kit.doctor.facts.limits import UNLIMITED
from deploy_kit.doctor.facts.machine import Machine
from deploy_kit.doctor.facts.storage import StorageFacts
from deploy_kit.doctor.model import Finding, Verdict
from deploy_kit.runtime.container_faults import explain_container_faults

_MIB = 1024**2
_GIB = 1024**3
SMALL_SHM_BYTES = _GIB
SMALL_MEMLOCK_BYTES = 64 * _MIB
SLOW_READ_BYTES_PER_SECOND = 500_000_000
LOW_MEMORY = 0.05


def check(machine: Machine) -> Iterator[Finding]:
    """Yield what limits, containers, environment, packages and disks say."""
    yield from _container_faults(machine)
    yield from _limits(machine)
    if not machine.no_gpu:
        yield from _docker(machine)
    yield from _environment(machine.environment or {})
    yield from _nccl_builds(machine)
    yield from _storage(machine)


def _container_faults(machine: Machine) -> Iterator[Finding]:
    inside = [smi for smi in machine.smi if smi.in_container]
    host_answers = any(smi.driver or smi.gpus for smi in machine.host_smi)
    for smi in inside:
        if smi.no_devices:
            yield Finding(
                "container.no-devices",
                Verdict.FAIL,
                "the container sees no GPU"
                + (" although the host does" if host_answers else "")
                + ": started without a GPU request, or its device access was lost",
                "recreate the container with its GPU request; `docker inspect` shows DeviceRequests",
                ("No devices were found",),
            )
            return
    explained = machine.log is not None and bool(machine.log.api_mismatch)
    for fault in explain_container_faults(machine.text):
        if fault.id in TOLD_HERE and (explained or any(smi.fault for smi in machine.smi)):
            continue
        if fault.id in _LOG_WORDS and (machine.log is not None or machine.nccl):
            continue
        yield Finding(f"container.{fault.id}", Verdict.FAIL, fault.cause, fault.remedy, (fault.evidence,))
        return


# Texts that a kernel log or an NCCL log has in another meaning.
_LOG_WORDS = {
    "memory-or-processes-exhausted",
    "registry-unreachable",
    "mount-busy",
    "security-profile",
    "shared-memory-full",
    "file-system-read-only",
    "disk-full",
    "cpus-not-available",
    "inotify-limit",
    "driver-rpc",
    "fabric-manager",
}


def _limits(machine: Machine) -> Iterator[Finding]:
    limits = machine.limits
    if limits is None:
        return
    if limits.memlock_bytes is not None:
        if limits.memlock_bytes != UNLIMITED and limits.memlock_bytes < SMALL_MEMLOCK_BYTES:
            yield Finding(
                "limits.memlock",
                Verdict.WARN,
                f"locked memory is limited to {_size(limits.memlock_bytes)}",
                "ulimits: memlock: -1 in the service (and LimitMEMLOCK=infinity for docker.service)",
                consequence="registering pinned buffers (NCCL over RDMA, large host caches) can fail",
                ansible="limits_memlock",
            )
        else:
            yield Finding("limits.memlock", Verdict.OK, "locked memory is not limited in a way that matters")
    if limits.shm_bytes is not None:
        if limits.shm_bytes < SMALL_SHM_BYTES:
            yield Finding(
                "limits.shm",
                Verdict.FAIL if limits.shm_bytes <= 64 * _MIB else Verdict.WARN,
                f"shared memory (/dev/shm) has {_size(limits.shm_bytes)}"
                + (" (Docker's default)" if limits.shm_bytes == 64 * _MIB else ""),
                "`ipc: host` or `shm_size: 32g` for the service",
                consequence="NCCL's shared buffers and SGLang's processes fail with bus errors",
                ansible="container_shm_size",
            )
        elif limits.shm_available_bytes is not None and limits.shm_available_bytes <= 64 * _MIB:
            yield Finding(
                "limits.shm-full",
                Verdict.FAIL,
                f"shared memory (/dev/shm) is full: {_size(limits.shm_available_bytes)} of"
                f" {_size(limits.shm_bytes)} left",
                "remove what ended processes left there (`ls -l /dev/shm`: nccl-*, sem.*, torch_*)",
                consequence="NCCL and SGLang's processes cannot make their shared buffers",
            )
        else:
            yield Finding("limits.shm", Verdict.OK, f"shared memory (/dev/shm) has {_size(limits.shm_bytes)}")


def _docker(machine: Machine) -> Iterator[Finding]:
    docker = machine.docker
    if machine.cdi is not None and machine.cdi.devices == 0:
        yield Finding(
            "container.no-cdi-devices",
            Verdict.FAIL,
            "no CDI devices are defined: the CDI specification is missing",
            "`sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
            ("Found 0 CDI devices",),
            ansible="nvidia_container_toolkit",
        )
    elif machine.cdi is not None and docker is None:
        count = machine.cdi.devices
        yield Finding(
            "container.cdi-devices", Verdict.OK, f"{count} CDI device{'s' if count != 1 else ''} defined"
        )
    if docker is None:
        return
    has_cdi = bool(docker.cdi_devices) or (machine.cdi is not None and machine.cdi.devices > 0)
    if docker.snap:
        yield Finding(
            "container.snap",
            Verdict.FAIL,
            "Docker is the snap package: it does not see the NVIDIA container toolkit of the host",
            "remove the snap and install Docker from its own packages",
            (f"Docker Root Dir: {docker.root}",),
            ansible="docker_engine",
        )
    if docker.runtimes and "nvidia" not in docker.runtimes and not has_cdi:
        yield Finding(
            "container.no-nvidia-runtime",
            Verdict.FAIL,
            "Docker has neither the nvidia runtime nor CDI devices: containers get no GPUs",
            "install nvidia-container-toolkit, `sudo nvidia-ctk runtime configure --runtime=docker`,"
            " restart docker",
            (f"Runtimes: {' '.join(docker.runtimes)}",),
            ansible="nvidia_container_toolkit",
        )
    elif "nvidia" in docker.runtimes or has_cdi:
        how = "CDI devices" if has_cdi else "the nvidia runtime"
        yield Finding(
            "container.gpu",
            Verdict.OK,
            f"Docker {docker.version or ''} offers GPUs by {how}".replace("  ", " "),
        )
    if "nvidia" in docker.runtimes and not has_cdi and docker.cgroup_driver == "systemd":
        yield Finding(
            "container.cgroup-reload",
            Verdict.OK,
            "with the systemd cgroup driver and no CDI, `systemctl daemon-reload` can take the GPUs from"
            " running containers",
            "list /dev/nvidia* in the service or use CDI",
            ansible="nvidia_container_cdi",
        )


def _environment(environment: dict[str, str]) -> Iterator[Finding]:
    def finding(
        name: str, verdict: Verdict, cause: str, remedy: str, consequence: str | None = None
    ) -> Finding:
        shown = f"{name}={environment[name]}"
        return Finding(
            f"environment.{name}",
            verdict,
            f"{shown}: {cause}",
            remedy,
            (shown,),
            consequence,
            "nccl_environment",
        )

    if not environment:
        return
    count = 0
    # Parts that name a collective ("allreduce:tree") leave the others alone.
    for_all = ";".join(
        part for part in environment.get("NCCL_ALGO", "").split(";") if part.strip() and ":" not in part
    )
    if (
        for_all
        and not {"ring", "^"} & {part.strip().lower()[:4] for part in for_all.split(",")}
        and "^" not in for_all
    ):
        count += 1
        yield finding(
            "NCCL_ALGO",
            Verdict.FAIL,
            "leaves other collectives (all-gather, broadcast) without an algorithm",
            "unset it, or name it for all-reduce only (NCCL_ALGO=allreduce:tree)",
            "a crash at graph capture, after the load",
        )
    if environment.get("NCCL_P2P_DISABLE") == "1":
        count += 1
        yield finding(
            "NCCL_P2P_DISABLE",
            Verdict.WARN,
            "P2P is switched off",
            "leave it out once P2P is proven to deliver",
            NO_P2P,
        )
    if environment.get("NCCL_SHM_DISABLE") == "1":
        count += 1
        yield finding(
            "NCCL_SHM_DISABLE",
            Verdict.FAIL if environment.get("NCCL_P2P_DISABLE") == "1" else Verdict.WARN,
            "pairs without P2P fall back to the network",
            "leave it out",
        )
    level = environment.get("NCCL_P2P_LEVEL", "").upper()
    if level in ("LOC", "NVL", "PIX", "PXB", "PHB", "0", "1", "2", "3"):
        count += 1
        yield finding(
            "NCCL_P2P_LEVEL",
            Verdict.WARN,
            "keeps NCCL from using P2P between more distant GPUs",
            "NCCL_P2P_LEVEL=SYS on a box with two sockets, measured with `deploy-kit probe allreduce`",
        )
    allocator = environment.get("PYTORCH_CUDA_ALLOC_CONF", environment.get("PYTORCH_ALLOC_CONF", ""))
    if "expandable_segments:true" in allocator.replace(" ", "").lower():
        count += 1
        name = "PYTORCH_CUDA_ALLOC_CONF" if "PYTORCH_CUDA_ALLOC_CONF" in environment else "PYTORCH_ALLOC_CONF"
        ipc = environment.get("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE") == "1"
        yield finding(
            name,
            Verdict.FAIL if ipc else Verdict.WARN,
            "memory in expandable segments cannot be shared by CUDA IPC"
            + (", which the PCIe IPC all-reduce needs" if ipc else ""),
            "remove expandable_segments:True",
            "IPC all-reduce fails or hangs",
        )
    if environment.get("CUDA_LAUNCH_BLOCKING") == "1":
        count += 1
        yield finding(
            "CUDA_LAUNCH_BLOCKING", Verdict.FAIL, "every kernel launch waits: for debugging only", "unset it"
        )
    if environment.get("NVIDIA_VISIBLE_DEVICES") in ("void", "none", ""):
        count += 1
        yield finding(
            "NVIDIA_VISIBLE_DEVICES", Verdict.FAIL, "the container sees no GPUs", "request the GPUs"
        )
    if environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "none", "NoDevFiles"):
        count += 1
        yield finding(
            "CUDA_VISIBLE_DEVICES", Verdict.FAIL, "CUDA sees no GPU", "unset it, or name the GPUs (0,1,2,3)"
        )
    capabilities = environment.get("NVIDIA_DRIVER_CAPABILITIES", "all").split(",")
    if not {"all", "compute"} & {word.strip() for word in capabilities}:
        count += 1
        yield finding(
            "NVIDIA_DRIVER_CAPABILITIES",
            Verdict.FAIL,
            "without compute the container gets no CUDA library",
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )
    if environment.get("SGLANG_SIMULATE_ACC_LEN", "-1") not in ("", "-1", "0"):
        count += 1
        yield finding(
            "SGLANG_SIMULATE_ACC_LEN",
            Verdict.WARN,
            "the accept length is made up, and so is every speed measured with it",
            "unset it",
        )
    channels = environment.get("NCCL_MAX_NCHANNELS", "")
    if channels.isascii() and channels.isdigit() and int(channels[:6]) <= 2:
        count += 1
        yield finding(
            "NCCL_MAX_NCHANNELS",
            Verdict.WARN,
            "few channels were slower than NCCL's default from 3 tokens on where it was measured",
            "measure on this box: `deploy-kit probe allreduce`",
        )
    if not count:
        yield Finding("environment", Verdict.OK, f"none of {len(environment)} variables is known to hurt")


def _nccl_builds(machine: Machine) -> Iterator[Finding]:
    for builds in machine.nccl_builds:
        versions = sorted({version for _, version in builds.packages})
        names = sorted({name for name, _ in builds.packages})
        folders = sorted({_folder(path) for path in builds.files})
        if builds.mapped and len(folders) > 1:
            yield Finding(
                "nccl.two-builds-loaded",
                Verdict.FAIL,
                f"one process has {len(folders)} NCCL libraries loaded",
                "remove one package, and NCCL from LD_LIBRARY_PATH and LD_PRELOAD",
                builds.files[:4],
                consequence="two NCCL in one process corrupt each other's state",
            )
        elif len(names) > 1 or len(folders) > 1:
            what = ", ".join(f"{n} {v}" for n, v in builds.packages) or ", ".join(folders[:4])
            yield Finding(
                "nccl.two-builds",
                Verdict.WARN,
                f"two NCCL builds in one environment: {what}",
                "keep the one that torch depends on; `LD_DEBUG=libs` or /proc/PID/maps shows which is loaded",
                builds.files[:4] or tuple(versions),
            )
        else:
            yield Finding("nccl.builds", Verdict.OK, f"one NCCL build ({', '.join(versions) or folders[0]})")


def _folder(path: str) -> str:
    # /lib is a link to /usr/lib on today's systems: one place, two names.
    folder = path.rsplit("/", 1)[0]
    return f"/usr{folder}" if folder.startswith(("/lib/", "/lib64")) or folder == "/lib" else folder


def _storage(machine: Machine) -> Iterator[Finding]:
    storage = machine.storage
    if storage is None:
        return
    full = [system for system in storage.file_systems if system.used_percent >= 97]
    if full:
        yield Finding(
            "disk.full",
            Verdict.WARN,
            f"{', '.join(system.mount for system in full[:4])} is almost full",
            "free space: `docker system df`, old models",
            tuple(f"{system.mount} {system.used_percent}% used" for system in full[:4]),
        )
    elif storage.file_systems:
        most = max(storage.file_systems, key=lambda system: system.free_bytes)
        yield Finding("disk", Verdict.OK, f"most room on {most.mount}: {_size(most.free_bytes)} free")
    yield from _memory(storage)
    if storage.read_bytes_per_second is not None:
        speed = storage.read_bytes_per_second
        slow = speed < SLOW_READ_BYTES_PER_SECOND
        yield Finding(
            "disk.read",
            Verdict.WARN if slow else Verdict.OK,
            f"weights read at {speed / 1e9:.2f} GB/s: 550 GB take {550e9 / max(speed, 1) / 60:.0f} minutes",
            "put the weights on local NVMe" if slow else None,
        )


def _memory(storage: StorageFacts) -> Iterator[Finding]:
    available, total = storage.memory_available_bytes, storage.memory_total_bytes
    if available is None or not total:
        return
    text = f"{_size(available)} of {_size(total)} memory available"
    if available < LOW_MEMORY * total:
        yield Finding(
            "memory.low",
            Verdict.WARN,
            f"only {text}",
            "look who holds it (`ps aux --sort -rss | head`); huge pages and tmpfs count as well",
            consequence="a load fails or swaps",
        )
    else:
        yield Finding("memory", Verdict.OK, text)


def _size(number: int) -> str:
    value = float(number)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if value >= 10 or value == int(value) else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.0f}"
