"""A report as one HTML file that needs nothing else: no network, no script, no font."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from deploy_kit.errors import DeployKitError
from deploy_kit.report.content import Block, Bullets, Code, Content, Figure, FigureRow, Paragraph, Table
from deploy_kit.report.drawing import printable

_NUMBER = re.compile(r"[<>~]?[+-]?\d[\d.,]*(?: ?(?:%|ms|µs|s|tok/s))?")
_SHORT = 22


def page(content: Content) -> str:
    """Given a report, return its page. All text is escaped by the template; pictures escape their own."""
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise DeployKitError(
            "the HTML report needs Jinja2, which is not installed",
            remedy="pip install 'deploy-kit[ops]', or write only --markdown",
        ) from error
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    folder = files("deploy_kit.report")
    template = environment.from_string((folder / "page.html.j2").read_text(encoding="utf-8"))
    sections = [
        {
            "title": printable(section.title),
            "anchor": f"s{number}",
            "blocks": [
                _block(block, f"f{number}-{place}", Markup)
                for place, block in enumerate(section.blocks, start=1)
            ],
        }
        for number, section in enumerate(content.sections, start=1)
    ]
    return template.render(
        title=printable(content.title),
        question=printable(content.question),
        answer=printable(content.answer),
        because=printable(content.because),
        warnings=[printable(warning) for warning in content.warnings],
        made_from=printable(content.made_from),
        sections=sections,
    )


def _block(block: Block, identity: str, safe: Any) -> dict[str, Any]:
    if isinstance(block, Paragraph):
        return {"kind": "paragraph", "text": printable(block.text), "strong": block.strong}
    if isinstance(block, Bullets):
        return {"kind": "bullets", "items": [printable(item) for item in block.items]}
    if isinstance(block, Code):
        return {"kind": "code", "text": "\n".join(printable(line) for line in block.lines)}
    if isinstance(block, Table):
        return {"kind": "table", **_table(block)}
    if isinstance(block, FigureRow):
        drawings = [
            drawing.svg(f"{identity}-{number}") for number, drawing in enumerate(block.drawings, start=1)
        ]
        return {
            "kind": "figure",
            "caption": printable(block.caption),
            "row": True,
            "drawings": [safe(drawing) for drawing in drawings],
            "table": _table(block.table),
        }
    return {"kind": "figure", **_figure(block, identity, safe)}


def _figure(block: Figure, identity: str, safe: Any) -> dict[str, Any]:
    drawings = [block.wide.svg(f"{identity}-w", css="wide" if block.narrow else "")]
    if block.narrow is not None:
        drawings.append(block.narrow.svg(f"{identity}-n", css="narrow"))
    return {
        "caption": printable(block.caption),
        "row": False,
        "drawings": [safe(drawing) for drawing in drawings],
        "table": None if block.table is None else _table(block.table),
    }


def _table(table: Table) -> dict[str, Any]:
    numeric = [
        bool(table.rows)
        and any(_NUMBER.fullmatch(row[column]) for row in table.rows)
        and all(_NUMBER.fullmatch(row[column]) or row[column] in ("", "-", "unknown") for row in table.rows)
        for column in range(len(table.headers))
    ]
    # Short texts stay on one line; a phone scrolls the table sideways.
    classes = [["n" if number else "" for number in numeric] for _ in table.rows]
    rows = [
        [
            {"text": printable(cell), "css": css or ("s" if len(cell) <= _SHORT else "l")}
            for cell, css in zip(row, columns, strict=True)
        ]
        for row, columns in zip(table.rows, classes, strict=True)
    ]
    return {
        "caption": printable(table.caption),
        "headers": [
            {"text": printable(text), "number": number}
            for text, number in zip(table.headers, numeric, strict=True)
        ],
        "rows": rows,
    }
