"""Whether a stack's source patches are applied to an installed SGLang: applied, skipped (why), or failed."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deploy_kit.configs.schema import Patch, Stack
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode


@dataclass(frozen=True)
class PatchState:
    """One patch: `state` is applied, not applied, skipped or failed."""

    file: str
    lever: str
    state: str
    why: str


def installed_version(site: Path, package: str = "sglang") -> str | None:
    """Return the version of a package installed in `site`, from its metadata's folder name."""
    found = sorted(site.glob(f"{package}-*.dist-info"))
    return found[0].name.removeprefix(f"{package}-").removesuffix(".dist-info") if found else None


def state_of(patch: Patch, stack: Stack, root: Path, site: Path) -> PatchState:
    """Given a patch and a site-packages folder, return whether it is applied there. Nothing is changed."""
    version = installed_version(site)
    if version is None:
        return PatchState(patch.file, patch.lever, "skipped", f"no sglang in {site}")
    if version != stack.versions.sglang:
        return PatchState(
            patch.file,
            patch.lever,
            "skipped",
            f"it is for sglang {stack.versions.sglang}, installed is {version}",
        )
    if _run(root / patch.file, site, "--reverse", "--dry-run").returncode == 0:
        return PatchState(patch.file, patch.lever, "applied", patch.why)
    trial = _run(root / patch.file, site, "--dry-run")
    if trial.returncode == 0 and not re.search(r"offset|fuzz", trial.stdout):
        return PatchState(patch.file, patch.lever, "not applied", "it would apply")
    return PatchState(patch.file, patch.lever, "failed", first_failure(trial.stdout) + f" (sglang {version})")


def apply(patch: Patch, stack: Stack, root: Path, site: Path) -> PatchState:
    """Apply a patch with zero fuzz and no offset; an already applied one is left alone; anything else is an
    error that names the file, the hunk and the version, with nothing changed."""
    state = state_of(patch, stack, root, site)
    if state.state == "applied":
        return state
    if state.state != "not applied":
        raise DeployKitError(
            "a patch cannot be applied",
            file=patch.file,
            key=f"lever {patch.lever}",
            found=state.why,
            allowed=f"the files of sglang {stack.versions.sglang}, unchanged",
            remedy="install the pinned version, or make the patch anew for the installed one",
            exit_code=ExitCode.CONFIG,
        )
    _run(root / patch.file, site).check_returncode()
    return PatchState(patch.file, patch.lever, "applied", patch.why)


def first_failure(text: str) -> str:
    """Given what `patch` printed, return the first hunk that failed, moved or needed fuzz, with its file.

    >>> first_failure("checking file a.py" + chr(10) + "Hunk #2 FAILED at 10.")
    'a.py: Hunk #2 FAILED at 10.'
    """
    file = "?"
    for line in text.splitlines():
        named = re.match(r"(?:checking|patching) file (\S+)", line)
        if named:
            file = named[1]
        elif line.startswith("Hunk") and re.search(r"FAILED|offset|fuzz", line):
            return f"{file}: {line}"
        elif line.startswith("can't find file"):
            return line
    return text.strip().splitlines()[-1] if text.strip() else "patch said nothing"


def _run(patch: Path, site: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = ["patch", "--strip=1", "--fuzz=0", "--force", "--batch", f"--input={patch.resolve()}", *flags]
    try:
        return subprocess.run(command, cwd=site, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise DeployKitError(
            "the program `patch` is not installed", remedy="apt-get install patch", exit_code=ExitCode.FAILURE
        ) from error
