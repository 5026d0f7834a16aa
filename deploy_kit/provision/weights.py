"""Whether a folder of weights is whole: shards, bytes, checksums, and the room they need."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

INDEX = "model.safetensors.index.json"
_SUM = re.compile(r"^([0-9a-fA-F]{64})[ \t]+\*?(.+?)\s*$")
_SHARD = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.safetensors$")


@dataclass(frozen=True)
class Weights:
    """What a folder holds against what it should: `missing` and `damaged` shards (size 0 counts as damaged),
    bytes that are there, bytes wanted (None: nobody says), and the checksum of each shard that has one.
    """

    shards: tuple[str, ...]
    missing: tuple[str, ...]
    damaged: tuple[str, ...]
    present_bytes: int
    wanted_bytes: int | None
    checksums: Mapping[str, str]
    problem: str | None = None

    @property
    def whole(self) -> bool:
        """Whether every shard is there, and as many as the model has."""
        return self.problem is None and not self.missing and not self.damaged

    def as_dict(self) -> dict[str, Any]:
        """Return it for Ansible."""
        return {
            "whole": self.whole,
            "problem": self.problem,
            "shards": list(self.shards),
            "missing": list(self.missing),
            "damaged": list(self.damaged),
            "present_bytes": self.present_bytes,
            "wanted_bytes": self.wanted_bytes,
            "needed_bytes": None
            if self.wanted_bytes is None
            else max(0, self.wanted_bytes - self.present_bytes),
            "checksums": dict(self.checksums),
            "without_checksum": [name for name in self.shards if name not in self.checksums],
        }


def look_at_weights(
    files: Mapping[str, int],
    index: str | None,
    *,
    shards: int | None,
    size_bytes: int | None,
    checksums: str = "",
    hub_checksums: Mapping[str, str] | None = None,
) -> Weights:
    """Given the folder's files with their bytes, the text of its index (None: there is none) and the model's
    facts, return what is whole and what is not. A checksum file wins over what the hub's client noted."""
    present = {name: size for name, size in files.items() if name.endswith(".safetensors")}
    named, index_bytes, problem = _named(index, present)
    sums = {**(hub_checksums or {}), **parse_checksums(checksums)}
    missing = tuple(sorted(set(named) - set(present)))
    damaged = tuple(sorted(name for name in named if present.get(name) == 0))
    if problem is None and not named:
        problem = "there are no weights"
    elif problem is None and shards is not None and len(named) != shards:
        problem = f"{len(named)} shards, the model has {shards}"
    elif (
        problem is None
        and not missing
        and index_bytes is not None
        and sum(present[n] for n in named) < index_bytes
    ):
        # The index counts tensor bytes only; headers come on top.
        problem = (
            f"{sum(present[n] for n in named)} bytes of weights, the index says {index_bytes}: a "
            "shard is cut short"
        )
    if problem is None and checksums and (absent := sorted(set(named) - set(parse_checksums(checksums)))):
        problem = f"the checksum file names no sum for {absent[0]}" + (
            f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        )
    return Weights(
        shards=tuple(sorted(named)),
        missing=missing,
        damaged=damaged,
        present_bytes=sum(present.get(name, 0) for name in (named or present)),
        wanted_bytes=size_bytes if size_bytes is not None else index_bytes,
        checksums={name: value for name, value in sums.items() if name in named},
        problem=problem,
    )


def _named(index: str | None, present: Mapping[str, int]) -> tuple[tuple[str, ...], int | None, str | None]:
    """Return the shards that ought to be there, the bytes of their tensors, and what is wrong with the
    index."""
    if index is None:
        numbered = [found for name in present if (found := _SHARD.match(name))]
        if numbered:
            of = max(int(found[3]) for found in numbered)
            stem = numbered[0][1]
            names = tuple(f"{stem}-{number:05d}-of-{of:05d}.safetensors" for number in range(1, of + 1))
            return names, None, f"{INDEX} is missing"
        return tuple(present), None, None
    try:
        content = json.loads(index)
        names = tuple(sorted({str(name) for name in content["weight_map"].values()}))
        total = content.get("metadata", {}).get("total_size")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return tuple(present), None, f"{INDEX} is damaged"
    if bad := [name for name in names if "/" in name or name.startswith(".")]:
        return (), None, f"{INDEX} names a file outside the folder: {bad[0]}"
    return (
        names,
        int(total) if isinstance(total, (int, float)) and not isinstance(total, bool) else None,
        None,
    )


def parse_checksums(text: str) -> dict[str, str]:
    """Given a file as `sha256sum` writes it, return file name → sum; a line of another form is an error."""
    sums: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _SUM.match(line)
        if found is None:
            raise DeployKitError(
                "this is no checksum file",
                key=f"line {number}",
                found=line[:80],
                allowed="lines as sha256sum writes them: 64 hexadecimal digits, two spaces, the file's name",
                exit_code=ExitCode.INPUT,
            )
        sums[found[2].removeprefix("./")] = found[1].lower()
    return sums


def parse_hub_notes(text: str) -> dict[str, str]:
    """Given lines `…/NAME.metadata:SHA256` of what the hub's client noted beside its downloads, return name →
    sum."""
    sums = {}
    for line in text.splitlines():
        path, _, digest = line.rpartition(":")
        name = path.rpartition("/")[2].removesuffix(".metadata")
        if name.endswith(".safetensors") and re.fullmatch(r"[0-9a-f]{64}", digest.strip()):
            sums[name] = digest.strip()
    return sums
