"""One row of the tables of container faults: a text that is printed, and what it means."""

from __future__ import annotations

import re
from dataclasses import dataclass

from deploy_kit.patterns import Sieved, sieved


@dataclass(frozen=True)
class Rule:
    """A pattern with its cause and remedy; `{name}` in both is filled from the pattern's named groups."""

    id: str
    sieved: Sieved
    cause: str
    remedy: str


def rule(id: str, pattern: str, cause: str, remedy: str) -> Rule:  # noqa: A002  (the field's own name)
    """Return the row; the pattern takes capitals and small letters alike."""
    return Rule(id, sieved(pattern, re.IGNORECASE), cause, remedy)
