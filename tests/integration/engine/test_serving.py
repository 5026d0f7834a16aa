"""Every profile on the real server: text and accept length are what was computed, with and without
speculation."""

import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deploy_kit_rehearsal import expect
from deploy_kit_rehearsal.expect import NgramMemory, Speech
from engine_server import Server, serving
from transformers import AutoTokenizer

pytestmark = pytest.mark.timeout(600)

# Prompts of one chunk of the circle, so that n-gram's corpus learns nothing else; the last are cut inside a
# verify.
PROMPTS = (("Ada builds", 177), (" Zelda admires rare", 89), ("Hello", 50), ("x", 23))
WARM_UP_PROMPT = "The capital city of France is"  # SGLang's own first request, 8 tokens
WARM_UP_TOKENS = 8
CHAT_TOKENS = 61


@pytest.fixture(scope="module")
def speech(models: Path) -> Speech:
    return expect.load_speech(models / "target")


@pytest.fixture(scope="module")
def last_token(models: Path) -> dict[str, int]:
    tokenizer = AutoTokenizer.from_pretrained(models / "target")
    return {text: tokenizer.encode(text)[-1] for text in (*(text for text, _ in PROMPTS), WARM_UP_PROMPT)}


def eagle3(drafter: Path, steps: int = 3) -> tuple[str, ...]:
    return (
        "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", str(drafter),
        "--speculative-num-steps", str(steps),
        "--speculative-eagle-topk", "1",
        "--speculative-num-draft-tokens", str(steps + 1),
    )  # fmt: skip


def check_text(answer: dict[str, Any], speech: Speech, last: int, count: int) -> None:
    """The same whatever the profile: that is what "identical with and without speculation" means here."""
    assert answer["text"] == expect.expected_text(speech, last, count)
    assert answer["meta_info"]["completion_tokens"] == count


def check_each(server: Server, speech: Speech, last_token: dict[str, int]) -> None:
    """One prompt at a time. Where verifies are computed, `check_verifies` looks at these answers."""
    for text, count in PROMPTS:
        check_text(server.generate(text, count), speech, last_token[text], count)


def check_texts(server: Server, speech: Speech, last_token: dict[str, int]) -> None:
    """A chat, the same streamed, and four requests at once."""
    wanted = expect.expected_text(speech, speech.assistant, CHAT_TOKENS)
    answer = server.chat("Tell me about bridges.", CHAT_TOKENS)
    assert answer["choices"][0]["message"]["content"] == wanted
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == CHAT_TOKENS
    streamed, pieces, tokens = server.chat_streamed("Tell me about bridges.", CHAT_TOKENS)
    assert streamed == wanted
    assert pieces > 1
    assert tokens == CHAT_TOKENS

    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda prompt: server.generate(*prompt), PROMPTS * 2)
        for (text, count), answer in zip(PROMPTS * 2, answers, strict=True):
            check_text(answer, speech, last_token[text], count)


def check_verifies(
    server: Server, speech: Speech, last: int, text: str, count: int, lengths: Iterable[int]
) -> None:
    """One answer's text, its own account of its verifies, and the counter's: all as computed."""
    lengths = list(lengths)
    before = server.metric("spec_verify_calls_total")
    answer = server.generate(text, count)
    check_text(answer, speech, last, count)
    meta = answer["meta_info"]
    assert meta["spec_verify_ct"] == len(lengths)
    assert meta["spec_accept_length"] == pytest.approx(count / len(lengths))
    if sum(lengths) + 1 == count:  # else the last verify is cut
        histogram = Counter(length - 1 for length in lengths)
        assert meta["spec_correct_drafts_histogram"] == [histogram[n] for n in range(max(histogram) + 1)]
    assert server.metric("spec_verify_calls_total") - before == len(lengths)


def check_eagle3(
    server: Server, speech: Speech, last_token: dict[str, int], drafter: Path, steps: int, gauge_within: float
) -> None:
    spoiled = expect.load_never_drafted(drafter)
    for text, count in PROMPTS:
        lengths = expect.expected_accept_lengths(speech, spoiled, last_token[text], count, steps)
        check_verifies(server, speech, last_token[text], text, count, lengths)
    server.generate("Ada builds", 353)  # long enough that the gauge's last interval lies inside it
    predicted = expect.circle_accept_length(speech.circle, spoiled, steps)
    assert server.metric("spec_accept_length") == pytest.approx(predicted, abs=gauge_within)


def test_baseline(models: Path, speech: Speech, last_token: dict[str, int], tmp_path: Path) -> None:
    with serving(models / "target", tmp_path) as server:
        assert "REHEARSAL on the CPU engine" in server.log.read_text()
        assert "fallback to torch_native" not in server.log.read_text()
        check_each(server, speech, last_token)
        check_texts(server, speech, last_token)


@pytest.mark.parametrize(
    ("drafter", "steps", "gauge_within"),
    [
        ("accept-1.00", 3, 1e-9),
        ("accept-2.00", 3, 1e-9),
        ("accept-2.75", 3, 1e-9),
        ("accept-4.00", 3, 1e-9),
        # Its pattern is longer than the gauge's interval.
        ("sister", 3, 0.1),
        ("accept-4.00", 2, 1e-9),
    ],
)
def test_eagle3(
    models: Path,
    speech: Speech,
    last_token: dict[str, int],
    tmp_path: Path,
    drafter: str,
    steps: int,
    gauge_within: float,
) -> None:
    folder = models / "drafters" / drafter
    with serving(models / "target", tmp_path, *eagle3(folder, steps)) as server:
        check_eagle3(server, speech, last_token, folder, steps, gauge_within)
        check_texts(server, speech, last_token)


def test_eagle3_adaptive(models: Path, speech: Speech, last_token: dict[str, int], tmp_path: Path) -> None:
    """With a drafter that is always right, SGLang raises the steps to the most it has for one request: 7."""
    folder = models / "drafters" / "accept-4.00"
    with serving(models / "target", tmp_path, *eagle3(folder), "--speculative-adaptive") as server:
        server.generate("Ada builds", 353)  # starts with 3 steps; the gauge is first set after some verifies
        check_verifies(server, speech, last_token["Ada builds"], "Ada builds", 177, [8] * 22)
        assert server.metric("spec_num_steps") == 7
        check_each(server, speech, last_token)
        check_texts(server, speech, last_token)


def test_ngram(models: Path, speech: Speech, last_token: dict[str, int], tmp_path: Path) -> None:
    """The first answer is new to the corpus, the same again is known by heart: 8 of 8."""
    memory = NgramMemory(speech, draft_tokens=8)
    memory.serve(last_token[WARM_UP_PROMPT], WARM_UP_TOKENS)
    argv = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8")
    with serving(models / "target", tmp_path, *argv) as server:
        first, second = (memory.serve(last_token["Ada builds"], 97) for _ in range(2))
        assert max(first) < 8 or first.count(8) < 3
        assert second == [8] * 12
        check_verifies(server, speech, last_token["Ada builds"], "Ada builds", 97, first)
        check_verifies(server, speech, last_token["Ada builds"], "Ada builds", 97, second)
        for text, count in PROMPTS:
            # SGLang learns a text beside its serving, so how soon it helps is a matter of time; once learnt
            # it is exact.
            check_text(server.generate(text, count), speech, last_token[text], count)
            memory.serve(last_token[text], count)
            time.sleep(0.5)
            learnt = memory.serve(last_token[text], count)
            check_verifies(server, speech, last_token[text], text, count, learnt)
        server.generate("Ada builds", 353)
        assert server.metric("spec_accept_length") == 8.0
        check_texts(server, speech, last_token)


def test_mla_twin_with_eagle3(
    models: Path, speech: Speech, last_token: dict[str, int], tmp_path: Path
) -> None:
    """Multi-head latent attention and experts, as Kimi-K2.5 has; the same drafter, text and acceptance."""
    folder = models / "drafters" / "accept-2.75"
    with serving(models / "target-mla", tmp_path, *eagle3(folder)) as server:
        check_eagle3(server, speech, last_token, folder, 3, 1e-9)
        check_texts(server, speech, last_token)


def test_two_tensor_parallel_ranks(
    models: Path, speech: Speech, last_token: dict[str, int], tmp_path: Path
) -> None:
    folder = models / "drafters" / "accept-2.75"
    argv = (*eagle3(folder), "--tensor-parallel-size", "2")
    with serving(models / "target", tmp_path, *argv, SGLANG_CPU_OMP_THREADS_BIND="0|1") as server:
        check_eagle3(server, speech, last_token, folder, 3, 1e-9)


def test_a_tree_of_drafts(models: Path, speech: Speech, last_token: dict[str, int], tmp_path: Path) -> None:
    """Top-k 4, 8 draft tokens: other branches than the best hold nothing right, so acceptance stays the
    chain's."""
    folder = models / "drafters" / "accept-2.75"
    argv = (*eagle3(folder)[:-4], "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "8")
    with serving(models / "target", tmp_path, *argv) as server:
        check_eagle3(server, speech, last_token, folder, 3, 1e-9)
        check_texts(server, speech, last_token)
