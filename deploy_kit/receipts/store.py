"""Reading and writing receipts in a folder. Nothing is ever overwritten or removed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deploy_kit.errors import DeployKitError, nearest_names
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import file_error, write_atomically
from deploy_kit.receipts.model import SCHEMA_VERSION, Receipt

LIMIT_BYTES = 256 * 1024 * 1024  # a receipt of a long benchmark is some megabytes; more is not a receipt


@dataclass(frozen=True)
class ReceiptSet:
    """What a folder of receipts gave: the good ones oldest first, and an error for each file that is not."""

    receipts: tuple[Receipt, ...] = ()
    errors: tuple[DeployKitError, ...] = ()
    paths: dict[str, Path] = field(default_factory=dict)  # receipt_id → file

    def __iter__(self) -> Iterator[Receipt]:
        return iter(self.receipts)

    def __len__(self) -> int:
        return len(self.receipts)


def write_receipt(folder: str | Path, receipt: Receipt) -> Path:
    """Write `receipt` into `folder` (made when absent) and return its path.

    Append-only and atomic: the file appears whole or not at all, and an existing file is never replaced.
    Writing the very same receipt again returns the path of the first. Raises `DeployKitError` when the
    disk is full, the folder cannot be written, or another content sits under the name.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise file_error("cannot make the receipts folder", folder, error) from error
    path = folder / receipt.file_name
    data = (receipt.model_dump_json(indent=1) + "\n").encode("utf-8", "surrogatepass")
    temporary: str | None = None
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        Path(temporary).chmod(0o444)
        _publish(Path(temporary), path, data)
    except FileExistsError:
        if path.read_bytes() != data:
            raise DeployKitError(
                f"a different file already has this receipt's name: {path}",
                file=path,
                remedy="receipts are append-only: move that file away if it is damaged",
                exit_code=ExitCode.INPUT,
            ) from None
    except OSError as error:
        raise file_error("cannot write the receipt", path, error) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
    return path


def _publish(temporary: Path, path: Path, data: bytes) -> None:
    # A hard link is the one portable rename that refuses to replace. Without links (some network and FAT
    # file systems) the name is reserved exclusively first, then filled atomically.
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        write_atomically(path, data, mode=0o444)
    with contextlib.suppress(OSError):
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_receipt(path: str | Path) -> Receipt:
    """Return the receipt in `path`; a `DeployKitError` names file and key when it is not a whole, unchanged
    receipt of a known schema."""
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > LIMIT_BYTES:
            raise DeployKitError(
                "too large for a receipt", file=path, found=f"{size} bytes", exit_code=ExitCode.INPUT
            )
        data = path.read_bytes()
    except OSError as error:
        raise file_error("cannot read the receipt", path, error) from error
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DeployKitError(
            f"not a receipt: {_json_trouble(data, error)}",
            file=path,
            remedy="it was cut short or changed; move it away, and measure again",
            exit_code=ExitCode.INPUT,
        ) from error
    return _checked(path, value)


def read_receipts(folder: str | Path, kind: str | None = None) -> ReceiptSet:
    """Return the receipts of `folder` (its `*.json` files, or `folder` itself when it is a file), oldest
    first; of one `kind` only when given.

    A file that is no receipt becomes an entry of `errors`, never an exception: one damaged file must not
    hide the others. An absent folder raises `DeployKitError`. The same receipt found twice counts once.
    """
    folder = Path(folder)
    if not folder.exists():
        raise DeployKitError(f"no such receipts folder: {folder}", file=folder, exit_code=ExitCode.INPUT)
    try:
        files = [folder] if folder.is_file() else sorted(path for path in folder.glob("*.json"))
    except OSError as error:
        raise file_error("cannot list the receipts", folder, error) from error
    found: dict[str, Receipt] = {}
    paths: dict[str, Path] = {}
    errors: list[DeployKitError] = []
    for path in files:
        if path.name.startswith("."):
            continue  # a file in the making
        try:
            receipt = read_receipt(path)
        except DeployKitError as error:
            errors.append(error)
            continue
        if kind is None or receipt.kind == kind:
            found.setdefault(receipt.receipt_id, receipt)
            paths.setdefault(receipt.receipt_id, path)
    ordered = sorted(found.values(), key=lambda receipt: (receipt.created_at, receipt.receipt_id))
    return ReceiptSet(receipts=tuple(ordered), errors=tuple(errors), paths=paths)


def _checked(path: Path, value: Any) -> Receipt:
    if not isinstance(value, dict):
        raise DeployKitError(
            "not a receipt: the file holds no JSON object",
            file=path,
            found=type(value).__name__,
            exit_code=ExitCode.INPUT,
        )
    version = value.get("schema_version")
    if version != SCHEMA_VERSION:
        raise DeployKitError(
            "a receipt of another schema",
            file=path,
            key="schema_version",
            found=repr(version),
            allowed=[SCHEMA_VERSION],
            remedy="read it with the deploy-kit that wrote it, or measure again",
            exit_code=ExitCode.INPUT,
        )
    try:
        return Receipt.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "receipt_id"
        known = tuple(Receipt.model_fields)
        unknown = first["type"] == "extra_forbidden"
        raise DeployKitError(
            "a receipt with an unknown key" if unknown else f"not a whole receipt: {first['msg']}",
            file=path,
            key=key,
            found=None if first["type"] in ("value_error", "missing") else _short(first.get("input")),
            allowed=(nearest_names(key, known) or known) if unknown else None,
            exit_code=ExitCode.INPUT,
        ) from error
    except (ValueError, RecursionError) as error:
        raise DeployKitError(f"not a receipt: {error}", file=path, exit_code=ExitCode.INPUT) from error


def _json_trouble(data: bytes, error: Exception) -> str:
    if not data.strip():
        return "the file is empty"
    return (
        f"no valid JSON ({error})" if isinstance(error, json.JSONDecodeError) else f"no valid JSON: {error}"
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
