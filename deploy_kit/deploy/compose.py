"""What runs of our Compose project, and stopping it; by label, so a broken `.env` does not matter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deploy_kit.deploy.checkout import PROJECT
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

DOCKERD_PID_FILE = Path("/run/deploy-kit-dockerd.pid")


@dataclass(frozen=True)
class ServiceStatus:
    """One container of the project. `health` is "" where there is no health check."""

    service: str
    container: str
    state: str
    health: str
    status: str
    ports: str
    image: str
    exit_code: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it for `--json`."""
        return asdict(self)


def parse_containers(text: str) -> list[ServiceStatus]:
    """Given `docker ps --format json` (one object a line), return the containers, by service.

    Raises `DeployKitError` when a line is not one of Docker's."""
    found = []
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            labels = dict(pair.partition("=")[::2] for pair in str(entry["Labels"]).split(","))
            status = str(entry["Status"])
            health = status.rpartition("(")[2].rstrip(")").removeprefix("health: ") if "(" in status else ""
            exited = status.startswith("Exited (")
            found.append(
                ServiceStatus(
                    service=labels.get("com.docker.compose.service", "?"),
                    container=str(entry["Names"]),
                    state=str(entry["State"]),
                    health="" if exited or health not in ("healthy", "unhealthy", "starting") else health,
                    status=status,
                    ports=str(entry["Ports"]),
                    image=str(entry["Image"]),
                    exit_code=int(status[8:].partition(")")[0]) if exited else None,
                )
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DeployKitError(
                "an answer of Docker that makes no sense",
                key="docker ps --format json",
                found=line[:200],
                exit_code=ExitCode.FAILURE,
            ) from error
    return sorted(found, key=lambda one: one.service)


def read_status() -> list[ServiceStatus]:
    """Return every container of the project, running or not."""
    listing = ["ps", "--all", "--no-trunc", "--format", "json"]
    return parse_containers(docker([*listing, "--filter", f"label=com.docker.compose.project={PROJECT}"]))


def engine_state(container: str) -> dict[str, Any] | None:
    """Return what `deploy-kit health --json` says inside a container; None when it does not answer."""
    done = subprocess.run(
        ["docker", "exec", container, "deploy-kit", "health", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def docker(arguments: Sequence[str]) -> str:
    """Run docker with `arguments` and return its output; a refusal is explained."""
    try:
        done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise DeployKitError(
            "Docker is not installed", remedy="make up installs it", exit_code=ExitCode.NO_DOCKER
        ) from error
    if done.returncode != 0:
        raise container_error(f"docker {arguments[0]}", done.stderr or done.stdout)
    return done.stdout


def container_error(doing: str, text: str, *, default: ExitCode = ExitCode.DEPLOY_FAILED) -> DeployKitError:
    """Given what Docker or Compose printed when it refused, return the error to raise."""
    from deploy_kit.runtime.container_faults import explain_container_fault

    fault = explain_container_fault(text)
    last = " ".join(text.split())[-400:]
    if fault is None:
        unreachable = "Cannot connect to the Docker daemon" in text or "permission denied" in text
        return DeployKitError(
            f"{doing} failed",
            found=last or "no word why",
            remedy="make up starts Docker" if unreachable else None,
            exit_code=ExitCode.NO_DOCKER if unreachable else default,
        )
    return DeployKitError(
        f"{doing} failed: {fault.cause}", found=fault.evidence, remedy=fault.remedy, exit_code=default
    )


def remove_project(*, timeout_seconds: int = 75, volumes: bool = False) -> list[str]:
    """Stop and remove the project's containers and networks (and volumes); return what there was."""
    there = [one.service for one in read_status()]
    command = ["docker", "compose", "--project-name", PROJECT, "down", "--remove-orphans"]
    command += ["--timeout", str(timeout_seconds), *(["--volumes"] if volumes else [])]
    # By project name alone: no file is read, so neither `.env` nor compose.yaml can stand in the way.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COMPOSE_")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=environment)
    if done.returncode != 0:
        raise container_error("stopping the services", done.stderr)
    return there


def own_dockerd(pid_file: Path = DOCKERD_PID_FILE, proc: Path = Path("/proc")) -> int | None:
    """Return the process id of the dockerd that the role started by hand; None when there is none."""
    try:
        pid = int(pid_file.read_text())
        name = (proc / str(pid) / "comm").read_text().strip()
    except (OSError, ValueError):
        return None
    return pid if name == "dockerd" else None


def stop_dockerd(pid: int, *, timeout_seconds: float = 60.0) -> None:
    """End the dockerd with this id and wait until it is gone."""
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise DeployKitError(
            "only root can stop the Docker that root started",
            found=f"dockerd, process {pid}",
            remedy="sudo deploy-kit down",
            exit_code=ExitCode.PERMISSION,
        ) from error
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        if own_dockerd() != pid:
            return
        time.sleep(0.2)
    raise DeployKitError(
        "dockerd does not end",
        found=f"process {pid} after {timeout_seconds:.0f} s",
        remedy="its log is /var/log/deploy-kit-dockerd.log",
        exit_code=ExitCode.FAILURE,
    )
