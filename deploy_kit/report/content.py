"""What a report says, apart from how it looks: sections of text, tables, pictures and commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deploy_kit.report.drawing import Drawing


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    text: str
    strong: bool = False


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table; every row has as many cells as `headers`."""

    caption: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Figure:
    """A picture in one or two widths (wide screens and paper, phones), and the same numbers as a table."""

    caption: str
    wide: Drawing
    narrow: Drawing | None
    table: Table | None = None


@dataclass(frozen=True)
class FigureRow:
    """Small pictures beside each other, and one table for all of them."""

    caption: str
    drawings: tuple[Drawing, ...]
    table: Table


@dataclass(frozen=True)
class Code:
    """Commands to type."""

    lines: tuple[str, ...]


Block = Paragraph | Bullets | Table | Figure | FigureRow | Code


@dataclass(frozen=True)
class Section:
    """A part of the report with a heading."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Content:
    """A whole report. `warnings` (rehearsal, stand-ins) are shown loudest, before anything else."""

    title: str
    question: str
    answer: str
    because: str
    sections: tuple[Section, ...]
    warnings: tuple[str, ...] = ()
    made_from: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # for --json


def section(title: str, *blocks: Block | None) -> Section | None:
    """Return a section of the blocks that there are; None when there is none."""
    present = tuple(block for block in blocks if block is not None)
    return Section(title, present) if present else None


def bullets(items: Sequence[str]) -> Bullets | None:
    """Return a list, or None when it would be empty."""
    return Bullets(tuple(items)) if items else None


def table(caption: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Table | None:
    """Return a table, or None when it would be empty."""
    return Table(caption, tuple(headers), tuple(tuple(row) for row in rows)) if rows else None
