"""A picture as a list of shapes with known places, and its SVG. Nothing here knows what is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

# A letter's mean width in font sizes, as in the widest of the usual sans-serifs (DejaVu Sans, and its bold):
# labels that keep apart by this estimate keep apart in the others.
_LETTER_WIDTH_RATIO = 0.61
_BOLD_WIDTH_RATIO = 0.7
SHAPES = ("circle", "square", "triangle", "diamond", "plus", "cross", "down")


@dataclass(frozen=True)
class Box:
    """A rectangle, in the picture's units; y grows downwards."""

    x: float
    y: float
    width: float
    height: float

    def overlaps(self, other: Box) -> bool:
        """Return whether the two share more than an edge."""
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )

    def holds(self, x: float, y: float, *, slack: float = 0.5) -> bool:
        """Return whether a point lies inside or on the edge."""
        return (
            self.x - slack <= x <= self.x + self.width + slack
            and self.y - slack <= y <= self.y + self.height + slack
        )


@dataclass(frozen=True)
class Line:
    """A straight line; `css` names its look."""

    x1: float
    y1: float
    x2: float
    y2: float
    css: str

    def svg(self) -> str:
        """Return its element."""
        places = f'x1="{_n(self.x1)}" y1="{_n(self.y1)}" x2="{_n(self.x2)}" y2="{_n(self.y2)}"'
        return f'<line {places} class="{self.css}"/>'


@dataclass(frozen=True)
class Bar:
    """A filled rectangle."""

    box: Box
    css: str

    def svg(self) -> str:
        """Return its element."""
        b = self.box
        return (
            f'<rect x="{_n(b.x)}" y="{_n(b.y)}" width="{_n(b.width)}" height="{_n(b.height)}" '
            f'class="{self.css}"/>'
        )


@dataclass(frozen=True)
class Area:
    """A filled polygon."""

    points: tuple[tuple[float, float], ...]
    css: str

    def svg(self) -> str:
        """Return its element."""
        return (
            f'<polygon points="{" ".join(f"{_n(x)},{_n(y)}" for x, y in self.points)}" class="{self.css}"/>'
        )


@dataclass(frozen=True)
class Label:
    """A line of text; `y` is its base line, `anchor` start, middle or end."""

    x: float
    y: float
    text: str
    size: float = 13
    anchor: str = "start"
    css: str = "text"

    @property
    def box(self) -> Box:
        """The space it takes, estimated generously."""
        width = text_width(self.text, self.size, bold=self.css == "strong")
        left = {"start": self.x, "middle": self.x - width / 2, "end": self.x - width}[self.anchor]
        return Box(left, self.y - self.size * 0.8, width, self.size)

    def svg(self) -> str:
        """Return its element, escaped."""
        return (
            f'<text x="{_n(self.x)}" y="{_n(self.y)}" font-size="{_n(self.size)}" '
            f'text-anchor="{self.anchor}" class="{self.css}">{escape(printable(self.text))}</text>'
        )


@dataclass(frozen=True)
class Mark:
    """A measured point. The shape tells series apart, also in grey."""

    x: float
    y: float
    shape: str
    css: str
    size: float = 5

    def svg(self) -> str:
        """Return its element."""
        x, y, r = self.x, self.y, self.size
        if self.shape == "circle":
            return f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(r)}" class="{self.css}"/>'
        outlines: dict[str, list[tuple[float, float]]] = {
            "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
            "triangle": [(0, -1.2), (1.1, 0.9), (-1.1, 0.9)],
            "down": [(0, 1.2), (1.1, -0.9), (-1.1, -0.9)],
            "diamond": [(0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)],
        }
        if self.shape in outlines:
            points = " ".join(f"{_n(x + dx * r)},{_n(y + dy * r)}" for dx, dy in outlines[self.shape])
            return f'<polygon points="{points}" class="{self.css}"/>'
        if self.shape == "plus":
            path = f"M{_n(x - r)} {_n(y)}H{_n(x + r)}M{_n(x)} {_n(y - r)}V{_n(y + r)}"
        else:
            path = (
                f"M{_n(x - r)} {_n(y - r)}L{_n(x + r)} {_n(y + r)}M{_n(x - r)} {_n(y + r)}"
                f"L{_n(x + r)} {_n(y - r)}"
            )
        return f'<path d="{path}" class="{self.css} open"/>'


Shape = Line | Bar | Area | Label | Mark


@dataclass(frozen=True)
class Drawing:
    """A whole picture. `title` and `description` are what a reader who cannot see it is told."""

    width: float
    height: float
    title: str
    description: str
    shapes: tuple[Shape, ...]
    plot: Box  # where data may be drawn

    @property
    def labels(self) -> list[Label]:
        """All text in it."""
        return [shape for shape in self.shapes if isinstance(shape, Label)]

    @property
    def marks(self) -> list[Mark]:
        """All points in it."""
        return [shape for shape in self.shapes if isinstance(shape, Mark)]

    def svg(self, identity: str, *, css: str = "") -> str:
        """Return one `svg` element that needs nothing but the page's style; `identity` is unique in it."""
        title, about = f"{identity}-t", f"{identity}-d"
        body = "".join(shape.svg() for shape in self.shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(self.width)} {_n(self.height)}" '
            f'width="{_n(self.width)}" height="{_n(self.height)}" '
            f'role="img" aria-labelledby="{title} {about}" class="chart {css}">'
            f'<title id="{title}">{escape(printable(self.title))}</title>'
            f'<desc id="{about}">{escape(printable(self.description))}</desc>{body}</svg>'
        )


@dataclass(frozen=True)
class Scale:
    """A linear scale from values to places."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the place of a value; values outside are put at the edge."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


def ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Return round values inside low…high, at most `most`, in steps of 1, 2 or 5 times a power of ten."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return []
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(power * m for m in (1, 2, 5, 10, 20) if (high - low) / (power * m) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) + 0.0 for index in range(first, math.floor(high / step + 1e-9) + 1)]


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return how wide a text is, estimated generously, for a sans-serif of this size."""
    ratio = _BOLD_WIDTH_RATIO if bold else _LETTER_WIDTH_RATIO
    return sum(1.0 if ord(letter) > 0x2FF else ratio for letter in text) * size


def wrapped(text: str, width: float, size: float) -> list[str]:
    """Return the text in lines no wider than `width`; a single longer word is cut."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        candidate = f"{line} {word}".strip()
        if text_width(candidate, size) <= width:
            line = candidate
            continue
        if line:
            lines.append(line)
        line = shortened(word, width, size)
    return [*lines, line] if line else lines


def shortened(text: str, width: float, size: float, *, bold: bool = False) -> str:
    """Return the text, cut with an ellipsis where it would be wider than `width`."""
    if text_width(text, size, bold=bold) <= width:
        return text
    text = text[: int(width / size * 2)]
    while text and text_width(text + "…", size, bold=bold) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def apart(labels: Iterable[Label], taken: Sequence[Label] = ()) -> list[Label]:
    """Return those of the labels, in order of importance, that touch no earlier one."""
    kept: list[Label] = []
    for label in labels:
        if not any(label.box.overlaps(other.box) for other in [*taken, *kept]):
            kept.append(label)
    return kept


def printable(text: str) -> str:
    """Return the text without control characters (XML has none) and without halves of surrogate pairs."""
    return "".join(
        letter if letter.isprintable() or letter in " \n\t" else "\N{REPLACEMENT CHARACTER}"
        for letter in text
    )


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
