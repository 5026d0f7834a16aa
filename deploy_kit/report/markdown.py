"""A report as Markdown: the pictures' tables stand in their place."""

from __future__ import annotations

import re

from deploy_kit.report.content import Block, Bullets, Code, Content, FigureRow, Paragraph, Table
from deploy_kit.report.drawing import printable

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")


def markdown(content: Content) -> str:
    """Given a report, return it as GitHub-flavoured Markdown; whatever came from receipts is escaped."""
    lines = [f"# {_text(content.title)}", ""]
    for warning in content.warnings:
        lines += [f"> **{_text(warning)}**", ""]
    lines += [f"**Question.** {_text(content.question)}", ""]
    lines += [f"**Answer.** {_text(content.answer)}", "", _text(content.because), ""]
    for section in content.sections:
        lines += [f"## {_text(section.title)}", ""]
        for block in section.blocks:
            lines += _block(block)
    lines += [f"*{_text(content.made_from)}*"]
    return "\n".join(lines).rstrip() + "\n"


def _block(block: Block) -> list[str]:
    if isinstance(block, Paragraph):
        text = _text(block.text)
        return [f"**{text}**" if block.strong else text, ""]
    if isinstance(block, Bullets):
        return [*(f"- {_text(item)}" for item in block.items), ""]
    if isinstance(block, Code):
        # A fence longer than any in the text: it cannot be closed from inside.
        runs = re.findall(r"`{3,}", "\n".join(block.lines))
        fence = "`" * max([3, *(len(run) + 1 for run in runs)])
        return [fence, *(printable(line) for line in block.lines), fence, ""]
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, FigureRow):
        return _table(block.table)
    return _table(block.table) if block.table is not None else [_text(block.wide.description), ""]


def _table(table: Table) -> list[str]:
    return [
        f"*{_text(table.caption)}*",
        "",
        "| " + " | ".join(_text(cell) for cell in table.headers) + " |",
        "|" + " --- |" * len(table.headers),
        *("| " + " | ".join(_text(cell) or " " for cell in row) + " |" for row in table.rows),
        "",
    ]


def _text(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(printable(text).split()))
