"""Putting the winner's settings into a host file's [nccl] table; everything else stays byte for byte."""

from __future__ import annotations

import json
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import read_text, write_atomically

_TABLE = re.compile(r"^\s*\[\s*(?:nccl|\"nccl\"|'nccl')\s*\]\s*(?:#.*)?$")
_ANY_TABLE = re.compile(r"^\s*\[")
_MARK = "# Measured by deploy-kit probe allreduce"


def write_setting(path: Path, environment: Mapping[str, str], owned: frozenset[str], remark: str) -> bool:
    """Set a host file's [nccl] to `environment` for the `owned` variables, keeping its other variables.

    Returns whether the file changed. The file is replaced atomically, with its mode kept. A
    `DeployKitError` names the file when it is not TOML, or its nccl table is written in a form that cannot
    be edited safely; nothing is changed then.
    """
    old = read_text(path, what="host file")
    new = with_setting(old, environment, owned, remark, file=path)
    if new == old:
        return False
    write_atomically(path, new, mode=stat.S_IMODE(path.stat().st_mode))
    return True


def with_setting(
    text: str, environment: Mapping[str, str], owned: frozenset[str], remark: str, *, file: Path | None = None
) -> str:
    """Given a host file's text, return it with the owned variables of [nccl] replaced; pure.

    What comes out is read back: it must differ from what went in by these variables only.
    """
    before = _parsed(text, file)
    table = before.get("nccl", {})
    if not isinstance(table, dict):
        raise DeployKitError(
            "nccl is not a table", file=file, key="nccl", found=repr(table), exit_code=ExitCode.CONFIG
        )
    kept = {name: value for name, value in table.items() if name not in owned}
    wanted = {**kept, **environment}
    if table == wanted:
        return text
    lines = text.splitlines(keepends=True)
    ending = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    if lines and not lines[-1].endswith(("\n", "\r")):
        lines[-1] += ending
    header = next((number for number, line in enumerate(lines) if _TABLE.match(line)), None)
    added = [f"{_MARK}: {_one_line(remark)}{ending}"]
    added += [f"{name} = {json.dumps(value)}{ending}" for name, value in sorted(environment.items())]
    if header is None:
        body = [*lines, *([ending] if lines else []), f"[nccl]{ending}", *added]
    else:
        end = next((n for n in range(header + 1, len(lines)) if _ANY_TABLE.match(lines[n])), len(lines))
        inside = [line for line in lines[header + 1 : end] if not _is_owned(line, owned)]
        body = [*lines[: header + 1], *added, *inside, *lines[end:]]
    result = "".join(body)
    _must_be(result, {**before, "nccl": wanted}, file)
    return result


def _is_owned(line: str, owned: frozenset[str]) -> bool:
    if line.startswith(_MARK):
        return True
    name = line.split("=", 1)[0].strip().strip("\"'")
    return "=" in line and name in owned


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _must_be(text: str, wanted: Mapping[str, Any], file: Path | None) -> None:
    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        found = None
    if found != wanted:
        raise DeployKitError(
            "this host file's nccl table cannot be edited safely",
            file=file,
            key="nccl",
            found="a form other than one [nccl] table with one variable a line",
            remedy='write it as [nccl] with lines such as NCCL_PROTO = "LL"; nothing was changed',
            exit_code=ExitCode.CONFIG,
        )


def _parsed(text: str, file: Path | None) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise DeployKitError(
            f"this host file is not TOML: {error}", file=file, exit_code=ExitCode.CONFIG
        ) from error
