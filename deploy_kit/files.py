"""Writing files so that a reader, or a crash, never meets half of one."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode


def write_atomically(path: str | Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Write `content` to `path`: aside in the same folder, flushed to disk, then renamed over it.

    After any interruption `path` holds either its old content or all of the new one. Raises
    `DeployKitError` (disk full, no permission, no such folder) with the old content in place.
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    temporary: str | None = None
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
        temporary = None
        sync_folder(path.parent)
    except OSError as error:
        raise file_error("cannot write", path, error) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()


def read_text(path: str | Path, *, what: str = "file", limit_bytes: int | None = None) -> str:
    """Return the text of `path` (UTF-8, bad bytes replaced); a `DeployKitError` names it when unreadable."""
    path = Path(path)
    try:
        with path.open("rb") as handle:
            data = handle.read() if limit_bytes is None else handle.read(limit_bytes)
    except OSError as error:
        raise file_error(f"cannot read {what}", path, error) from error
    return data.decode(errors="replace")


def stdin_bytes() -> BinaryIO:
    """Return standard input as bytes; a `DeployKitError` where it is closed."""
    if sys.stdin is None:
        raise DeployKitError(
            "standard input is closed",
            key="-",
            remedy="pipe the text in, or name a file",
            exit_code=ExitCode.INPUT,
        )
    return sys.stdin.buffer


def read_stdin(limit_bytes: int) -> str:
    """Return up to `limit_bytes` of standard input as text (UTF-8, bad bytes replaced)."""
    return stdin_bytes().read(limit_bytes).decode(errors="replace")


def file_error(doing: str, path: Path, error: OSError) -> DeployKitError:
    """Given what was tried and the operating system's refusal, return the error to raise."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DeployKitError(
            f"{doing} {path}: the disk is full",
            file=path,
            remedy="free space there, then run the same command again; nothing was changed",
            exit_code=ExitCode.DISK_FULL,
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return DeployKitError(
            f"{doing} {path}: {error.strerror}",
            file=path,
            remedy="let this user read it, or run as a user who may"
            if doing.startswith("cannot read")
            else "use a folder you may write to, or run as a user who may",
            exit_code=ExitCode.PERMISSION,
        )
    if error.errno == errno.ENOENT:
        return DeployKitError(
            f"{doing} {path}: {error.strerror}",
            file=path,
            remedy="check the path: a relative one begins at the folder in which the command runs",
            exit_code=ExitCode.INPUT,
        )
    return DeployKitError(f"{doing} {path}: {error.strerror or error}", file=path, exit_code=ExitCode.INPUT)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, so that a rename in it survives a power cut. Some file systems
    refuse; that is no error."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
