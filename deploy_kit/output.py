"""What commands print: results on stdout, progress and errors on stderr, JSON when asked."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from deploy_kit.errors import DeployKitError

if TYPE_CHECKING:
    from rich.console import Console


def print_json(value: Any) -> None:
    """Print `value` as indented JSON on stdout; not-a-number is refused, since JSON has none."""
    plain = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") != "utf8"
    json.dump(value, sys.stdout, indent=2, ensure_ascii=plain, allow_nan=False)
    sys.stdout.write("\n")
    sys.stdout.flush()


def stdout_console() -> Console:
    """Return a Rich console for results."""
    from rich.console import Console

    return Console(highlight=False)


def stderr_console() -> Console:
    """Return a Rich console for progress and remarks; plain text when stderr is not a terminal."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_error(error: DeployKitError, *, as_json: bool = False) -> None:
    """Print the error as one block on stderr (or, with `--json`, as one object on stdout)."""
    if as_json:
        print_json(error.as_dict())
    else:
        sys.stderr.write(f"deploy-kit: {error}\n")
