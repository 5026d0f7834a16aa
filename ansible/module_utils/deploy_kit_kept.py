"""What provisioning found before it changed anything, kept on the host so that it can be put back byte for
byte.

Runs on the target with Python's standard library only. One folder holds `manifest.json` and `originals/`; an
original is on disk before the file it belongs to is touched, so an interruption at any moment can be undone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

FOLDER = "/var/lib/deploy-kit/provision"
_EMPTY: dict[str, Any] = {"schema_version": 1, "files": {}, "values": {}, "units": {}, "packages": []}


def sha256(data: bytes) -> str:
    """Return the SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def write_atomically(path: Path, data: bytes, *, mode: int, owner: tuple[int, int] = (0, 0)) -> None:
    """Write aside in the same folder, flush, rename: a reader meets the old content or all of the new."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        if os.geteuid() == 0:
            os.chown(temporary, *owner)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class Kept:
    """The folder of originals and its manifest."""

    def __init__(self, folder: str = FOLDER) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "manifest.json"
        try:
            self.manifest: dict[str, Any] = {**_EMPTY, **json.loads(self.path.read_bytes())}
        except FileNotFoundError:
            self.manifest = json.loads(json.dumps(_EMPTY))

    def save(self) -> None:
        """Write the manifest; with nothing left in it, remove the folder."""
        if not any(self.manifest[key] for key in ("files", "values", "units", "packages")):
            for path in [self.path, *self.folder.glob("originals/*")]:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
            for folder in (self.folder / "originals", self.folder, self.folder.parent):
                with contextlib.suppress(OSError):
                    folder.rmdir()  # the parent only when nobody else uses it
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        write_atomically(self.path, json.dumps(self.manifest, indent=1, sort_keys=True).encode(), mode=0o600)

    # --- files -------------------------------------------------------------------------------------------

    def will_write(self, path: Path, data: bytes) -> None:
        """Keep the original of `path` unless it is kept already, and note what is about to be written."""
        files = self.manifest["files"]
        if str(path) not in files:
            files[str(path)] = self._describe(path)
        files[str(path)]["written_sha256"] = sha256(data)
        self.save()
        for folder in reversed([Path(name) for name in files[str(path)]["made_folders"]]):
            folder.mkdir(mode=0o755, exist_ok=True)

    def _describe(self, path: Path) -> dict[str, Any]:
        made = []
        folder = path.parent
        while not folder.exists():
            made.append(str(folder))  # deepest first
            folder = folder.parent
        if not path.exists():
            return {"existed": False, "made_folders": made}
        status = path.stat()
        data = path.read_bytes()
        name = sha256(str(path).encode())[:16]
        originals = self.folder / "originals"
        originals.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        write_atomically(originals / name, data, mode=0o600)
        return {
            "existed": True,
            "kept": name,
            "sha256": sha256(data),
            "mode": stat.S_IMODE(status.st_mode),
            "owner": [status.st_uid, status.st_gid],
            "mtime_ns": status.st_mtime_ns,
            "made_folders": made,
        }

    def original(self, name: str) -> bytes | None:
        """Return the content `name` had; None when there was no such file."""
        entry = self.manifest["files"][name]
        if not entry["existed"]:
            return None
        data = (self.folder / "originals" / entry["kept"]).read_bytes()
        if sha256(data) != entry["sha256"]:
            raise ValueError(
                f"the kept original of {name} was changed: {self.folder / 'originals' / entry['kept']}"
            )
        return data

    def changed_since(self, name: str) -> bool:
        """Whether somebody else changed `name` after provisioning wrote it."""
        try:
            found = sha256(Path(name).read_bytes())
        except FileNotFoundError:
            return False
        entry = self.manifest["files"][name]
        return found not in (entry["written_sha256"], entry.get("sha256"))

    def restore_file(self, name: str) -> None:
        """Put `name` back as it was: content, mode, owner, time; or away, with the folders made for it."""
        entry = self.manifest["files"][name]
        path = Path(name)
        data = self.original(name)
        if data is None:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            for folder in entry["made_folders"]:
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()  # not when somebody put something else there
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data, mode=entry["mode"], owner=(entry["owner"][0], entry["owner"][1]))
            os.utime(path, ns=(entry["mtime_ns"], entry["mtime_ns"]))
        del self.manifest["files"][name]
        self.save()  # before the original goes: an interruption between the two leaves only a spare copy
        if data is not None:
            with contextlib.suppress(FileNotFoundError):
                (self.folder / "originals" / entry["kept"]).unlink()


def text_of(data: bytes | None) -> str:
    """Return a file's content for a diff; empty for no file."""
    return "" if data is None else data.decode(errors="replace")


def active_word(text: str) -> str:
    """Given what a file of /proc/sys or /sys holds, return the value in force: `always [madvise] never` is
    madvise."""
    words = text.split()
    chosen = [word[1:-1] for word in words if word.startswith("[") and word.endswith("]")]
    return chosen[0] if chosen else " ".join(words)
