"""Making a release: all that a host of the fleet needs to serve one plan from one image, as one JSON object.

`python -m deploy_kit.deploy.release` reads the wish as JSON on stdin and prints the release; Ansible's role
`roll` sends it to the host's agent (`host_agent.py stage`), which refuses one whose id is not that of its
contents.
A release holds no secret: the key stays in its own file on the host, and Compose mounts it.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from deploy_kit.configs.catalog import Catalog
from deploy_kit.deploy.checkout import service_of
from deploy_kit.deploy.host_agent import release_id
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.output import print_error, print_json
from deploy_kit.plan.model import Plan
from deploy_kit.plan.resolve import resolve

_DIGEST = re.compile(r"^[^\s@]+@sha256:[0-9a-f]{64}$")


@dataclass(frozen=True)
class ReleaseWish:
    """What a host should serve. `host_file` is the text of its own host.toml, "" where it has none."""

    image: str
    profile: str = "eagle3"
    host: str = ""
    host_file: str = ""
    model: str = ""
    stack: str = ""
    levers: tuple[str, ...] = ()
    publish: str = "127.0.0.1"
    port: int = 30000
    metrics_port: int = 9400
    api_key_file: str = "/var/lib/deploy-kit/secrets/api_key"
    models_directory: str = "/srv/models"
    host_directory: str = "/etc/deploy-kit"
    receipts_directory: str = "/var/lib/deploy-kit/receipts"

    @classmethod
    def parse(cls, text: str) -> ReleaseWish:
        """Given JSON, return the wish; unknown keys and wrong types are refused."""
        try:
            given = json.loads(text)
            wish = cls(**{**given, "levers": tuple(given.get("levers", ()))})
        except (ValueError, TypeError, AttributeError) as error:
            raise DeployKitError(
                "a wish that is not one",
                found=str(error),
                allowed=", ".join(one.name for one in fields(cls)),
                exit_code=ExitCode.INPUT,
            ) from error
        return wish


def refuse_without_digest(image: str) -> None:
    """Raise unless the image is named by its digest: a tag may be another image on the next host."""
    if not _DIGEST.match(image):
        raise DeployKitError(
            "a fleet is deployed by digest",
            key="roll_image",
            found=image or "nothing",
            allowed="NAME@sha256:…",
            remedy="docker buildx imagetools inspect NAME:TAG shows the digest",
            exit_code=ExitCode.CONFIG,
        )


def make_settings(wish: ReleaseWish, plan: Plan) -> str:
    """Given the wish and its plan, return the text of settings.env for Compose: no secret, no release id."""
    # A host file is mounted and read by `serve` itself; a name is handed over.
    settings = {
        "DEPLOY_KIT_IMAGE": wish.image,
        "DEPLOY_KIT_PROMETHEUS_IMAGE": "not-started-here",
        "DEPLOY_KIT_HOST": "" if wish.host_file else plan.host,
        "DEPLOY_KIT_MODEL": plan.model,
        "DEPLOY_KIT_STACK": plan.stack,
        "DEPLOY_KIT_LEVERS": ",".join(plan.levers),
        "DEPLOY_KIT_API_KEY_FILE": wish.api_key_file,
        "DEPLOY_KIT_MODELS_DIRECTORY": wish.models_directory,
        "DEPLOY_KIT_HOST_DIRECTORY": wish.host_directory,
        "DEPLOY_KIT_RECEIPTS_DIRECTORY": wish.receipts_directory,
        "DEPLOY_KIT_CPUSET": plan.cpuset or "",
        "DEPLOY_KIT_PUBLISH": wish.publish,
        "DEPLOY_KIT_ENGINE_PORT": str(wish.port),
        "DEPLOY_KIT_METRICS_PORT": str(wish.metrics_port),
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def make_release(wish: ReleaseWish, plan: Plan, compose: Mapping[str, str]) -> dict[str, Any]:
    """Given the wish, its plan and Compose's files (name → text, in their order), return the release."""
    refuse_without_digest(wish.image)
    files = {**compose, "settings.env": make_settings(wish, plan)}
    files["plan.json"] = json.dumps(plan.as_dict(), indent=1, sort_keys=True, default=str) + "\n"
    return {
        "release": release_id(plan.plan_id, wish.image, files),
        "plan_id": plan.plan_id,
        "image": wish.image,
        "profile": wish.profile,
        "model": plan.served_model_name,
        "rehearsal": plan.rehearsal,
        "service": service_of(wish.profile),
        "url": f"http://{wish.publish}:{wish.port}",
        "api_key_file": wish.api_key_file,
        "compose_files": list(compose),
        "files": files,
    }


def read_release(wish: ReleaseWish, checkout: Path) -> dict[str, Any]:
    """Resolve the wish with the checkout's configs and Compose files; return the release."""
    with tempfile.TemporaryDirectory(prefix="deploy-kit-release-") as folder:
        host = wish.host
        if wish.host_file and not host:
            path = Path(folder) / "host.toml"
            path.write_text(wish.host_file)
            host = str(path)
        plan = resolve(
            Catalog.find(checkout / "configs"),
            wish.profile,
            host=host or None,
            stack=wish.stack or None,
            model=wish.model or None,
            levers=wish.levers,
        )
    names = ("compose.yaml", f"compose.{'rehearsal' if plan.rehearsal else 'gpu'}.yaml", "compose.fleet.yaml")
    return make_release(wish, plan, {name: (checkout / "docker" / name).read_text() for name in names})


def main() -> None:
    """Command line for Ansible's role `roll`."""
    try:
        print_json(read_release(ReleaseWish.parse(sys.stdin.read()), Path.cwd()))
    except DeployKitError as error:
        print_error(error, as_json=True)
        sys.exit(int(error.exit_code))


if __name__ == "__main__":
    main()
