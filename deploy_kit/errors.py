"""The one error type that users see: what is wrong, where, what was found, what is allowed, what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deploy_kit.exit_codes import ExitCode


class DeployKitError(Exception):
    """A problem the user can act on.

    The command line prints it as one block and exits with `exit_code`; nothing else in the project prints
    errors. `file`, `key`, `found`, `allowed` and `remedy` are left out of the block when not given.
    """

    def __init__(
        self,
        summary: str,
        *,
        file: str | Path | None = None,
        key: str | None = None,
        found: object = None,
        allowed: object = None,
        remedy: str | None = None,
        exit_code: ExitCode = ExitCode.FAILURE,
    ) -> None:
        super().__init__(summary)
        self.summary = summary
        self.file = None if file is None else str(file)
        self.key = key
        self.found = None if found is None else str(found)
        self.allowed = None if allowed is None else _listing(allowed)
        self.remedy = remedy
        self.exit_code = exit_code

    def parts(self) -> list[tuple[str, str]]:
        """Return the given details as (label, text), in the order they are shown."""
        labelled = (
            ("file", self.file),
            ("key", self.key),
            ("found", self.found),
            ("allowed", self.allowed),
            ("remedy", self.remedy),
        )
        return [(label, text) for label, text in labelled if text is not None]

    def as_dict(self) -> dict[str, Any]:
        """Return the error for `--json`: summary, exit code and the given details."""
        return {"error": self.summary, "exit_code": int(self.exit_code), **dict(self.parts())}

    def __str__(self) -> str:
        return "\n".join([self.summary, *(f"  {label + ':':<9}{text}" for label, text in self.parts())])


def _listing(allowed: object) -> str:
    if isinstance(allowed, (list, tuple, set, frozenset)):
        items = sorted(allowed, key=str) if isinstance(allowed, (set, frozenset)) else allowed
        return ", ".join(str(item) for item in items)
    return str(allowed)


def nearest_names(name: str, known: list[str] | tuple[str, ...], *, count: int = 3) -> list[str]:
    """Given a name that is not known, return up to `count` known names that look like it, nearest first."""
    import difflib

    return difflib.get_close_matches(name, list(known), n=count, cutoff=0.4)
