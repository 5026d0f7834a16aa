"""What Docker, Compose and the NVIDIA container tools say when they refuse, and what it means.

The texts with their causes are in the two tables; pure, so `deploy-kit up` and `deploy-kit doctor` give one
answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from deploy_kit.pasted import ESCAPES
from deploy_kit.runtime.container_fault_rule import Rule
from deploy_kit.runtime.container_faults_engine import ENGINE_RULES
from deploy_kit.runtime.container_faults_nvidia import NVIDIA_RULES

_BRAILLE_OR_MARK = re.compile(r"^[\s✔✘⠀-⣿!*]+")
_LONGEST_EVIDENCE = 400
_LONGEST_INPUT = 2_000_000


@dataclass(frozen=True)
class ContainerFault:
    """One refusal of the container engine: a stable id, what it means, what to do, the line that says so."""

    id: str
    cause: str
    remedy: str
    evidence: str

    def as_dict(self) -> dict[str, str]:
        """Return the fault for `--json`."""
        return {"id": self.id, "cause": self.cause, "remedy": self.remedy, "evidence": self.evidence}


# The first rule that fits wins.
RULES: tuple[Rule, ...] = (*NVIDIA_RULES, *ENGINE_RULES)


def explain_container_fault(text: str) -> ContainerFault | None:
    """Given what docker, compose or the NVIDIA container tools printed, return the fault it names.

    None when no refusal is recognised: that is not a statement that all went well. A text in which other
    services started is still a fault.
    """
    return next(explain_container_faults(text), None)


def explain_container_faults(text: str) -> Iterator[ContainerFault]:
    """Yield each fault recognised in the text, the most specific first."""
    plain = plain_text(text)
    small = plain.lower()
    general_seen = False
    for rule in RULES:
        match = rule.sieved.pattern.search(plain) if rule.sieved.may_fit(small) else None
        if match is None:
            continue
        if rule.id in _GENERAL and general_seen:
            continue  # the wrapper of a text that is explained already
        general_seen = True
        values = _Values({key: value for key, value in match.groupdict().items() if value})
        yield ContainerFault(
            id=rule.id,
            cause=_fill(rule.cause, values),
            remedy=_fill(rule.remedy, values),
            evidence=_line_around(plain, match.start(), match.end()),
        )


def plain_text(text: str) -> str:
    """Return the text without terminal escapes, with one kind of line end; bounded in length."""
    text = text[-_LONGEST_INPUT:]
    if "\x1b" in text:
        text = ESCAPES.sub("", text)
    return text.replace("\r\n", "\n").replace("\r", "\n")


_GENERAL = {
    "nvidia-cli",
    "runtime-refused",
    "engine-refused",
    "memory-or-processes-exhausted",
    "security-profile",
}


class _Values(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return ""


_PLACEHOLDER = re.compile(r"(?<!\{)\{([a-z]+\d?)\}(?!\})")


def _fill(template: str, values: _Values) -> str:
    filled = _PLACEHOLDER.sub(lambda match: values[match.group(1)].strip(" .\"'"), template)
    # A value that the text did not carry leaves no gap and no empty brackets behind.
    filled = re.sub(r" ?\(\s*\)", "", filled)
    return re.sub(r"[ \t]{2,}", " ", filled).strip().rstrip(":").strip()


def _line_around(text: str, start: int, end: int) -> str:
    first = text.rfind("\n", 0, end - 1 if end > start else end) + 1
    first = min(first, text.rfind("\n", 0, start) + 1) if end - start < _LONGEST_EVIDENCE else first
    last = text.find("\n", end)
    line = text[first : last if last >= 0 else len(text)]
    line = re.sub(r"[ \t]{2,}", " ", _BRAILLE_OR_MARK.sub("", line)).strip()
    return line if len(line) <= _LONGEST_EVIDENCE else line[: _LONGEST_EVIDENCE - 1] + "…"
