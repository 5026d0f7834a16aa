"""Looking at this machine before a first light: GPUs, torch, the engine image, other engines."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

from deploy_kit.configs.catalog import Catalog
from deploy_kit.deploy.checkout import SERVICES, find_checkout, read_settings_file
from deploy_kit.deploy.compose import read_status
from deploy_kit.deploy.machine import docker_answers
from deploy_kit.deploy.up import Wish, choose_host
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.firstlight.settings import Settings, Situation, State
from deploy_kit.firstlight.steps import has_torch
from deploy_kit.plan.resolve import resolve
from deploy_kit.runtime.preflight import count_gpus


def look(settings: Settings) -> Situation:
    """Return what this machine is. Names that do not exist raise, before anything runs."""
    gpus = count_gpus()
    host = choose_host(Wish(host=settings.host), gpus=gpus)
    catalog = Catalog.find()
    plans = [
        resolve(catalog, profile, host=host, stack=settings.stack, model=settings.model)
        for profile in settings.profiles
    ]
    if not plans:
        raise DeployKitError("no profile to measure", key="--profile", exit_code=ExitCode.USAGE)
    return Situation(
        gpus=gpus, host=host or plans[0].host, model=plans[0].model, torch=has_torch(), image=_image()
    )


def refuse_foreign_engines(settings: Settings, state: State) -> None:
    """Raise when an engine of the project runs here that is not this first light's: it would be stopped."""
    ours = [profile for profile in settings.profiles if profile not in settings.servers]
    if not ours or state.engine is not None or shutil.which("docker") is None or not docker_answers():
        return
    running = [
        one.service for one in read_status() if one.state == "running" and one.service in SERVICES.values()
    ]
    if running:
        raise DeployKitError(
            "an engine is running here already",
            found=", ".join(running),
            remedy="stop it (deploy-kit down), or measure it as it is: --server PROFILE=URL",
            exit_code=ExitCode.PORT_TAKEN,
        )


def key_files(settings: Settings, work: Path) -> list[Path]:
    """Return the files whose content must never be packed."""
    found = [Path("/run/secrets/api_key"), *work.glob("**/api_key*")]
    if settings.api_key_file:
        found.append(Path(settings.api_key_file))
    with contextlib.suppress(DeployKitError):
        found += (find_checkout() / "var" / "secrets").glob("*")
    return [path for path in found if path.is_file()]


def _image() -> str | None:
    try:
        name = read_settings_file(find_checkout()).get("DEPLOY_KIT_IMAGE")
    except DeployKitError:
        return None
    if not name or shutil.which("docker") is None:
        return None
    asked = subprocess.run(["docker", "image", "inspect", name], capture_output=True, check=False)
    return name if asked.returncode == 0 else None
