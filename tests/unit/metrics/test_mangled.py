"""Whatever happens to a scrape on the way: right numbers, or an absent value; and no exception."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from deploy_kit.metrics.explain import explain
from deploy_kit.metrics.reading import read
from deploy_kit.metrics.text import parse

SCRAPE = (Path(__file__).parent / "scrapes" / "eagle3-2.75.prom").read_text()
# The part that quantities are read from; the whole is too long to mangle a hundred times.
LINES = [
    line
    for line in SCRAPE.splitlines()
    if any(
        part in line
        for part in ("num_", "spec_", "gen_throughput", "token_usage", "tokens_total", "deploy_kit_")
    )
    and "_bucket" not in line
]
TEXT = "\n".join(LINES) + "\n"
TRUE = read(parse(TEXT)).engines[0].values


@given(st.text(max_size=400))
def test_any_text_is_answered(text: str) -> None:
    json.dumps(explain(text).as_dict(), allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(st.integers(min_value=0, max_value=len(TEXT)))
def test_truncation_never_gives_a_wrong_number(at: int) -> None:
    reading = read(parse(TEXT[:at]))
    for engine in reading.engines:
        for name, value in engine.values.items():
            assert value == TRUE[name]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_lines_shuffled_doubled_and_spoiled(data: st.DataObject) -> None:
    lines = data.draw(st.permutations(LINES))
    spoiled = data.draw(st.sets(st.integers(0, len(lines) - 1), max_size=5))
    doubled = data.draw(st.sets(st.integers(0, len(lines) - 1), max_size=5))
    noise = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=30)
    text = []
    for index, line in enumerate(lines):
        text.append(data.draw(noise) if index in spoiled else line)
        if index in doubled and index not in spoiled:
            text.append(line)
    for engine in read(parse("\n".join(text) + "\n")).engines:
        if engine.model == "rehearsal-tiny":
            for name, value in engine.values.items():
                assert value == TRUE[name]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 8), st.sampled_from(["sglang:", "sglang_"]))
def test_copies_by_rank_change_nothing(ranks: int, prefix: str) -> None:
    lines = [
        line.replace('tp_rank="0"', f'tp_rank="{rank}"').replace("sglang:", prefix)
        for rank in range(ranks)
        for line in LINES
        if rank == 0 or "tp_rank" in line
    ]
    engine = read(parse("\n".join(dict.fromkeys(lines)) + "\n")).engines[0]
    assert engine.values == TRUE


@given(st.integers(0, len(LINES) - 1))
def test_not_a_number_removes_its_quantity_only(index: int) -> None:
    lines = list(LINES)
    if lines[index].startswith("#"):
        return
    lines[index] = lines[index].rsplit(" ", 1)[0] + " NaN"
    values = read(parse("\n".join(lines) + "\n")).engines[0].values
    assert all(TRUE[name] == value for name, value in values.items())
    assert len(values) >= len(TRUE) - 1
