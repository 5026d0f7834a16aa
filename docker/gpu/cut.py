"""Cuts some packages out of a lock, with their hashes:  cut.py LOCK NAME… > PART

A name that the lock does not pin is an error that names the file and what was asked for.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def cut(lock: str, names: list[str], file: str) -> str:
    """Given a lock's text, return the lines of these packages.

    >>> cut("a==1 --hash=sha256:0\\nb==2 --hash=sha256:1\\n    # via a\\n", ["b"], "lock")
    'b==2 --hash=sha256:1\\n'
    """
    parts = re.split(r"(?m)^(?=[A-Za-z0-9])", lock)
    pinned = {part.partition("==")[0].partition("[")[0].lower(): part for part in parts if "==" in part}
    missing = [name for name in names if name not in pinned]
    if missing:
        sys.exit(
            f"{file}: no such package: found {', '.join(missing)} (allowed: the {len(pinned)} of the lock)"
        )
    lines = "".join(pinned[name] for name in names).splitlines(keepends=True)
    return "".join(line for line in lines if not line.lstrip().startswith("#"))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: cut.py LOCK NAME…")
    sys.stdout.write(cut(Path(sys.argv[1]).read_text(), sys.argv[2:], sys.argv[1]))
