"""A captured machine on disk: one file a source and a manifest; and reading whatever people hand in."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from deploy_kit.doctor.blocks import Block, split_blocks
from deploy_kit.doctor.model import Unknown
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import file_error, read_stdin, read_text, write_atomically

MANIFEST = "manifest.json"
_LIMIT_BYTES = 20_000_000
_LIMIT_FILES = 500

_SECRETS = (
    (re.compile(r"(://)[^/\s:@]+:[^/\s@]+@"), r"\1REMOVED@"),
    (re.compile(r"\b(?:hf_|sk-|ghp_|glpat-|xox[bp]-)[A-Za-z0-9_-]{8,}"), "REMOVED"),
    (re.compile(r"(?i)\b((?:bearer|basic) )[A-Za-z0-9._~+/=-]{8,}"), r"\1REMOVED"),
    (
        re.compile(
            r"(?im)(?<![\w.-])([\w.-]*(?:passw(?:or)?d|passwd|secret|token|api[_-]?key|credentials?)[\w.-]*\s*[=:]\s*)[^\s,;]+"
        ),
        r"\1REMOVED",
    ),
    (
        re.compile(
            r"(?m)^([ \t]*(?:Serial Number|GPU UUID|GPU PDI|Board Part Number|Chassis Serial Number)[ \t]*: )"
            r".*$"
        ),
        r"\1REMOVED",
    ),
    (re.compile(r"\bGPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "GPU-REMOVED"),
)


class Entry(BaseModel):
    """One source of a bundle: its file, or why there is none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    command: str
    file: str | None = None
    not_read: str | None = None


class Manifest(BaseModel):
    """What a bundle holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = 1
    created_at: str
    entries: list[Entry]


def without_secrets(text: str) -> str:
    """Return the text with passwords, tokens, credentials in addresses and serial numbers removed."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def write_bundle(folder: Path, blocks: list[Block], unknown: list[Unknown]) -> Path:
    """Write the outputs to `folder`, one file each, secrets removed, then the manifest; return the folder.

    A folder that holds anything but a bundle is refused.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        present = list(folder.iterdir())
    except OSError as error:
        raise file_error("cannot write the bundle to", folder, error) from error
    if present and not (folder / MANIFEST).is_file():
        raise DeployKitError(
            "this folder is not empty and holds no bundle",
            file=folder,
            remedy="name a new folder",
            exit_code=ExitCode.USAGE,
        )
    entries = []
    for number, block in enumerate(blocks, start=1):
        words = re.sub(r"[^a-z0-9]+", "-", block.title.lower()).strip("-")[:40] or "output"
        name = f"{number:02d}-{words}"
        write_atomically(folder / f"{name}.txt", without_secrets(block.text))
        entries.append(Entry(name=name, command=block.title, file=f"{name}.txt"))
    entries += [
        Entry(name=source.source, command=source.command or source.source, not_read=source.reason)
        for source in unknown
    ]
    manifest = Manifest(created_at=datetime.now(UTC).isoformat(timespec="seconds"), entries=entries)
    write_atomically(folder / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
    return folder


def read_input(place: str) -> tuple[list[Block], list[Unknown]]:
    """Given a bundle's folder, any folder of text files, one text file, or "-" for stdin, return its
    outputs."""
    if not place.strip():
        raise DeployKitError(
            "--from names nothing to read",
            key="--from",
            found="an empty name",
            allowed="a captured folder, a text file, or - for stdin",
            exit_code=ExitCode.USAGE,
        )
    if place == "-":
        return split_blocks(read_stdin(_LIMIT_BYTES)), []
    path = Path(place)
    if not path.is_dir():
        return split_blocks(read_text(path, what="captured output", limit_bytes=_LIMIT_BYTES)), []
    if (path / MANIFEST).is_file():
        return _read_bundle(path)
    try:
        files = sorted(file for file in path.rglob("*") if file.is_file())[:_LIMIT_FILES]
    except OSError as error:
        raise file_error("cannot read", path, error) from error
    if not files:
        raise DeployKitError("this folder holds no files", file=path, exit_code=ExitCode.INPUT)
    blocks: list[Block] = []
    for file in files:
        blocks += split_blocks(read_text(file, limit_bytes=_LIMIT_BYTES), title=file.name)
    return blocks, []


def _read_bundle(folder: Path) -> tuple[list[Block], list[Unknown]]:
    path = folder / MANIFEST
    try:
        content: Any = json.loads(read_text(path, what="manifest", limit_bytes=_LIMIT_BYTES))
        manifest = Manifest.model_validate(content)
    except (ValueError, RecursionError) as error:
        detail = (
            error.errors(include_url=False)[0]["msg"]
            if isinstance(error, ValidationError)
            else str(error)[:200]
        )
        raise DeployKitError(
            "the bundle's manifest cannot be understood",
            file=path,
            found=detail,
            remedy="capture again; or remove the manifest: then each text file is read for what it is",
            exit_code=ExitCode.INPUT,
        ) from error
    blocks: list[Block] = []
    unknown: list[Unknown] = []
    for entry in manifest.entries:
        if entry.not_read is not None:
            unknown.append(Unknown(entry.name, entry.not_read, entry.command))
        elif entry.file is None or Path(entry.file).name != entry.file:
            raise DeployKitError(
                "the bundle's manifest names a file outside the bundle",
                file=path,
                key=entry.name,
                found=entry.file,
                exit_code=ExitCode.INPUT,
            )
        elif not (folder / entry.file).is_file():
            unknown.append(Unknown(entry.name, "its file is missing from the bundle", entry.command))
        else:
            text = read_text(folder / entry.file, limit_bytes=_LIMIT_BYTES)
            blocks += split_blocks(text, title=entry.command)
    return blocks, unknown
