"""Where the monitoring's images come from: upstream where a registry answers, else Debian's packages.

Ansible's role `monitoring` calls it: `python -m deploy_kit.deploy.monitoring_images choose|build`.
Prometheus, Alertmanager and node-exporter can be built from Debian packages; Grafana and dcgm-exporter
cannot, so without a registry they are left out, and the answer says so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from deploy_kit.deploy.images import PULL_SECONDS, build, image_id
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import read_text, write_atomically
from deploy_kit.output import print_error, print_json

Source = Literal["upstream", "debian"]
Level = Literal["full", "prometheus"]

# Service → its target in docker/Dockerfile and the tag that the Compose files name.
DEBIAN = {
    "prometheus": ("prometheus-debian", "deploy-kit/prometheus:debian"),
    "alertmanager": ("alertmanager-debian", "deploy-kit/alertmanager:debian"),
    "node-exporter": ("node-exporter-debian", "deploy-kit/node-exporter:debian"),
}
# Services that have no Debian package, and why one misses them.
ONLY_UPSTREAM = {
    "grafana": "the dashboards' queries work against Prometheus, but nothing draws them",
    "dcgm-exporter": "no GPU power, clocks, temperature or PCIe throughput, and their alerts cannot fire",
}


@dataclass(frozen=True)
class Choice:
    """Which images are used, and what is left out (service → sentence)."""

    source: Source
    images: Mapping[str, str]
    left_out: Mapping[str, str]
    reason: str

    def as_dict(self, *, changed: bool) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "source": self.source,
            "images": dict(self.images),
            "left_out": dict(self.left_out),
            "reason": self.reason,
            "changed": changed,
        }


def upstream_images(compose: str) -> dict[str, str]:
    """Given the text of compose.monitoring.yaml, return the pinned upstream image of each service.

    >>> upstream_images("x-prometheus-image: a/b:1@sha256:" + "0" * 64)["prometheus"][:5]
    'a/b:1'
    """
    found = {}
    service = None
    for line in compose.splitlines():
        if match := re.match(r"  ([a-z][a-z-]*):", line):
            service = match[1]
        pinned = re.match(r"(?:x-([a-z-]+)-|    )image: (\S+:\S+@sha256:[0-9a-f]{64})", line)
        if pinned and (pinned[1] or service):
            found[pinned[1] or str(service)] = pinned[2]
    return found


def wanted_services(level: Level, *, gpus: bool) -> tuple[str, ...]:
    """Return the services of a monitoring level, on a machine with or without GPUs."""
    if level == "prometheus":
        return ("prometheus",)
    return ("prometheus", "alertmanager", "node-exporter", "grafana", *(("dcgm-exporter",) if gpus else ()))


def choose(
    wanted: tuple[str, ...],
    upstream: Mapping[str, str],
    *,
    asked: str,
    there: Callable[[str], bool],
    pull: Callable[[str], str | None],
) -> Choice:
    """Given the wanted services, the upstream images and what was asked for (auto, upstream, debian), return
    what to use. `there` says whether a local image of a name exists; `pull` fetches one and returns None, or
    why it cannot. Nothing is pulled once the Debian images exist: the registry was asked then.

    Raises `DeployKitError` when upstream images were asked for and cannot be had."""
    debian = _debian(wanted, "asked for" if asked == "debian" else "built from Debian before")
    if asked == "debian":
        return debian
    missing = [service for service in wanted if not there(upstream[service])]
    if asked == "auto" and missing and all(there(image) for image in debian.images.values()):
        return debian
    left_out: dict[str, str] = {}
    # The smallest first: where no registry answers, one failure is enough to know.
    for service in sorted(missing, key=lambda name: (name != "node-exporter", name)):
        why = pull(upstream[service])
        if why is None:
            continue
        if asked == "upstream":
            raise DeployKitError(
                "an upstream image cannot be pulled",
                key="monitoring_images",
                found=f"{upstream[service]}: {why}",
                allowed="a registry that answers",
                remedy="monitoring_images=debian builds from Debian's packages, without Grafana",
                exit_code=ExitCode.DEPLOY_FAILED,
            )
        if service in DEBIAN:
            return _debian(wanted, f"no registry answers ({why})")
        left_out[service] = f"{service} is LEFT OUT: {why}; {ONLY_UPSTREAM[service]}"
    images = {service: upstream[service] for service in wanted if service not in left_out}
    return Choice("upstream", images, left_out, "upstream images")


def _debian(wanted: tuple[str, ...], reason: str) -> Choice:
    return Choice(
        "debian",
        {service: DEBIAN[service][1] for service in wanted if service in DEBIAN},
        {
            service: f"{service} is LEFT OUT: Debian has no package of it; {consequence}"
            for service, consequence in ONLY_UPSTREAM.items()
            if service in wanted
        },
        reason,
    )


def pull_image(name: str, *, timeout_seconds: float) -> str | None:
    """Pull an image; return None, or in a few words why it cannot be had."""
    try:
        done = subprocess.run(
            ["docker", "pull", "--quiet", name],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired:
        return "no answer in time"
    except FileNotFoundError:
        return "no docker command"
    if done.returncode == 0:
        return None
    return " ".join((done.stderr.strip().splitlines() or ["no reason given"])[-1].split())[-160:]


def build_debian(root: Path, services: tuple[str, ...]) -> dict[str, Any]:
    """Build the Debian images of `services`; return what was built. An image that exists and was built from
    this very Dockerfile is left alone: the targets take nothing else from the checkout."""
    stamp_file = root / "var/monitoring-images.json"
    text = hashlib.sha256(read_text(root / "docker/Dockerfile", what="Dockerfile").encode()).hexdigest()
    try:
        stamp = json.loads(stamp_file.read_text())
        known = stamp["images"] if stamp["dockerfile"] == text else {}
    except (OSError, ValueError, TypeError, KeyError):
        known = {}
    images, built = dict(known), []
    changed = False
    for service in services:
        target, tag = DEBIAN[service]
        present = image_id(tag)
        if present is None or known.get(tag) != present:
            answer = build(root, target, tag)
            images[tag] = answer["id"]
            changed = changed or bool(answer["changed"])
            built.append(service)
    if built:
        stamp_file.parent.mkdir(exist_ok=True)
        write_atomically(stamp_file, json.dumps({"dockerfile": text, "images": images}, indent=1) + "\n")
    return {"built": built, "changed": changed}


def main() -> None:
    """Command line for Ansible's role."""
    parser = argparse.ArgumentParser(prog="deploy_kit.deploy.monitoring_images")
    parser.add_argument("action", choices=["choose", "build"])
    parser.add_argument("--root", type=Path, default=Path.cwd())
    parser.add_argument("--level", choices=["full", "prometheus"], default="full")
    parser.add_argument("--images", choices=["auto", "upstream", "debian"], default="auto")
    parser.add_argument("--no-pull", action="store_true", help="fetch nothing: for a dry run")
    parser.add_argument("--services", default="", help="for build: their names, set apart by commas")
    arguments = parser.parse_args()
    try:
        if arguments.action == "build":
            services = tuple(name for name in arguments.services.split(",") if name)
            print_json(build_debian(arguments.root, services))
            return
        pulled: list[str] = []

        def pull(name: str) -> str | None:
            if arguments.no_pull:
                return "a dry run fetches nothing"
            # A registry that has answered may take its time for the larger images.
            why = pull_image(name, timeout_seconds=10 * PULL_SECONDS if pulled else PULL_SECONDS)
            if why is None:
                pulled.append(name)
            return why

        def there(name: str) -> bool:
            try:
                return image_id(name) is not None
            except FileNotFoundError:  # no docker yet: a dry run on a bare machine
                return False

        gpus = any(Path("/dev").glob("nvidia[0-9]*"))
        compose = read_text(arguments.root / "docker/compose.monitoring.yaml", what="Compose file")
        choice = choose(
            wanted_services(arguments.level, gpus=gpus),
            upstream_images(compose),
            asked=arguments.images,
            there=there,
            pull=pull,
        )
        print_json(choice.as_dict(changed=bool(pulled)))
    except DeployKitError as error:
        print_error(error)
        sys.exit(int(error.exit_code))


if __name__ == "__main__":
    main()
