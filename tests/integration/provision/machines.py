"""Real systemd machines as Ansible's targets: privileged containers of a Debian made from packages.

They share the kernel of the real machine, so nothing of the running kernel may be set from inside: the roles
see a container and do not, and the image's own services for it are masked. GRUB, initramfs-tools and Docker
are stand-ins that say so; they show that the right files are read and the right commands are called.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ubuntu_root
import yaml

from deploy_kit.deploy.images import apt_configuration, debian_sources

ROOT = Path(__file__).parents[3]
CAPTURE = Path(__file__).parent / "captured-gpu-host"
PACKAGES = "apt,systemd,systemd-sysv,python3,python3-apt,pciutils,kmod,procps"
# What a container may not do at its own boot: its sysctls and /sys are the real machine's.
MASKED = ("systemd-sysctl.service", "systemd-tmpfiles-setup-dev.service", "systemd-modules-load.service")
GRUB = """\
# The distribution's own file, with settings that contradict what is wanted.
GRUB_DEFAULT=0
GRUB_CMDLINE_LINUX="console=ttyS0 iommu=nopt"
GRUB_CMDLINE_LINUX_DEFAULT="quiet pcie_aspm=force amd_iommu=on"
"""
CLOUD = 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT splash"\n'
UPDATE_GRUB = """\
#!/bin/sh
# STAND-IN for update-grub: reads the same files in the same order, writes the resulting command line.
set -e
. /etc/default/grub
for file in /etc/default/grub.d/*.cfg; do if [ -e "$file" ]; then . "$file"; fi; done
mkdir -p /run/stand-in && echo "linux $GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT" >/run/stand-in/grub.cfg
"""
UPDATE_INITRAMFS = """\
#!/bin/sh
# STAND-IN for update-initramfs: notes that it was called.
mkdir -p /run/stand-in && echo "$@" >>/run/stand-in/initramfs
"""
DOCKER = """\
#!/bin/sh
# STAND-IN for the docker command: a Docker with both plug-ins that answers.
echo 26.1.5
"""
DOCKER_SERVICE = """\
[Unit]
Description=STAND-IN for dockerd: notes each start and reload
[Service]
ExecStartPre=/bin/sh -c 'mkdir -p /run/stand-in && echo start >>/run/stand-in/docker'
ExecStart=/bin/sleep infinity
ExecReload=/bin/sh -c 'echo reload >>/run/stand-in/docker'
[Install]
WantedBy=multi-user.target
"""
DAEMON_JSON = '{"bip": "10.9.0.1/24", "log-opts": {"labels": "mine"}}'
SNAPSHOT = r"""
import hashlib, json, os, sys
found = {}
for top in ("/etc", "/usr/local", "/usr/sbin", "/boot", "/var/lib/deploy-kit", "/srv"):
    for folder, folders, files in os.walk(top):
        status = os.lstat(folder)
        found[folder] = ["folder", status.st_mode, status.st_uid, status.st_gid]
        for name in files + folders:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            if os.path.islink(path):
                found[path] = ["link", os.readlink(path)]
            elif os.path.isfile(path):
                digest = hashlib.sha256(open(path, "rb").read()).hexdigest()
                found[path] = ["file", digest, status.st_mode, status.st_uid, status.st_gid,
                status.st_mtime_ns]
for name in ("kernel/numa_balancing", "vm/swappiness", "vm/max_map_count"):
    try:
        found[name] = open("/proc/sys/" + name).read()
    except OSError:
        pass
json.dump(found, sys.stdout)
"""


def docker(*words: str, stdin: str | bytes | None = None) -> str:
    """Run docker, return what it prints."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(["docker", *words], capture_output=True, input=data, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@dataclass
class Played:
    """How a playbook went."""

    code: int
    output: str

    @property
    def changed(self) -> int:
        """How many tasks changed something, over all hosts."""
        return sum(
            int(count) for count in re.findall(r"changed=(\d+)", self.output.rpartition("PLAY RECAP")[2])
        )

    @property
    def changed_tasks(self) -> set[str]:
        """Names of the tasks that changed something, or in check mode would."""
        tasks = re.split(r"^(?:TASK|RUNNING HANDLER) \[(.+)\] \*+$", self.output, flags=re.MULTILINE)[1:]
        pairs = zip(tasks[::2], tasks[1::2], strict=True)
        return {name for name, said in pairs if re.search(r"^changed: \[", said, re.MULTILINE)}

    @property
    def words(self) -> str:
        """The output with its white space evened out: messages are wrapped."""
        return " ".join(self.output.replace("\\n", " ").split())


def play(inventory: Path, playbook: str, *words: str) -> Played:
    """Run a playbook of this checkout."""
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "ansible-playbook"),
            "-i",
            str(inventory),
            f"ansible/{playbook}",
            *words,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_FORKS": "1",
        },
    )
    return Played(done.returncode, done.stdout + done.stderr)


def write_inventory(folder: Path, host: str, **variables: Any) -> Path:
    """Write an inventory of one host; return its path."""
    path = folder / "hosts.yml"
    path.write_text(yaml.safe_dump({"all": {"hosts": {host: variables}}}))
    return path


@dataclass
class Machine:
    """One container that runs systemd."""

    name: str
    folder: Path

    def inventory(self, **variables: Any) -> Path:
        """Write the machine's inventory: a GPU host by a constructed capture, unless told otherwise."""
        defaults = {
            "ansible_connection": "community.docker.docker",
            "ansible_python_interpreter": "/usr/bin/python3",
            "provision_capture": str(CAPTURE),
            # No NVIDIA package can be had here: driver and toolkit are somebody else's business in these
            # tests.
            "nvidia_driver_install": False,
            "nvidia_container_toolkit": False,
        }
        return write_inventory(self.folder, self.name, **{**defaults, **variables})

    def run(self, *words: str, stdin: str | None = None) -> str:
        """Run a command inside."""
        return docker("exec", *(["-i"] if stdin is not None else []), self.name, *words, stdin=stdin)

    def read(self, path: str) -> str:
        """Return a file's content."""
        return self.run("cat", path)

    def write(self, path: str, content: str, mode: str = "0644") -> None:
        """Write a file with its folders."""
        self.run(
            "sh", "-c", f"mkdir -p $(dirname {path}) && cat >{path} && chmod {mode} {path}", stdin=content
        )

    def snapshot(self) -> str:
        """Return everything that provisioning could change, as text."""
        return self.run("python3", "-c", SNAPSHOT)


def image_of(release: str) -> str:
    """Return the image of a release with systemd, made from packages where it is not there yet."""
    recipe = hashlib.sha256(repr((PACKAGES, MASKED)).encode()).hexdigest()[:8]
    tag = f"deploy-kit-provision-host:{release}-{recipe}"
    if subprocess.run(["docker", "image", "inspect", tag], capture_output=True, check=False).returncode == 0:
        return tag
    if shutil.which("mmdebstrap") is None or os.geteuid() != 0:
        pytest.skip("no mmdebstrap, or not root: the target's root file system is made from packages")
    masks = " ".join(f"$1/etc/systemd/system/{unit}" for unit in MASKED)
    hook = f"--customize-hook=for unit in {masks}; do ln -s /dev/null $unit; done"
    if release == ubuntu_root.RELEASE:
        if ubuntu_root.make_root(tag, PACKAGES.split(","), hook) is None:
            pytest.skip("no archive of Ubuntu answers beside Debian's, or no package of its key")
        return tag
    # A machine that knows only the other release's archive has this one in the same place.
    sources = debian_sources(release) or debian_sources("bookworm").replace(" bookworm", f" {release}")
    if not sources:
        pytest.skip(f"this machine's apt knows no archive of Debian {release}")
    settings = apt_configuration(
        subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    )
    with tempfile.TemporaryDirectory(prefix="deploy-kit-provision-") as folder:
        archive = Path(folder) / "root.tar"
        made = subprocess.run(
            [
                "mmdebstrap",
                "--quiet",
                "--variant=minbase",
                f"--include={PACKAGES}",
                *(f"--aptopt={line.removesuffix(';')}" for line in settings.splitlines()),
                hook,
                release,
                str(archive),
                "-",
            ],
            capture_output=True,
            text=True,
            input=sources,
            check=False,
        )
        assert made.returncode == 0, made.stderr[-2000:]
        docker("import", str(archive), tag)
    return tag


def start_machine(folder: Path, release: str = "bookworm", *, online: bool = False) -> Machine:
    """Start a container, wait for systemd, put the stand-ins and the files that were there before.

    `online`: with a network, room for a Docker of its own, and no stand-in for it."""
    image = image_of(release)
    name = f"deploy-kit-provision-{os.getpid()}-{time.monotonic_ns() % 10**6}"
    docker(
        "run", "--detach", "--name", name, "--hostname", "box1", "--privileged", "--cgroupns=private",
        *(("--volume", "/var/lib/docker") if online else ("--network", "none")),
        "--tmpfs", "/run", "--tmpfs", "/run/lock", image, "/sbin/init",
    )  # fmt: skip
    machine = Machine(name, folder)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        asked = subprocess.run(
            ["docker", "exec", name, "systemctl", "is-system-running"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.stdout.strip() in ("running", "degraded"):
            break
        time.sleep(0.5)
    else:
        pytest.fail(f"systemd does not run: {asked.stdout} {asked.stderr}")
    machine.write("/etc/default/grub", GRUB, "0640")
    machine.run("touch", "-d", "2021-02-03 04:05:06.789", "/etc/default/grub")
    machine.write("/etc/default/grub.d/50-cloud.cfg", CLOUD)
    machine.write("/usr/sbin/update-grub", UPDATE_GRUB, "0755")
    machine.write("/usr/sbin/update-initramfs", UPDATE_INITRAMFS, "0755")
    if online:
        return machine
    machine.write("/usr/local/bin/docker", DOCKER, "0755")
    machine.write("/etc/systemd/system/docker.service", DOCKER_SERVICE)
    machine.write("/etc/docker/daemon.json", DAEMON_JSON, "0600")
    machine.run("sh", "-c", "systemctl daemon-reload && systemctl enable --now docker 2>/dev/null")
    return machine


def require_docker() -> None:
    """Skip, with the reason, where no Docker answers."""
    if shutil.which("docker") is None:
        pytest.skip("no docker command")
    if (
        subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, check=False
        ).returncode
        != 0
    ):
        pytest.skip("no Docker answers: systemd containers are the targets")
