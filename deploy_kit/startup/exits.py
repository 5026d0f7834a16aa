"""How engines ended so far, by cause: kept beside the starts, for the process that counts ends with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from deploy_kit.files import file_error, read_text, write_atomically

FILE_NAME = "exits.json"
MAX_CAUSES = 200


def read_exits(folder: Path) -> dict[str, int]:
    """Return the number of ends by cause id kept in `folder`; empty when there is no (whole) file."""
    path = folder / FILE_NAME
    if not path.is_file():
        return {}
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    return {
        cause: number
        for cause, number in list(value.items())[:MAX_CAUSES]
        if isinstance(number, int) and not isinstance(number, bool) and number > 0
    }


def count_exit(exits: Mapping[str, int], cause_id: str) -> dict[str, int]:
    """Given the ends so far, return them with one more of this cause."""
    return {**exits, cause_id: exits.get(cause_id, 0) + 1}


def keep_exits(folder: Path, exits: Mapping[str, int]) -> None:
    """Write the numbers into `folder` (made when absent)."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise file_error("cannot make the folder of the exits", folder, error) from error
    write_atomically(folder / FILE_NAME, json.dumps(dict(exits), sort_keys=True) + "\n")
