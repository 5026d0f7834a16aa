"""What a check says: findings with evidence, and the report they make together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from deploy_kit.exit_codes import ExitCode


class Verdict(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARN = "warn"
    FAIL = "fail"

    @property
    def rank(self) -> int:
        """Return the place in the order ok < unknown < warn < fail."""
        return list(Verdict).index(self)

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code of a report whose worst finding this is."""
        return {
            Verdict.OK: ExitCode.OK,
            Verdict.UNKNOWN: ExitCode.VERDICT_UNKNOWN,
            Verdict.WARN: ExitCode.VERDICT_WARN,
            Verdict.FAIL: ExitCode.VERDICT_FAIL,
        }[self]


@dataclass(frozen=True)
class Finding:
    """One thing a check found.

    `id` is stable ("p2p.not-granted"); `ansible` names the variable of the provisioning roles that
    applies the remedy, None where a person must act (firmware, hardware).
    """

    id: str
    verdict: Verdict
    cause: str
    remedy: str | None = None
    evidence: tuple[str, ...] = ()
    consequence: str | None = None
    ansible: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the finding for `--json`."""
        return {
            "id": self.id,
            "verdict": self.verdict.value,
            "cause": self.cause,
            "remedy": self.remedy,
            "evidence": list(self.evidence),
            "consequence": self.consequence,
            "ansible": self.ansible,
        }


@dataclass(frozen=True)
class Unknown:
    """A source that could not be read: which, why, and what a person can run to read it."""

    source: str
    reason: str
    command: str | None = None


@dataclass(frozen=True)
class Report:
    """All findings, worst first, and the facts they rest on."""

    findings: tuple[Finding, ...]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """Return the worst finding's verdict; nothing found out is unknown, never ok."""
        return max(
            (finding.verdict for finding in self.findings), default=Verdict.UNKNOWN, key=lambda v: v.rank
        )

    @property
    def worst(self) -> tuple[Finding, ...]:
        """Return the findings that have the report's verdict."""
        return tuple(finding for finding in self.findings if finding.verdict == self.verdict)

    def as_dict(self) -> dict[str, Any]:
        """Return the report for `--json`: the verdict, cause and remedy of its worst findings, all of
        them, facts."""
        return {
            "verdict": self.verdict.value,
            "cause": "; ".join(_distinct(finding.cause for finding in self.worst)) or "nothing could be read",
            "remedy": "; ".join(_distinct(finding.remedy for finding in self.worst)) or None,
            "findings": [finding.as_dict() for finding in self.findings],
            "facts": self.facts,
        }


def report(findings: Iterable[Finding], facts: dict[str, Any]) -> Report:
    """Given findings in any order, return the report, worst first."""
    ordered = sorted(findings, key=lambda finding: -finding.verdict.rank)
    return Report(tuple(ordered), facts)


def _distinct(texts: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(text for text in texts if text))
