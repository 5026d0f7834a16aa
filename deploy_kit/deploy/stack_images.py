"""Building a stack's GPU image, slice or bill of materials; saying in a sentence why pip refused."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from deploy_kit.configs.schema import Stack
from deploy_kit.deploy.images import build
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import read_text
from deploy_kit.stacks.local_image import ask_docker
from deploy_kit.stacks.locks import Pin, normalised, read_lock
from deploy_kit.stacks.verify import make_arguments, verify

TARGETS = ("gpu", "slice", "gpu-sbom")


def build_target(
    stack: Stack, root: Path, target: str, *, tag: str, output: Path | None = None
) -> dict[str, object]:
    """Build one target for a stack; where the lock was the reason for a failure, the error names the lock's
    line, what was found and what is allowed. `output`: a folder for gpu-sbom's files.

    A stack that disagrees with what is made from it is refused before the build starts."""
    refuse_disagreement(stack, root)
    flags = ("--output", f"type=local,dest={output}") if output is not None else ()
    try:
        return build(
            root, target, tag, revision=git_revision(root), arguments=make_arguments(stack), flags=flags
        )
    except DeployKitError as error:
        log = root / "var" / f"build-{target}.log"
        better = explain(read_text(log), root / stack.requirements) if log.is_file() else None
        raise better or error from error


def refuse_disagreement(stack: Stack, root: Path) -> None:
    """Given a stack and the repository's root, raise when lock, Dockerfile, flake or a patch says otherwise:
    the build would find out after most of an hour, or never."""
    wrong = [check for check in verify(stack, root) if not check.ok]
    if wrong:
        raise DeployKitError(
            "the stack and what is made from it disagree"
            + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""),
            file=root / "configs/stacks" / f"{stack.name}.toml",
            key=wrong[0].name,
            found=wrong[0].detail.partition("found ")[2].partition(", allowed ")[0] or wrong[0].detail,
            allowed=wrong[0].detail.partition(", allowed ")[2] or None,
            remedy=f"deploy-kit stack verify {stack.name} lists every difference",
            exit_code=ExitCode.VERDICT_FAIL,
        )


def git_revision(root: Path) -> str:
    """Return the revision of a checkout, with -changed when files differ from it; unknown outside of one."""
    done = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=-changed"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def explain(log: str, lock: Path) -> DeployKitError | None:
    """Given a build's log and the lock it installed from, return an error that names the lock's line, or None
    when pip was not the one that refused."""
    pins = read_lock(lock)
    text = re.sub(r"(?m)^#\d+ [\d.]+ ", "", log)
    wrong = re.search(
        r"DO NOT MATCH THE HASHES.*?\n\s+(?P<package>[A-Za-z0-9._-]+)==.*?Expected.*?sha256 (?P<wanted>\w+)"
        r".*?Got\s+(?P<found>[0-9a-f]{64})",
        text,
        flags=re.DOTALL,
    )
    if wrong:
        return _refusal(
            "a wheel has another hash than the lock", lock, pins, wrong["package"], wrong["found"]
        )
    missing = re.search(
        r"No matching distribution found for (?P<package>[A-Za-z0-9._-]+)==(?P<version>\S+)", text
    )
    if missing:
        return _refusal("no index offers a wheel that the lock pins", lock, pins, missing["package"], "none")
    return None


def _refusal(summary: str, lock: Path, pins: dict[str, Pin], package: str, found: str) -> DeployKitError:
    pin = pins.get(normalised(package))
    hashes = pin.hashes if pin else ()
    listed = ", ".join(f"sha256:{word}" for word in hashes[:3]) + (" …" if len(hashes) > 3 else "")
    return DeployKitError(
        summary,
        file=lock,
        key=f"line {pin.line}: {pin.name}=={pin.version}" if pin else package,
        found=found if found == "none" else f"sha256:{found}",
        allowed=f"one of {len(hashes)} hashes: {listed}",
        remedy="deploy-kit stack verify --online lists what is affected; deploy-kit stack lock locks anew",
        exit_code=ExitCode.DEPLOY_FAILED,
    )


def read_labels(image: str) -> dict[str, str]:
    """Return a local image's labels; a `DeployKitError` when there is no such image or no Docker."""
    import json

    words = ("image", "inspect", "--format", "{{json .Config.Labels}}", image)
    said = ask_docker(words, failure="the image cannot be inspected", key="--image")
    return dict(json.loads(said) or {})
