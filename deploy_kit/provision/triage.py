"""What provisioning does about the doctor's findings: stop, put right, or show. The doctor judges; this only
sorts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from deploy_kit.doctor.model import Finding, Report, Verdict


@dataclass(frozen=True)
class Triage:
    """Findings sorted: what stops the run, what the roles are about to put right, and what a person should
    see."""

    stop: tuple[Finding, ...]
    fix: tuple[Finding, ...]
    show: tuple[Finding, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the three lists for Ansible, each finding as one line."""
        return {
            "stop": [_line(finding) for finding in self.stop],
            "fix": [f"{_line(finding)} → {finding.ansible}" for finding in self.fix],
            "show": [_line(finding) for finding in self.show],
        }


def sort_findings(report: Report, active: Collection[str], accepted: Collection[str] = ()) -> Triage:
    """Given a report, the doctor's variables that the roles will apply, and ids a person accepted, sort the
    findings.

    A fault stops unless a role is about to put it right or its id is accepted. Warnings and what is unknown
    never stop.
    """
    stop, fix, show = [], [], []
    for finding in report.findings:
        if finding.verdict is Verdict.OK:
            continue
        remedies = {word.strip() for word in (finding.ansible or "").split(",") if word.strip()}
        if remedies & set(active):
            fix.append(finding)
        elif finding.verdict is Verdict.FAIL and finding.id not in accepted:
            stop.append(finding)
        else:
            show.append(finding)
    return Triage(tuple(stop), tuple(fix), tuple(show))


def _line(finding: Finding) -> str:
    remedy = f". Remedy: {finding.remedy}" if finding.remedy else ""
    return f"{finding.verdict.value} {finding.id}: {finding.cause}{remedy}"
