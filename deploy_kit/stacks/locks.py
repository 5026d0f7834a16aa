"""Reading hash locks: requirements files of `name==version` lines with their hashes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import read_text

_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==(\S+?)(?:\s*;\s*(.+?))?\s*\\?$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")

# A stack's version key → the package that carries it.
PACKAGES = {
    "sglang": "sglang",
    "torch": "torch",
    "nccl": "nvidia-nccl-cu13",
    "sglang_kernel": "sglang-kernel",
    "flashinfer": "flashinfer-python",
    "cuda": "cuda-toolkit",
}


@dataclass(frozen=True)
class Pin:
    """One locked package."""

    name: str
    version: str
    hashes: tuple[str, ...]
    line: int


def read_lock(path: Path) -> dict[str, Pin]:
    """Return the pins of a lock by normalised name; a line without a hash or a version is refused."""
    return parse_lock(read_text(path, what="lock file"), path)


def parse_lock(text: str, path: Path) -> dict[str, Pin]:
    """Given a lock's text, return its pins.

    >>> pins = parse_lock("a==1 " + chr(92) + chr(10) + "    --hash=sha256:" + "0" * 64, Path("lock"))
    >>> pins["a"].version
    '1'
    """
    pins: dict[str, Pin] = {}
    name, version, started = "", "", 0
    hashes: list[str] = []

    def finish() -> None:
        if not name:
            return
        if not hashes:
            raise DeployKitError(
                "a locked package has no hash",
                file=path,
                key=f"line {started}: {name}",
                found=f"{name}=={version}",
                allowed=f"{name}=={version} --hash=sha256:…",
                remedy="make the lock again: deploy-kit stack lock NAME",
                exit_code=ExitCode.CONFIG,
            )
        pins[normalised(name)] = Pin(normalised(name), version, tuple(hashes), started)

    for number, line in enumerate(text.splitlines(), 1):
        bare = line.split(" --hash")[0].strip()
        broken = next((word for word in line.split() if _is_broken_hash(word)), None)
        if broken is not None:
            raise DeployKitError(
                "a hash in a lock is none",
                file=path,
                key=f"line {number}: {name or bare}",
                found=broken.partition("=")[2][:80] or "nothing",
                allowed="sha256: and 64 characters of 0-9 and a-f",
                remedy="make the lock again: deploy-kit stack lock NAME",
                exit_code=ExitCode.CONFIG,
            )
        if not bare or bare.startswith(("#", "--hash")):
            hashes += _HASH.findall(line)
            continue
        found = _PIN.match(bare)
        if found is None:
            raise DeployKitError(
                "a lock line is not a pinned package",
                file=path,
                key=f"line {number}",
                found=line.strip()[:80],
                allowed="NAME==VERSION with --hash=sha256:…",
                remedy="make the lock again: deploy-kit stack lock NAME",
                exit_code=ExitCode.CONFIG,
            )
        finish()
        name, version, hashes, started = found[1], found[2], _HASH.findall(line), number
    finish()
    return pins


def _is_broken_hash(word: str) -> bool:
    return word.startswith("--hash") and re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", word) is None


def normalised(name: str) -> str:
    """Return a package's name as indexes write it: lower case, runs of . _ - as one dash."""
    return re.sub(r"[-_.]+", "-", name).lower()
