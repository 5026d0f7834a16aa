"""The report's three pictures, each a pure function from numbers to a drawing.

Nothing relies on colour: outcomes and profiles have shapes of their own, the parts of a cycle patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from deploy_kit.report.drawing import (
    Area,
    Bar,
    Box,
    Drawing,
    Label,
    Line,
    Mark,
    Scale,
    Shape,
    apart,
    shortened,
    text_width,
    ticks,
    wrapped,
)

WIDE, NARROW = 720.0, 340.0
_SIZE = 13.0
_SMALL = 12.0
# What became of a lever or profile → the mark's shape and look.
OUTCOMES = {
    "faster": ("square", "better"),
    "slower": ("down", "worse"),
    "no measurable effect": ("diamond", "even"),
    "not enough evidence": ("circle", "even"),
    "failed": ("cross", "worse"),
    "refused": ("cross", "even"),
}
# Shape and fill of the series in their order: no two of ten look alike, also in grey.
_LOOKS = (
    *(
        (shape, f"series s{n}")
        for n, shape in enumerate(("square", "triangle", "diamond", "plus", "cross", "down"))
    ),
    *((shape, f"series s{n} open") for n, shape in enumerate(("square", "triangle", "diamond", "down"))),
)


@dataclass(frozen=True)
class Effect:
    """One thing that was tried. `ratio` is speed over the base's; without it, `text` says why."""

    label: str
    outcome: str  # a key of OUTCOMES
    text: str
    ratio: float | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Cycle:
    """One cycle's parts in seconds. `decode` is plain decoding's only part; `other` is what cannot be told
    apart."""

    label: str
    parts: tuple[tuple[str, float], ...]  # (draft | verify | gap | other | decode, seconds)

    @property
    def seconds(self) -> float:
        """The whole cycle."""
        return sum(seconds for _, seconds in self.parts)


@dataclass(frozen=True)
class Series:
    """The measured rounds of one profile under one load: (cycle seconds, accept length)."""

    label: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class BreakEven:
    """One load's measured points, and the baseline's tokens/s of one stream where it is known."""

    label: str
    series: tuple[Series, ...]
    baseline_tokens_per_second: float | None
    note: str = field(default="")


PART_NAMES = {
    "draft": "draft",
    "verify": "verify",
    "gap": "gaps and waits",
    "other": "draft and gaps, not told apart",
    "decode": "decode step of the baseline",
}


def forest_plot(effects: Sequence[Effect], *, width: float = WIDE, even_ratio: float = 0.03) -> Drawing:
    """Given what was tried, return the effects on tokens/s in per cent with their intervals, one row each,
    in the given order; what gave no number keeps its row and says why."""
    left, right = 12.0, width - 12.0
    reached = [
        (edge - 1) * 100
        for effect in effects
        if effect.ratio is not None
        for edge in (effect.ratio, *(_bounded(effect) or ()))
    ]
    low, high = min([-10.0, *reached]), max([10.0, *reached])
    margin = (high - low) * 0.05
    scale = Scale(low - margin, high + margin, left, right)
    top = 26.0
    shapes: list[Shape] = []
    rows: list[Shape] = []
    y = top
    for index, effect in enumerate(effects):
        lines, height = _head(effect.label, effect.text, left, right, y + 14)
        start = y
        y += height
        rows += lines
        if effect.ratio is not None:
            rows += _interval(effect, scale, y + 8)
            y += 16
        elif lines and isinstance(lines[0], Label):
            shape, css = OUTCOMES[effect.outcome]
            name = lines[0]
            rows.append(Mark(left + 5, name.y - 4, shape, css))
            rows[rows.index(name)] = Label(name.x + 16, name.y, name.text, name.size, name.anchor, name.css)
        y += 10
        if index % 2:
            shapes.append(Bar(Box(0, start, width, y - start), "stripe"))
    bottom = max(y, top + 10)
    shapes.append(
        Bar(
            Box(
                scale(-even_ratio * 100),
                top,
                scale(even_ratio * 100) - scale(-even_ratio * 100),
                bottom - top,
            ),
            "evenband",
        )
    )
    marks = ticks(low - margin, high + margin, most=5 if width < WIDE else 9)
    shapes += [Line(scale(value), top, scale(value), bottom, "grid" if value else "zero") for value in marks]
    texts = [
        Label(scale(value), bottom + 16, f"{value:+g} %" if value else "0", _SMALL, "middle")
        for value in marks
    ]
    inside = [text for text in texts if text.box.x >= 0 and text.box.x + text.box.width <= width]
    shapes += [*rows, *apart(sorted(inside, key=lambda text: abs(text.x - scale(0.0))))]
    axis = "tokens/s against the base"
    shapes.append(Label(width / 2, bottom + 33, axis, _SMALL, "middle", "soft"))
    shapes.append(Label(left, 16, "← slower", _SMALL, "start", "soft"))
    shapes.append(Label(right, 16, "faster →", _SMALL, "end", "soft"))
    return Drawing(
        width,
        bottom + 42,
        "What was tried, and its effect on tokens/s",
        " ".join(f"{effect.label}: {effect.text}." for effect in effects),
        tuple(shapes),
        Box(left, top, right - left, bottom - top),
    )


def anatomy(cycles: Sequence[Cycle], *, width: float = WIDE) -> Drawing:
    """Given cycles, return them as bars on one scale, the parts stacked and told apart by pattern."""
    left, right = 12.0, width - 12.0
    longest = max((cycle.seconds for cycle in cycles), default=0.0) * 1000 or 1.0
    scale = Scale(0.0, longest * 1.02, left, right)
    used = [part for part in PART_NAMES if any(part == name for cycle in cycles for name, _ in cycle.parts)]
    shapes, top = _part_legend(used, left, right)
    y = top
    rows: list[Shape] = []
    for cycle in cycles:
        lines, height = _head(cycle.label, cycle_text(cycle), left, right, y + 14)
        rows += lines
        y += height + 2
        x = left
        for part, seconds in cycle.parts:
            length = scale(seconds * 1000) - left
            rows.append(Bar(Box(x, y, length, 16), f"part {part}"))
            x += length
        y += 28
    bottom = y
    for value in ticks(0.0, longest * 1.02, most=5 if width < WIDE else 9):
        shapes.append(Line(scale(value), top, scale(value), bottom, "grid"))
        text = f"{value:g} ms"
        half = text_width(text, _SMALL) / 2
        place = min(max(scale(value), half), width - half)
        shapes.append(Label(place, bottom + 16, text, _SMALL, "middle"))
    shapes += rows
    return Drawing(
        width,
        bottom + 24,
        "What one cycle is made of",
        " ".join(f"{cycle.label}: {cycle_text(cycle)}." for cycle in cycles),
        tuple(shapes),
        Box(left, top, right - left, bottom - top),
    )


def cycle_text(cycle: Cycle) -> str:
    """Return "9.66 ms = 1.45 draft + 8.01 verify + 0.20 gaps"."""
    if len(cycle.parts) == 1:
        part, seconds = cycle.parts[0]
        return f"{seconds * 1000:.2f} ms {'a step' if part == 'decode' else PART_NAMES[part]}"
    short = {"other": "draft and gaps"}
    parts = " + ".join(f"{s * 1000:.2f} {short.get(part, PART_NAMES[part])}" for part, s in cycle.parts)
    return f"{cycle.seconds * 1000:.2f} ms = {parts}"


def break_even(load: BreakEven, *, width: float = NARROW, shapes_of: Sequence[str] = ()) -> Drawing:
    """Given one load's points, return accept length against cycle time, with lines of equal tokens/s and the
    baseline's. `shapes_of` lists the series of all loads, so that a profile has one shape everywhere."""
    order = list(dict.fromkeys([*shapes_of, *(series.label for series in load.series)]))
    points = [point for series in load.series for point in series.points]
    plain = load.baseline_tokens_per_second
    every = [*points, *([(1 / plain, 1.0)] if plain else [])]
    x_high = max((cycle * 1000 for cycle, _ in every), default=1.0) * 1.15
    y_high = max(max((accept for _, accept in every), default=1.0) * 1.15, 1.3)
    plot = Box(44, 34, width - 44 - 74, 210)
    x = Scale(0.0, x_high, plot.x, plot.x + plot.width)
    y = Scale(0.0, y_high, plot.y + plot.height, plot.y)
    shapes: list[Shape] = [Bar(plot, "frame")]
    labels: list[Label] = []
    if plain:
        end = _ray_end(plain, x_high, y_high)
        corner = [(x_high, y_high)] if end[1] >= y_high else []
        below = [(0.0, 0.0), end, *corner, (x_high, 0.0)]
        shapes.append(Area(tuple((x(a), y(b)) for a, b in below), "losing"))
    for value in ticks(0.0, x_high, most=6):
        shapes.append(Line(x(value), plot.y + plot.height, x(value), plot.y + plot.height + 4, "axis"))
        labels.append(Label(x(value), plot.y + plot.height + 17, f"{value:g}", _SMALL, "middle"))
    for value in ticks(0.0, y_high, most=6):
        shapes.append(Line(plot.x - 4, y(value), plot.x, y(value), "axis"))
        labels.append(Label(plot.x - 7, y(value) + 4, f"{value:g}", _SMALL, "end"))
    if plain:
        end = _ray_end(plain, x_high, y_high)
        shapes.append(Line(x(0), y(0), x(end[0]), y(end[1]), "breakeven"))
        base = _ray_label(f"{plain:.0f} base", end, x, y, x_high, "strong")
        # At the top it may reach over an edge: over the picture's, or over the numbers at the left.
        over = max(0.0, base.box.x + base.box.width - width)
        under = max(0.0, plot.x - base.box.x)
        labels.append(replace(base, x=base.x - over + under))
    for speed in _speeds(points, plain, x_high, y_high):
        end = _ray_end(speed, x_high, y_high)
        label = _ray_label(f"{speed:g}", end, x, y, x_high, "soft")
        # A line that has no room for its label says nothing.
        if label.box.x + label.box.width <= width and apart([label], labels):
            labels.append(label)
            shapes.append(Line(x(0), y(0), x(end[0]), y(end[1]), "iso"))
    labels.append(
        Label(plot.x + plot.width / 2, plot.y + plot.height + 34, "cycle time, ms", _SMALL, "middle", "soft")
    )
    labels.append(
        Label(
            4,
            14,
            shortened(f"accept length · {load.label}", width - 8, _SIZE, bold=True),
            _SIZE,
            "start",
            "strong",
        )
    )
    marks: list[Shape] = []
    for series in load.series:
        shape, css = _LOOKS[order.index(series.label) % len(_LOOKS)]
        marks += [Mark(x(c * 1000), y(a), shape, css) for c, a in series.points]
    if plain:
        marks.append(Mark(x(1000 / plain), y(1.0), "circle", "basemark"))
    base_line = plot.y + plot.height + 54
    legend, bottom = _series_legend(load, order, width, base_line)
    told = "; ".join(
        f"{s.label}: accept length {_mean([a for _, a in s.points]):.2f} at a cycle of "
        f"{_mean([c for c, _ in s.points]) * 1000:.1f} ms ({len(s.points)} rounds)"
        for s in load.series
        if s.points
    )
    known = f"baseline {plain:.1f} tokens/s a stream" if plain else "the baseline is not measured"
    return Drawing(
        width,
        bottom,
        f"Break-even at {load.label}",
        f"{known}. {told or 'No cycle was measured'}. Points above the thick line beat the baseline.",
        (*shapes, *labels, *marks, *legend),
        plot,
    )


def _series_legend(
    load: BreakEven, order: Sequence[str], width: float, y: float
) -> tuple[list[Shape], float]:
    shapes: list[Shape] = []
    entries = [
        (series.label, *_LOOKS[order.index(series.label) % len(_LOOKS)])
        for series in load.series
        if series.points
    ]
    if load.baseline_tokens_per_second:
        entries.append(("baseline: on its own line, at 1", "circle", "basemark"))
    for text, shape, css in entries:
        shapes.append(Mark(12, y - 4, shape, css))
        shapes.append(Label(24, y, shortened(text, width - 28, _SMALL), _SMALL))
        y += 17
    if load.note:
        for line in wrapped(load.note, width - 8, _SMALL):
            shapes.append(Label(4, y, line, _SMALL, "start", "soft"))
            y += 16
    return shapes, y - 4


def _speeds(
    points: Sequence[tuple[float, float]], plain: float | None, x_high: float, y_high: float
) -> list[float]:
    # Round speeds around what was measured; never one that hides beside the baseline's own line.
    measured = [accept / cycle for cycle, accept in points] + ([plain] if plain else [])
    if not measured:
        return []
    low, high = min(measured) * 0.5, max(max(measured) * 1.5, y_high / x_high * 1000 * 1.2)
    return [s for s in ticks(low, high, most=7) if s > 0 and (plain is None or abs(s / plain - 1) > 0.06)]


def _ray_end(speed: float, x_high: float, y_high: float) -> tuple[float, float]:
    # accept length = tokens/s x cycle; x is in ms.
    accept = speed * x_high / 1000
    return (x_high, accept) if accept <= y_high else (y_high / speed * 1000, y_high)


def _ray_label(text: str, end: tuple[float, float], x: Scale, y: Scale, x_high: float, css: str) -> Label:
    if end[0] >= x_high:
        return Label(x(end[0]) + 4, y(end[1]) + 4, text, _SMALL, "start", css)
    return Label(x(end[0]), y(end[1]) - 4, text, _SMALL, "middle", css)


def _interval(effect: Effect, scale: Scale, y: float) -> list[Shape]:
    if effect.ratio is None:
        return []
    shape, css = OUTCOMES[effect.outcome]
    place = scale((effect.ratio - 1) * 100)
    edges = _bounded(effect)
    if edges is None or effect.interval is None:
        return [Mark(place, y, "circle", "even open", 5)]
    low, high = (scale((edge - 1) * 100) for edge in edges)
    shapes: list[Shape] = [Line(low, y, high, y, f"whisker {css}")]
    for end, edge, shown, inwards in (
        (low, effect.interval[0], edges[0], 1),
        (high, effect.interval[1], edges[1], -1),
    ):
        if edge == shown:
            shapes.append(Line(end, y - 5, end, y + 5, f"whisker {css}"))
        else:  # goes on beyond the picture
            shapes += [Line(end, y, end + 6 * inwards, y + side, f"whisker {css}") for side in (-5, 5)]
    return [*shapes, Mark(place, y, shape, css)]


def _bounded(effect: Effect) -> tuple[float, float] | None:
    # An interval from two rounds can be huge: it is cut, with an arrow for its end; the text has the numbers.
    if effect.interval is None or effect.ratio is None:
        return None
    return max(effect.interval[0], effect.ratio - 0.6), min(effect.interval[1], effect.ratio + 0.6)


def _head(name: str, value: str, left: float, right: float, y: float) -> tuple[list[Shape], float]:
    """Return a row's name and value: on one line where both fit, else the value in lines below."""
    room = right - left - 20
    name = shortened(name, room, _SIZE, bold=True)
    shapes: list[Shape] = [Label(left, y, name, _SIZE, "start", "strong")]
    if text_width(name, _SIZE, bold=True) + text_width(value, _SMALL) + 24 <= room:
        shapes.append(Label(right, y, value, _SMALL, "end"))
        return shapes, 18.0
    height = 18.0
    for line in wrapped(value, room, _SMALL)[:4]:
        y += 15
        height += 15
        shapes.append(Label(left, y, line, _SMALL))
    return shapes, height


def _part_legend(used: Sequence[str], left: float, right: float) -> tuple[list[Shape], float]:
    shapes: list[Shape] = []
    x, y = left, 18.0
    for part in used:
        length = text_width(PART_NAMES[part], _SMALL) + 44
        if x > left and x + length > right:
            x, y = left, y + 20
        shapes.append(Bar(Box(x, y - 11, 22, 13), f"part {part}"))
        shapes.append(Label(x + 28, y, PART_NAMES[part], _SMALL))
        x += length
    return shapes, y + 12


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
