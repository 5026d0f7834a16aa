"""What a rule is: a pattern for an exception's text, and perhaps for its frames, that names a cause."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """A cause found: which, in words, and the numbers of the text."""

    id: str
    text: str
    facts: dict[str, int | float | str | bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where an exception came from: frames as "file:function" lines, the phase, and what else is known."""

    frames: str = ""
    phase: str = "starting"
    drafting: bool = False
    ready: bool = False
    speculative: bool = False
    quantized: bool = False
    draft_path: str | None = None
    rank: int | None = None
    percent: float | None = None
    header: str = ""


@dataclass(frozen=True)
class Rule:
    """A cause (or a choice of it), patterns of the exception's text and frames, the answer's words."""

    cause: str | Callable[[Place, re.Match[str]], str]
    pattern: re.Pattern[str]
    text: str
    where: re.Pattern[str] | None = None


def rule(
    cause: str | Callable[[Place, re.Match[str]], str], pattern: str, text: str, *, where: str | None = None
) -> Rule:
    """Given a cause, patterns and the words of the answer, return the rule."""
    return Rule(
        cause,
        re.compile(pattern, re.IGNORECASE | re.DOTALL),
        text,
        None if where is None else re.compile(where, re.IGNORECASE),
    )


_GIVEN_NAME = re.compile(
    r"looks like (\S+) is not the path|huggingface\.co/(?!docs/)(?:api/models/)?([\w.-]+/[\w.-]+)"
)


def given_name(text: str) -> str:
    """Return the model's name or path that a hub error names."""
    match = _GIVEN_NAME.search(text)
    return "the given name" if match is None else next(group for group in match.groups() if group)


def named_groups(match: re.Match[str]) -> dict[str, str]:
    """Named groups, with path2, flag3, … under the name without the number."""
    return {
        name.rstrip("0123456789"): value for name, value in match.groupdict().items() if value is not None
    }
