"""What this machine's Docker says of an image that it has."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode


def ask_docker(words: Sequence[str], *, failure: str, key: str) -> str:
    """Return what `docker WORDS…` prints; a `DeployKitError` (`failure`, about `key`) when there is no such
    image or no Docker."""
    try:
        done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise DeployKitError("docker is not installed", exit_code=ExitCode.NO_DOCKER) from error
    if done.returncode != 0:
        raise DeployKitError(
            failure,
            key=key,
            found=(done.stderr.strip().splitlines() or ["no reason given"])[-1],
            allowed="an image of this machine's Docker",
            remedy="docker pull it, or deploy-kit stack build NAME",
            exit_code=ExitCode.INPUT,
        )
    return done.stdout
