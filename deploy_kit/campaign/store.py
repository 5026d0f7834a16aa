"""A campaign's files: the campaign, its state, and room for the last write on a full disk."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from deploy_kit.campaign.model import STATE_FILE, Campaign, CampaignState
from deploy_kit.configs.catalog import load_file
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import file_error, read_text, write_atomically

# Kept free for the end of a cell: when the disk fills up during a cell, what it measured still goes to disk.
RESERVE_FILE = ".reserve"
RESERVE_BYTES = 16 * 1024 * 1024
LOCK_FILE = ".lock"
_Result = TypeVar("_Result")


def read_campaign(path: Path) -> Campaign:
    """Read a campaign file; errors name the file, the key, what was found and what is allowed."""
    return load_file(Campaign, path)


def read_campaign_state(path: Path) -> CampaignState | None:
    """Given a state folder (or its file), return the state; None when there is none yet.

    A file that is not a whole state raises `DeployKitError`: it is never overwritten.
    """
    file = path / STATE_FILE if path.is_dir() or path.suffix != ".json" else path
    if not file.exists():
        return None
    try:
        return CampaignState.model_validate_json(read_text(file, what="campaign state"), strict=False)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise DeployKitError(
            f"not a campaign's state: {first['msg']}",
            file=file,
            key=".".join(str(part) for part in first["loc"]) or None,
            remedy="move the file away to begin anew; the receipts beside it are kept, and found again",
            exit_code=ExitCode.INPUT,
        ) from error


class StateFolder:
    """A campaign's folder: its state, its receipts, its lock and the reserve."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.receipts = folder / "receipts"

    @property
    def file(self) -> Path:
        """The state file."""
        return self.folder / STATE_FILE

    def read(self) -> CampaignState | None:
        """Return the state written last, or None."""
        return read_campaign_state(self.folder)

    def write(self, state: CampaignState) -> None:
        """Write the state, whole or not at all."""
        text = json.dumps(state.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False)
        write_atomically(self.file, text + "\n")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one campaign process at a time; another one is refused at once."""
        try:
            self.receipts.mkdir(parents=True, exist_ok=True)
            handle = (self.folder / LOCK_FILE).open("w")
        except OSError as error:
            raise file_error("cannot use the state folder", self.folder, error) from error
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise DeployKitError(
                    "another campaign runs with this state folder",
                    file=self.folder,
                    remedy="wait for it, or name another folder with --state",
                    exit_code=ExitCode.FAILURE,
                ) from error
            yield

    def reserve(self) -> None:
        """Set bytes aside on the disk; a disk without room for them is refused before anything is started."""
        path = self.folder / RESERVE_FILE
        try:
            with path.open("ab") as handle:
                os.posix_fallocate(handle.fileno(), 0, RESERVE_BYTES)
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink()
            raise file_error("cannot set room aside in", self.folder, error) from error

    def release(self) -> bool:
        """Give the reserve back; return whether there was one."""
        try:
            (self.folder / RESERVE_FILE).unlink()
        except OSError:
            return False
        return True

    def keep(self, write: Callable[[], _Result]) -> _Result:
        """Run `write`; on a full disk give the reserve back and run it once more. The next `reserve` then
        refuses to go on, with this cell kept."""
        try:
            return write()
        except DeployKitError as error:
            if error.exit_code != ExitCode.DISK_FULL or not self.release():
                raise
            return write()
