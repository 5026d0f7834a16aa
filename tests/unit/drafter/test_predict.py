"""Accept length and break-even, with the story's figures."""

from __future__ import annotations

import contextlib
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.drafter.figures import parse_figures, parse_rate
from deploy_kit.drafter.predict import (
    from_cumulative,
    from_histogram,
    needed_everywhere,
    predict,
    predict_chain,
    predict_tree,
    predict_whole_tree,
)
from deploy_kit.errors import DeployKitError

RATES = st.lists(st.floats(0, 1), min_size=1, max_size=8)
VLLM_COUNTERS = """\
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 750
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 4.5e+02
vllm:spec_decode_num_drafts_total{engine="0"} 1000.0
"""
OUR_HISTOGRAM = """\
deploy_kit_spec_accept_length_bucket{host="h",le="1.0"} 25.0
deploy_kit_spec_accept_length_bucket{host="h",le="2.0"} 50.0
deploy_kit_spec_accept_length_bucket{host="h",le="3.0"} 100.0
deploy_kit_spec_accept_length_bucket{host="h",le="4.0"} 100.0
deploy_kit_spec_accept_length_bucket{host="h",le="+Inf"} 100.0
"""
STORY_CYCLE, STORY_BASELINE = 0.030, 82.0


def test_story_first_position() -> None:
    # 0.747 at the first position, one draft: 1.747, and at 30 ms that is slower than 82 tok/s.
    one = predict([0.747], cycle_seconds=STORY_CYCLE, baseline_tokens_per_second=STORY_BASELINE)
    assert one.accept_length == pytest.approx(1.747)
    assert one.tokens_per_second == pytest.approx(58.23, abs=0.01)
    assert one.break_even == pytest.approx(2.46)
    assert one.break_even is not None and one.accept_length < one.break_even
    assert one.needed == (None,)
    # The same acceptance at all three positions would pay: 1 + 0.747 + 0.558 + 0.417.
    three = predict([0.747] * 3, cycle_seconds=STORY_CYCLE, baseline_tokens_per_second=STORY_BASELINE)
    assert three.accept_length == pytest.approx(2.7218, abs=1e-4)
    assert three.needed_everywhere == pytest.approx(0.6808, abs=1e-4)


def test_story_sister_drafter() -> None:
    # 38.3 % then 3.5 %: as conditional rates, and as shares of all verifies.
    assert predict([0.383, 0.035]).accept_length == pytest.approx(1.3964, abs=1e-4)
    assert predict(from_cumulative([0.383, 0.035])).accept_length == pytest.approx(1.418)


def test_story_speeds() -> None:
    # 60 tok/s at 30 ms is an accept length of 1.8; 2.0 at 15 ms is 133 tok/s, at 12 ms 167.
    assert pytest.approx(1.8) == 60 * STORY_CYCLE
    assert predict([1.0], cycle_seconds=0.015).tokens_per_second == pytest.approx(133.3, abs=0.1)
    assert predict([1.0], cycle_seconds=0.012).tokens_per_second == pytest.approx(166.7, abs=0.1)


def test_draft_tokens_cap() -> None:
    assert predict([1.0] * 7, draft_tokens=4).accept_length == 4.0
    assert predict([0.5] * 3, draft_tokens=1).accept_length == 1.0


@given(RATES)
def test_chain_against_a_simulation(rates: list[float]) -> None:
    exact = sum(
        (accepted + 1) * _product(rates[:accepted]) * (1 - rates[accepted] if accepted < len(rates) else 1)
        for accepted in range(len(rates) + 1)
    )
    assert predict_chain(rates)[0] == pytest.approx(exact)


def _product(rates: list[float]) -> float:
    product = 1.0
    for rate in rates:
        product *= rate
    return product


@given(RATES, st.integers(0, 7), st.floats(0.01, 1))
def test_more_acceptance_never_shortens(rates: list[float], place: int, more: float) -> None:
    better = [min(1.0, rate + more) if index == place else rate for index, rate in enumerate(rates)]
    assert predict_chain(better)[0] >= predict_chain(rates)[0]
    assert 1 <= predict_chain(rates)[0] <= 1 + len(rates)


@given(st.lists(st.floats(0.05, 0.95), min_size=1, max_size=6), st.floats(0.02, 0.2), st.floats(5, 60))
def test_needed_rates_reach_the_break_even(rates: list[float], cycle: float, baseline: float) -> None:
    result = predict(rates, cycle_seconds=cycle, baseline_tokens_per_second=baseline)
    assert result.break_even is not None and result.break_even == pytest.approx(cycle * baseline)
    for place, rate in enumerate(result.needed):
        changed = [*rates[:place], 1.0 if rate is None else rate, *rates[place + 1 :]]
        length = predict_chain(changed)[0]
        if rate is None:
            assert length < result.break_even + 1e-9
        elif rate > 0:
            assert length == pytest.approx(result.break_even)
    if result.needed_everywhere is not None and result.needed_everywhere > 0:
        length = predict_chain([result.needed_everywhere] * len(rates))[0]
        assert length == pytest.approx(result.break_even, abs=1e-6)


def test_tree_of_one_choice_is_a_chain() -> None:
    assert predict_tree([[0.7], [0.6], [0.5]], topk=1, draft_tokens=4)[0] == pytest.approx(
        predict_chain([0.7, 0.6, 0.5])[0]
    )


def test_tree_takes_the_likeliest_nodes() -> None:
    ranks = [[0.6, 0.2], [0.5, 0.2]]
    # Nodes: 0.6, 0.2, 0.3, 0.12, 0.1, 0.04. Three drafts: 0.6 + 0.3 + 0.2.
    assert predict_tree(ranks, topk=2, draft_tokens=4)[0] == pytest.approx(2.1)
    assert predict_tree(ranks, topk=2, draft_tokens=7)[0] == pytest.approx(1 + 0.8 + 0.8 * 0.7)
    assert predict_tree(ranks, topk=2, draft_tokens=1)[0] == 1.0


def test_tree_against_drawing() -> None:
    ranks = [[0.55, 0.25, 0.1], [0.5, 0.2, 0.1], [0.4, 0.3, 0.1]]
    predicted, reached = predict_tree(ranks, topk=2, draft_tokens=8)
    drawn = random.Random(5)
    chosen = _chosen_nodes(ranks, topk=2, count=7)
    total = 0
    for _ in range(40_000):
        path: tuple[int, ...] = ()
        for choices in ranks:
            draw = drawn.random()
            rank = next((r for r, edge in enumerate(itertools.accumulate(choices)) if draw < edge), None)
            if rank is None or (*path, rank) not in chosen:
                break
            path = (*path, rank)
        total += 1 + len(path)
    assert total / 40_000 == pytest.approx(predicted, abs=0.03)
    assert reached[0] == pytest.approx(0.8)


def _chosen_nodes(ranks: list[list[float]], *, topk: int, count: int) -> set[tuple[int, ...]]:
    nodes: dict[tuple[int, ...], float] = {}
    parents: list[tuple[int, ...]] = [()]
    for choices in ranks:
        made = {}
        for parent in parents:
            for rank in range(topk):
                made[(*parent, rank)] = nodes.get(parent, 1.0) * choices[rank]
        nodes |= made
        parents = sorted(made, key=lambda path: -made[path])[:topk]
    return set(sorted(nodes, key=lambda path: (-nodes[path], len(path)))[:count])


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6))
def test_cumulative_round_trip(rates: list[float]) -> None:
    assert from_cumulative(predict_chain(rates)[1]) == pytest.approx(rates)


def test_histogram() -> None:
    assert from_histogram([25, 25, 50]) == pytest.approx((0.75, 2 / 3))
    # The mean of the histogram is the accept length less the bonus.
    assert predict_chain(from_histogram([10, 5, 3, 2]))[0] == pytest.approx(1 + (5 + 6 + 6) / 20)
    with pytest.raises(DeployKitError):
        from_histogram([0, 0])


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        (
            "step 900 train/acc_0: 0.70, acc_1: 0.60\nstep 1000 train/acc_0: 0.747, acc_1: 0.62\n",
            (0.747, 0.62),
        ),
        ("Per-position acceptance rate: 0.75, 0.45, 0.09", (0.75, 0.6, 0.2)),
        ('"spec_accept_histogram": [25, 25, 50]', (0.75, 2 / 3)),
        ("acceptance position 1: 38.3 %\nacceptance position 2: 3.5 %\n", (0.383, 0.035)),
        ("acceptance rate at position 1: 38.3 %, position 2: 3.5 %", (0.383, 0.035)),
        ("position 0: 74.7%\nposition 1: 60 %", (0.747, 0.6)),
        ("accepted_pos_0 0.7\naccepted_pos_1 0.5", (0.7, 0.5)),
        (VLLM_COUNTERS, (0.75, 0.6)),
        (OUR_HISTOGRAM, (0.75, 2 / 3)),
    ],
)
def test_logs(text: str, rates: tuple[float, ...]) -> None:
    assert parse_figures(text)[0] == pytest.approx(rates)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing",
        "acc_0: 0.5 acc_3: 0.1",
        "Per-position acceptance rate: 0.2, 0.9",
        "accept_histogram: [1..2]",
        "spec_accept_histogram: [0, 0]",
        "spec_accept_histogram: [-1, 2]",
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 750\n',
        'deploy_kit_spec_accept_length_bucket{le="2.0"} 5\n',
        OUR_HISTOGRAM.replace("50.0", "20.0"),
        'deploy_kit_spec_accept_length_bucket{le="x"} 5\n',
    ],
)
def test_logs_without_use(text: str) -> None:
    with pytest.raises(DeployKitError):
        parse_figures(text)


@given(st.text(alphabet='acept_histogrmpo sin%.,:[]{}="\n0123456789le+Inf', max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    for odd in (
        text,
        f"accept_histogram: [{text}]",
        f"Per-position acceptance rate: {text}",
        f"acc_0: {text}",
    ):
        with contextlib.suppress(DeployKitError):
            predict(parse_figures(odd)[0])


def test_figures_told_to_be_cumulative() -> None:
    text = "position 1: 75 %, position 2: 45 %"
    rates, how = parse_figures(text, cumulative=True)
    assert rates == pytest.approx((0.75, 0.6)) and "as told" in how
    assert parse_figures(text)[0] == pytest.approx((0.75, 0.45))


@given(
    st.lists(st.lists(st.floats(0.01, 0.33), min_size=1, max_size=3), min_size=1, max_size=3),
    st.floats(0.2, 5.0),
    st.integers(2, 4),
    st.integers(2, 8),
)
def test_what_a_tree_would_need_brings_it_there(
    ranks: list[list[float]], even: float, topk: int, draft_tokens: int
) -> None:
    made = predict_whole_tree(
        ranks, topk=topk, draft_tokens=draft_tokens, cycle_seconds=0.01, baseline_tokens_per_second=even * 100
    )
    for depth, (needed, choices) in enumerate(zip(made.needed, ranks, strict=True)):
        full = 1.0 if needed is None else needed
        scaled = [full / sum(choices) * choice for choice in choices]
        tree = [scaled if place == depth else other for place, other in enumerate(ranks)]
        length, _ = predict_tree(tree, topk=topk, draft_tokens=draft_tokens)
        if needed is None:
            assert length < even + 1e-9
        elif needed > 0:
            assert length == pytest.approx(even, abs=1e-6)
    if made.needed_factor:
        times = [[made.needed_factor * choice for choice in choices] for choices in ranks]
        assert predict_tree(times, topk=topk, draft_tokens=draft_tokens)[0] == pytest.approx(even, abs=1e-6)


@pytest.mark.parametrize("rates", [[], [1.2], [-0.1], [0.5] * 100, [float("nan")]])
def test_bad_rates(rates: list[float]) -> None:
    with pytest.raises(DeployKitError):
        predict(rates)


def test_bad_numbers() -> None:
    for options in (
        {"cycle_seconds": 0.0},
        {"cycle_seconds": -1.0},
        {"baseline_tokens_per_second": float("inf")},
    ):
        with pytest.raises(DeployKitError):
            predict([0.5], **options)  # type: ignore[arg-type]
    with pytest.raises(DeployKitError):
        parse_rate("fast")
    assert parse_rate("74.7 %") == pytest.approx(0.747)
    assert parse_rate(".5") == 0.5
    assert needed_everywhere(5.0, 3) is None and needed_everywhere(0.5, 3) == 0.0


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("acc_0: .1\nacc_1: .25\n", (0.1, 0.25)),
        ("acc_0: 7e-1\n", (0.7,)),
        ("| acc_0 | 0.7 |\n", (0.7,)),
        ("acc_0 - 0.7, acc_1 - 0.4\n", (0.7, 0.4)),
        ("**pos 1**: 0.7.\n", (0.7,)),
    ],
)
def test_a_figure_is_read_whole(text: str, rates: tuple[float, ...]) -> None:
    assert parse_figures(text)[0] == pytest.approx(rates)


@pytest.mark.parametrize("figure", ["-0.5", "nan", "0.7.5", "inf"])
def test_what_is_no_rate_in_a_file_is_refused_as_input(figure: str) -> None:
    with pytest.raises(DeployKitError) as caught:
        parse_figures(f"acc_0: {figure}\nacc_1: 0.5\n")
    assert caught.value.exit_code == 5
