"""What must hold on this machine before `up` changes anything: Docker or root, space, free ports."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

BUILD_BYTES = 8_000_000_000
_LISTEN = "0A"


@dataclass(frozen=True)
class Listener:
    """A process that listens on a TCP port; `pid` is None when we may not see whose it is."""

    port: int
    pid: int | None
    name: str | None

    def __str__(self) -> str:
        if self.pid is None:
            return f"port {self.port}: a process we may not see (run as root to learn which)"
        return f"port {self.port}: {self.name} (process {self.pid})"


def refuse_without_engine(*, answers: bool, root: bool) -> None:
    """Given whether Docker answers and whether we are root, raise when neither holds."""
    if not answers and not root:
        raise DeployKitError(
            "Docker does not answer, and only root can install or start it",
            found="no answer from `docker version`, and not root",
            allowed="a Docker that this user may use, or root",
            remedy="sudo make up; or ask for membership in the group docker",
            exit_code=ExitCode.NO_DOCKER,
        )


def refuse_full_disk(folder: Path, *, free_bytes: int, wanted_bytes: int = BUILD_BYTES) -> None:
    """Raise when there is less room than an image build takes."""
    if free_bytes < wanted_bytes:
        raise DeployKitError(
            "the disk is nearly full",
            file=folder,
            found=f"{free_bytes / 1e9:.1f} GB free",
            allowed=f"at least {wanted_bytes / 1e9:.0f} GB for an image build",
            remedy="free space (docker system prune), or move Docker's data root; nothing was changed",
            exit_code=ExitCode.DISK_FULL,
        )


def refuse_taken_ports(listeners: Iterable[Listener]) -> None:
    """Raise when somebody else listens on a port we are to publish."""
    taken = list(listeners)
    if taken:
        raise DeployKitError(
            "a port is taken",
            found="; ".join(str(one) for one in taken),
            remedy="stop that process, or choose another port: --port",
            exit_code=ExitCode.PORT_TAKEN,
        )


def docker_answers() -> bool:
    """Return whether a container engine answers this user."""
    if shutil.which("docker") is None:
        return False
    done = subprocess.run(
        ["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, check=False
    )
    return done.returncode == 0


def docker_root() -> Path:
    """Return where Docker keeps its images, or would."""
    if shutil.which("docker") is not None:
        done = subprocess.run(
            ["docker", "info", "--format", "{{.DockerRootDir}}"], capture_output=True, text=True, check=False
        )
        if done.returncode == 0 and done.stdout.strip():
            return Path(done.stdout.strip())
    return Path("/var/lib/docker")


def free_bytes(folder: Path) -> int:
    """Return the free space of the file system that holds `folder`, or will hold it."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def listening_inodes(table: str) -> dict[int, set[str]]:
    """Given the text of /proc/net/tcp, return port → socket inodes of what listens."""
    found: dict[int, set[str]] = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN:
            found.setdefault(int(fields[1].rpartition(":")[2], 16), set()).add(fields[9])
    return found


def listeners(ports: Iterable[int], proc: Path = Path("/proc")) -> list[Listener]:
    """Return who listens on any of `ports`, as far as this user may see."""
    inodes: dict[int, set[str]] = {}
    for name in ("tcp", "tcp6"):
        try:
            table = (proc / "net" / name).read_text()
        except OSError:
            continue
        for port, found in listening_inodes(table).items():
            inodes.setdefault(port, set()).update(found)
    wanted = {port: inodes[port] for port in ports if port in inodes}
    return [_holder(port, found, proc) for port, found in wanted.items()]


def _holder(port: int, inodes: set[str], proc: Path) -> Listener:
    links = {f"socket:[{inode}]" for inode in inodes}
    for folder in proc.glob("[0-9]*"):
        try:
            if any(os.readlink(entry) in links for entry in (folder / "fd").iterdir()):  # noqa: PTH115
                return Listener(port, int(folder.name), (folder / "comm").read_text().strip())
        except OSError:
            continue
    return Listener(port, None, None)
