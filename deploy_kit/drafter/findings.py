"""What a drafter check says: single findings, and how they add up."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["ok", "warn", "reject", "unknown"]
Kind = Literal["will not load", "loads but will not accept"]

WILL_NOT_LOAD: Kind = "will not load"
WILL_NOT_ACCEPT: Kind = "loads but will not accept"


@dataclass(frozen=True)
class Finding:
    """One result. `error`: what the engine says, and in which versions; `flags`: what prevents it."""

    id: str
    verdict: Verdict
    cause: str
    kind: Kind | None = None
    remedy: str = ""
    error: str = ""
    flags: tuple[str, ...] = ()
    # An unknown that matters: without it the drafter cannot be called ok.
    essential: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the finding for `--json`, without its empty parts."""
        return {key: value for key, value in asdict(self).items() if value not in ("", (), None, False)}


@dataclass(frozen=True)
class Report:
    """The check of one drafter: findings in the order of the checks, and the facts they rest on."""

    findings: tuple[Finding, ...]
    facts: dict[str, Any]

    @property
    def deciding(self) -> tuple[Finding, ...]:
        """The findings that make the verdict, the most basic first."""
        for verdict in ("reject", "warn"):
            chosen = tuple(finding for finding in self.findings if finding.verdict == verdict)
            if chosen:
                return chosen
        return tuple(
            finding for finding in self.findings if finding.verdict == "unknown" and finding.essential
        )

    @property
    def verdict(self) -> Literal["ok", "warn", "reject"]:
        if not self.deciding:
            return "ok"
        return "reject" if self.deciding[0].verdict == "reject" else "warn"

    @property
    def cause(self) -> str:
        if self.deciding:
            first, *others = (finding.cause for finding in self.deciding)
            return first + "".join(f"; also: {cause}" for cause in others)
        return "; ".join(finding.cause for finding in self.findings if finding.verdict == "ok")

    @property
    def kind(self) -> Kind | None:
        return self.deciding[0].kind if self.deciding else None

    @property
    def remedy(self) -> str:
        return "; ".join(dict.fromkeys(finding.remedy for finding in self.deciding if finding.remedy))

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(flag for finding in self.findings for flag in finding.flags))

    def as_dict(self) -> dict[str, Any]:
        """Return the report for `--json`."""
        return {
            "verdict": self.verdict,
            "kind": self.kind,
            "cause": self.cause,
            "remedy": self.remedy,
            "flags": list(self.flags),
            "facts": self.facts,
            "findings": [finding.as_dict() for finding in self.findings],
        }
