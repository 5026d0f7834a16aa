"""The pictures' geometry: points inside, labels apart, the sums on the lines, nothing by colour alone."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deploy_kit.report.charts import (
    NARROW,
    OUTCOMES,
    WIDE,
    BreakEven,
    Cycle,
    Effect,
    Series,
    anatomy,
    break_even,
    forest_plot,
)
from deploy_kit.report.drawing import (
    Bar,
    Box,
    Drawing,
    Label,
    Line,
    apart,
    shortened,
    text_width,
    ticks,
    wrapped,
)

texts = st.text(min_size=0, max_size=60)
ratios = st.floats(0.05, 20)
seconds = st.floats(1e-4, 2.0)


@st.composite
def effects(draw: st.DrawFn) -> list[Effect]:
    found = []
    for label in draw(st.lists(texts, max_size=9)):
        outcome = draw(st.sampled_from(sorted(OUTCOMES)))
        ratio = None if outcome in ("failed", "refused") else draw(ratios)
        interval = None
        if ratio is not None and draw(st.booleans()):
            interval = (ratio / draw(st.floats(1, 50)), ratio * draw(st.floats(1, 1e300)))
        found.append(Effect(label, outcome, draw(texts), ratio, interval))
    return found


def check(drawing: Drawing) -> ET.Element:
    """Hold what is true of every picture; return it parsed."""
    for mark in drawing.marks:
        assert Box(0, 0, drawing.width, drawing.height).holds(mark.x, mark.y)
    for label in drawing.labels:
        assert label.box.y >= -1
        assert label.box.y + label.box.height <= drawing.height + 4, label
    for one, other in combinations(drawing.labels, 2):
        assert not one.box.overlaps(other.box), (one, other)
    root = ET.fromstring(drawing.svg("x"))
    assert root.attrib["role"] == "img"
    title, about = root.attrib["aria-labelledby"].split()
    assert [child.attrib["id"] for child in root[:2]] == [title, about]
    return root


@given(effects(), st.sampled_from([WIDE, NARROW]))
@settings(max_examples=40)  # 1,200 of each were tried once
def test_any_forest_plot_is_sound(tried: list[Effect], width: float) -> None:
    drawing = forest_plot(tried, width=width)
    check(drawing)
    assert len(drawing.marks) == len(tried)
    for mark in drawing.marks:
        assert drawing.plot.holds(mark.x, mark.y)


def test_the_forest_plot_puts_the_effect_where_it_is() -> None:
    tried = [
        Effect("slower", "slower", "-20 %", 0.8, (0.7, 0.9)),
        Effect("even", "no measurable effect", "0 %", 1.0, (0.98, 1.02)),
        Effect("faster", "faster", "+20 %", 1.2, (1.1, 1.3)),
        Effect("crashed", "failed", "crashed: no kernel image"),
    ]
    drawing = forest_plot(tried)
    slower, even, faster, crashed = drawing.marks
    assert even.x - slower.x == pytest.approx(faster.x - even.x)
    zero = next(s for s in drawing.shapes if isinstance(s, Line) and s.css == "zero")
    assert even.x == pytest.approx(zero.x1)
    band = next(s for s in drawing.shapes if isinstance(s, Bar) and s.css == "evenband")
    assert (band.box.x + band.box.width / 2) == pytest.approx(zero.x1)
    assert len({slower.shape, even.shape, faster.shape, crashed.shape}) == 4  # told apart without colour
    assert any("no kernel image" in label.text for label in drawing.labels)


def test_an_interval_beyond_the_picture_ends_in_an_arrow() -> None:
    drawing = forest_plot([Effect("two rounds", "not enough evidence", "?", 1.1, (0.2, 1e9))])
    whiskers = [s for s in drawing.shapes if isinstance(s, Line) and s.css.startswith("whisker")]
    assert len(whiskers) == 5  # the line, and two strokes at each cut end
    assert all(
        drawing.plot.holds(line.x1, line.y1) and drawing.plot.holds(line.x2, line.y2) for line in whiskers
    )


@given(
    st.lists(
        st.builds(
            Cycle,
            texts,
            st.lists(
                st.tuples(st.sampled_from(["draft", "verify", "gap"]), seconds), min_size=1, max_size=3
            ).map(tuple),
        ),
        max_size=8,
    ),
    st.sampled_from([WIDE, NARROW]),
)
@settings(max_examples=40)  # 1,200 of each were tried once
def test_any_anatomy_is_sound(cycles: list[Cycle], width: float) -> None:
    drawing = anatomy(cycles, width=width)
    check(drawing)
    for shape in drawing.shapes:
        if isinstance(shape, Bar):
            assert shape.box.x + shape.box.width <= drawing.width


def test_anatomy_stacks_parts_without_holes_and_to_scale() -> None:
    parts = (("draft", 0.002), ("verify", 0.006), ("gap", 0.001))
    drawing = anatomy([Cycle("eagle3", parts), Cycle("baseline", (("decode", 0.0045),))])
    bars = [s.box for s in drawing.shapes if isinstance(s, Bar) and s.box.height == 16]
    draft, verify, gap, decode = bars
    assert draft.x + draft.width == pytest.approx(verify.x)
    assert verify.x + verify.width == pytest.approx(gap.x)
    assert verify.width == pytest.approx(3 * draft.width)
    assert decode.width == pytest.approx((draft.width + verify.width + gap.width) / 2)
    assert decode.x == draft.x
    looks = {s.css for s in drawing.shapes if isinstance(s, Bar) and s.box.height == 16}
    assert len(looks) == 4


@given(
    st.lists(
        st.builds(Series, texts, st.lists(st.tuples(seconds, st.floats(0.5, 16)), max_size=6).map(tuple)),
        max_size=12,
    ),
    st.one_of(st.none(), st.floats(1, 500)),
    texts,
)
@example([Series("", ((1.0, 5.25),))], 53.0, "")  # a steep base line: its label met the numbers at the left
@settings(max_examples=40)  # 1,200 of each were tried once
def test_any_break_even_chart_is_sound(series: list[Series], plain: float | None, label: str) -> None:
    drawing = break_even(BreakEven(label, tuple(series), plain))
    check(drawing)
    inside = [mark for mark in drawing.marks if mark.y <= drawing.plot.y + drawing.plot.height]
    assert all(drawing.plot.holds(mark.x, mark.y) for mark in inside)
    assert len(inside) == sum(len(one.points) for one in series) + (plain is not None)


def test_a_point_above_the_line_is_faster_and_one_on_it_is_even() -> None:
    plain = 82.0
    points = ((0.030, 0.030 * plain), (0.015, 2.0), (0.030, 2.0))
    drawing = break_even(BreakEven("C=1", (Series("eagle3", points),), plain))
    line = next(s for s in drawing.shapes if isinstance(s, Line) and s.css == "breakeven")

    def height_of_line(x: float) -> float:
        return line.y1 + (line.y2 - line.y1) * (x - line.x1) / (line.x2 - line.x1)

    even, above, below = drawing.marks[:3]
    assert even.y == pytest.approx(height_of_line(even.x))
    assert above.y < height_of_line(above.x)  # y grows downwards
    assert below.y > height_of_line(below.x)
    base = next(mark for mark in drawing.marks if mark.css == "basemark")
    assert base.y == pytest.approx(height_of_line(base.x))


def test_lines_of_equal_speed_are_labelled_with_their_speed() -> None:
    drawing = break_even(BreakEven("C=1", (Series("eagle3", ((0.010, 2.0),)),), 100.0))
    rays = [s for s in drawing.shapes if isinstance(s, Line) and s.css == "iso"]
    numbers = [
        label for label in drawing.labels if label.css == "soft" and re.fullmatch(r"[\d.]+", label.text)
    ]
    assert len(rays) == len(numbers) >= 2
    mark = drawing.marks[0]  # 2.0 / 10 ms = 200 tokens/s
    line = rays[[label.text for label in numbers].index("200")]
    on_line = line.y1 + (line.y2 - line.y1) * (mark.x - line.x1) / (line.x2 - line.x1)
    assert mark.y == pytest.approx(on_line)


def test_ten_profiles_are_told_apart_without_colour() -> None:
    series = tuple(Series(f"p{n}", ((0.01 + n / 1000, 2.0),)) for n in range(10))
    marks = break_even(BreakEven("C=1", series, None)).marks[:10]
    assert len({(mark.shape, "open" in mark.css) for mark in marks}) == 10


def test_a_profile_keeps_its_shape_from_load_to_load() -> None:
    order = ("eagle3", "ngram")
    one = break_even(BreakEven("C=1", (Series("ngram", ((0.01, 2.0),)),), None), shapes_of=order)
    both = break_even(
        BreakEven("C=8", (Series("eagle3", ((0.01, 2.0),)), Series("ngram", ((0.02, 2.0),))), None),
        shapes_of=order,
    )
    assert one.marks[0].shape == both.marks[1].shape != both.marks[0].shape


@given(st.floats(-1e4, 1e4), st.floats(1e-2, 1e6), st.integers(2, 12))
def test_ticks_are_few_round_and_inside(low: float, span: float, most: int) -> None:
    found = ticks(low, low + span, most=most)
    assert len(found) <= most + 1
    assert all(low - span * 1e-6 <= value <= low + span * (1 + 1e-6) for value in found)


@given(texts, st.floats(30, 400))
def test_wrapped_and_shortened_text_fits(text: str, width: float) -> None:
    for line in [*wrapped(text, width, 12), shortened(text, width, 12)]:
        assert text_width(line, 12) <= width or line in ("…", "")


def test_apart_keeps_the_first_of_two_that_touch() -> None:
    first, second, third = Label(0, 10, "abc"), Label(5, 10, "abc"), Label(100, 10, "abc")
    assert apart([first, second, third]) == [first, third]
