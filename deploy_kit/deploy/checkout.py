"""Where the checkout is that `up`, `down` and Ansible work on, and what is in its `.env`."""

from __future__ import annotations

from pathlib import Path

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

PROJECT = "deploy-kit"
# Profile → Compose service; the role `engine` has the same table (a test compares).
SERVICES = {"eagle3": "kimi-eagle", "baseline": "kimi-baseline", "ngram": "kimi-ngram"}
DEFAULT_PORTS = {"kimi-eagle": 30000, "kimi-baseline": 30001, "kimi-ngram": 30002, "prometheus": 9090}


def find_checkout(start: Path | None = None) -> Path:
    """Return the repository's root: the working directory or a parent of it, else where the package lies."""
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents, Path(__file__).resolve().parents[2]):
        if (folder / "ansible/deploy.yml").is_file() and (folder / "docker/compose.yaml").is_file():
            return folder
    raise DeployKitError(
        "this is not a checkout of the project",
        file=start,
        found="no ansible/deploy.yml here or above",
        remedy="run it from the repository's root",
        exit_code=ExitCode.INPUT,
    )


def read_settings_file(checkout: Path) -> dict[str, str]:
    """Return what `.env` at the repository's root says; empty when `up` has not written it yet."""
    path = checkout / ".env"
    if not path.is_file():
        return {}
    lines = (line.strip() for line in path.read_text(errors="replace").splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def service_of(profile: str) -> str:
    """Return the Compose service of a profile; an error names the nearest when there is none."""
    from deploy_kit.errors import nearest_names

    if profile in SERVICES:
        return SERVICES[profile]
    raise DeployKitError(
        f"no Compose service serves the profile {profile}",
        key="--profile",
        found=profile,
        allowed=nearest_names(profile, list(SERVICES)) or list(SERVICES),
        remedy="other profiles are served by `deploy-kit serve PROFILE` in the image",
        exit_code=ExitCode.UNKNOWN_NAME,
    )
