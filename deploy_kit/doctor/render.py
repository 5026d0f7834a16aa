"""The report for people."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from deploy_kit.doctor.model import Finding, Report, Verdict

_STYLES = {Verdict.FAIL: "bold red", Verdict.WARN: "yellow", Verdict.UNKNOWN: "magenta", Verdict.OK: "green"}
_HEADINGS = {
    Verdict.FAIL: "Faults",
    Verdict.WARN: "To look at",
    Verdict.UNKNOWN: "Not known",
    Verdict.OK: "In order",
}
_LONGEST_EVIDENCE = 160


def print_report(report: Report, console: Console) -> None:
    """Print findings by severity, worst first, each with evidence, consequence and remedy."""
    for verdict in sorted(Verdict, key=lambda v: -v.rank):
        findings = [finding for finding in report.findings if finding.verdict == verdict]
        if findings:
            console.print(Text(f"{_HEADINGS[verdict]} ({len(findings)})", style=_STYLES[verdict]))
            for finding in findings:
                # Indented under their heading on a screen; in a pipe one line stays one line.
                shown = _shown(finding)
                if console.is_terminal:
                    console.print(Padding(shown, (0, 0, 0, 2)))
                else:
                    console.print(shown, soft_wrap=True)
    console.print(Text.assemble("Verdict: ", (report.verdict.value, _STYLES[report.verdict])))


def _shown(finding: Finding) -> RenderableType:
    head = Text.assemble((finding.id, "bold"), "  ", finding.cause)
    if finding.verdict is Verdict.OK:
        return Group(head, *([Text(f"    {finding.remedy}", style="dim")] if finding.remedy else []))
    rows: list[RenderableType] = [head]
    rows += [Text(f"    seen: {_short(line)}", style="dim") for line in finding.evidence[:3]]
    if finding.consequence:
        rows.append(Text(f"    so:   {finding.consequence}"))
    if finding.remedy:
        rows.append(Text(f"    do:   {finding.remedy}"))
    if finding.ansible:
        rows.append(Text(f"    ansible: {finding.ansible}", style="dim"))
    return Group(*rows)


def _short(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= _LONGEST_EVIDENCE else line[: _LONGEST_EVIDENCE - 1] + "…"
