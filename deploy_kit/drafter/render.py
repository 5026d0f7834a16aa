"""How drafter results look in a terminal: Rich tables from the same values that `--json` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploy_kit.drafter.compare import Comparison
from deploy_kit.drafter.findings import Report
from deploy_kit.drafter.predict import Prediction

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLES = {"ok": "green", "warn": "yellow", "reject": "red", "unknown": "dim"}


def render_report(report: Report) -> RenderableType:
    """Return verdict, cause, remedy and the findings."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    head = Text.assemble(
        (report.verdict, f"bold {_STYLES[report.verdict]}"), f" {report.kind}" if report.kind else ""
    )
    lines = [head, Text(f"cause:   {report.cause}")]
    if report.remedy:
        lines.append(Text(f"remedy:  {report.remedy}"))
    if report.flags:
        lines.append(Text(f"flags:   {'  '.join(report.flags)}"))
    table = Table("check", "result", "what", box=None, pad_edge=False)
    for finding in report.findings:
        what = finding.cause + (f"\n{finding.error}" if finding.error else "")
        table.add_row(Text(finding.id), Text(finding.verdict, style=_STYLES[finding.verdict]), Text(what))
    return Group(*lines, Text(""), table)


def render_comparison(comparison: Comparison) -> RenderableType:
    """Return the table of weights and the agreement of the vocabularies."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("weight", overflow="fold")  # a name cut short names nothing
    for column in ("A", "B", "match"):
        table.add_column(column)
    for row in comparison.weights:
        match = Text("yes" if row.same else "no", style="green" if row.same else "red")
        table.add_row(Text(row.name), Text(row.a or "absent"), Text(row.b or "absent"), match)
    words = comparison.vocabulary
    lines = [
        Text(""),
        Text(f"vocabulary positions that agree: {words.agreeing:,} of {words.positions:,}"),
        Text(f"tokens covered: both {words.both:,}, only A {words.only_a:,}, only B {words.only_b:,}"),
    ]
    for name, ceiling in (("A", comparison.ceiling_a), ("B", comparison.ceiling_b)):
        if ceiling is not None:
            lines.append(
                Text(
                    f"ceiling of {name}: {ceiling.covered:.1%} of tokens covered, accept length at most "
                    f"{ceiling.accept_length:.2f} with {ceiling.steps} steps ({ceiling.how})"
                )
            )
    return Group(table, *lines)


def render_prediction(prediction: Prediction, how: str) -> RenderableType:
    """Return accept length and, where it is known, the break-even; `how`: what the figures were taken for."""
    from rich.console import Group
    from rich.text import Text

    reached = ", ".join(f"{place}: {rate:.1%}" for place, rate in enumerate(prediction.reached, 1))
    lines = [
        f"accept length  {prediction.accept_length:.3f}  (at most {_most(prediction)} tokens a verify)",
        f"accepted up to {reached or 'none: with one draft token nothing is drafted'}",
        f"figures        {how}",
    ]
    if prediction.tokens_per_second is not None:
        lines.append(f"tokens/s       {prediction.tokens_per_second:.1f} for one stream")
    if prediction.break_even is None:
        lines.append("break-even     unknown: give --cycle-ms and --baseline-tok-s (both measured)")
        return Group(*map(Text, lines))
    pays = prediction.accept_length > prediction.break_even
    lines.append(f"break-even     {prediction.break_even:.3f}: speculation {'pays' if pays else 'loses'}")
    where = "for one of its choices" if prediction.tree else "there"
    for place, rate in enumerate(prediction.needed, 1):
        need = (
            "alone cannot bring it there"
            if rate is None
            else f"needs {rate:.1%} {where}, the others as they are"
        )
        lines.append(f"position {place}     {need}")
    everywhere = prediction.needed_factor if prediction.tree else prediction.needed_everywhere
    if everywhere is None:
        need = "all of them cannot, either: out of reach"
    elif prediction.tree:
        need = f"every chance times {everywhere:.2f}"
    else:
        need = f"{everywhere:.1%} at every position"
    lines.append(f"or             {need}")
    return Group(*map(Text, lines))


def _most(prediction: Prediction) -> int:
    depth = len(prediction.reached)
    return min(prediction.draft_tokens, depth + 1) if prediction.tree else prediction.draft_tokens
