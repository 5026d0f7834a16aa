"""Streams of every shape become token counts, times and errors; nothing is dropped silently."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy_kit.bench.answers import Ask, Interface, body_of, read_answer
from deploy_kit.bench.stream import Reply, parse_endpoint
from deploy_kit.errors import DeployKitError

ASK = Ask(("Hello",), 6)


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def reply(*pieces: tuple[float, bytes], **more: Any) -> Reply:
    values: dict[str, Any] = {"sent_at": 10.0, "ended_at": 10.0 + pieces[-1][0], "status": 200, **more}
    return Reply(pieces=[(10.0 + at, data) for at, data in pieces], **values)


def chat(text: str, tokens: int | None = None, **choice: Any) -> bytes:
    value: dict[str, Any] = {"choices": [{"delta": {"content": text}, **choice}]}
    if tokens is not None:
        value["usage"] = {"prompt_tokens": 9, "completion_tokens": tokens}
    return event(value)


def test_openai_with_counts_in_each_event() -> None:
    answer = read_answer(
        "openai",
        reply(
            (0.5, chat("", 0)),
            (0.6, chat("a", 1)),
            (0.7, chat("b c", 3)),
            (0.8, chat("d e f", 6, finish_reason="length")),
            (0.8, event(b"[DONE]")),
        ),
        ASK,
    )
    assert answer.error is None
    assert [tokens for _, tokens in answer.events] == [1, 3, 6]
    assert answer.ttft_seconds == pytest.approx(0.6)
    assert answer.gaps_seconds == pytest.approx([0.1, 0.1])
    assert answer.tpot_seconds == pytest.approx(0.2 / 5)
    assert answer.tokens_per_event == pytest.approx(2.5)
    assert (answer.text, answer.prompt_tokens, answer.finish_reason) == ("ab cd e f", 9, "length")


def test_half_a_surrogate_pair_is_no_error() -> None:
    # An engine that cuts a character between two events; not every JSON reader takes it.
    whole = read_answer(
        "openai", reply((0.5, chat("\ud83d", 1)), (0.6, chat("\ude00", 6)), (0.6, event(b"[DONE]"))), ASK
    )
    assert whole.error is None
    assert whole.text == "\ud83d\ude00"
    assert (
        read_answer("openai", reply((0.5, b'data: {"a": tru}\n\n')), ASK).error
        == "an event is not valid JSON"
    )


@pytest.mark.parametrize("ending", ["\n\n", "\r\n\r\n", "\n"])
def test_any_ending_of_an_event_is_read(ending: str) -> None:
    parts = [chat("a", 1), chat("b", 6)]
    pieces = [(0.5, part.replace(b"\n\n", ending.encode())) for part in parts]
    assert [tokens for _, tokens in read_answer("openai", reply(*pieces), ASK).events] == [1, 6]


def test_openai_with_the_count_only_at_the_end() -> None:
    usage = event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 6}})
    answer = read_answer("openai", reply((0.1, chat("a")), (0.2, chat("b c")), (0.3, usage)), ASK)
    assert answer.error is None
    assert answer.output_tokens == 6
    assert answer.tokens_are == "one an event"


def test_reasoning_is_output_too() -> None:
    thought = event({"choices": [{"delta": {"reasoning_content": "hm"}}]})
    answer = read_answer("openai", reply((0.1, thought), (0.2, chat("b"))), Ask(("x",), 2))
    assert answer.output_tokens == 2
    assert answer.text == "hmb"


def test_sglang_counts_tokens_and_verifies() -> None:
    def native(text: str, tokens: int, **meta: Any) -> bytes:
        return event({"text": text, "meta_info": {"prompt_tokens": 4, "completion_tokens": tokens, **meta}})

    answer = read_answer(
        "sglang",
        reply(
            (0.1, native("a", 1)),
            (0.2, native("a b c d e f", 6, spec_verify_ct=2, finish_reason={"type": "length"})),
        ),
        ASK,
    )
    assert answer.error is None
    assert (answer.output_tokens, answer.spec_verify_count, answer.text) == (6, 2, "a b c d e f")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (reply((0.1, chat("a", 3))), "3 tokens instead of 6"),
        (reply((0.1, event(b"[DONE]"))), "no token"),
        (reply((0.1, chat("a", 6)), (0.2, event({"error": {"message": "boom"}}))), "boom"),
        (reply((0.1, event(b"{nope")), (0.2, chat("a", 6))), "not valid JSON"),
        (reply((0.1, event([1])), (0.2, chat("a", 6))), "not a JSON object"),
        (
            reply((0.1, b'{"error": "context too long"}'), status=400),
            'HTTP 400: {"error": "context too long"}',
        ),
        (reply((0.1, chat("a", 6)), error="the server closed"), "the server closed"),
    ],
)
def test_trouble_is_told_and_what_arrived_is_kept(made: Reply, words: str) -> None:
    answer = read_answer("openai", made, ASK)
    assert answer.error is not None
    assert words in answer.error


@settings(max_examples=100, deadline=None)
@given(cuts=st.lists(st.integers(1, 400), max_size=12), junk=st.binary(max_size=30))
def test_any_splitting_gives_the_same_answer(cuts: list[int], junk: bytes) -> None:
    whole = chat("a", 1) + chat("b", 3) + chat("c", 6, finish_reason="length") + event(b"[DONE]")
    edges = sorted({0, *(cut % len(whole) for cut in cuts), len(whole)})
    pieces = [(0.1 * i, whole[a:b]) for i, (a, b) in enumerate(pairwise(edges))]
    answer = read_answer("openai", reply(*pieces), ASK)
    assert (answer.output_tokens, answer.error, answer.text) == (6, None, "abc")
    read_answer("openai", reply((0.1, junk)), ASK)  # whatever it is, no exception
    read_answer("sglang", reply((0.1, event(junk.replace(b"\n", b"")))), ASK)


@pytest.mark.parametrize("interface", ["openai", "sglang"])
def test_bodies_ask_for_fixed_lengths_and_counts(interface: Interface) -> None:
    body = json.loads(body_of(interface, "m", Ask(("u1", "a1", "u2 \ud800"), 7)))
    assert body["stream"] is True
    if interface == "openai":
        assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
        assert body["max_tokens"] == 7
        assert body["ignore_eos"] is True
        assert body["stream_options"]["include_usage"] is True
    else:
        assert body["sampling_params"] == {"max_new_tokens": 7, "temperature": 0.0, "ignore_eos": True}


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://h:30000", "http://h:30000"),
        ("h:1/v1/", "http://h:1"),
        ("https://h/k/v1", "https://h:443/k"),
        ("http://[::1]:5", "http://[::1]:5"),
    ],
)
def test_addresses(url: str, base: str) -> None:
    assert parse_endpoint(url).base == base


@pytest.mark.parametrize(
    "url", ["", "ftp://h", "http://", "http://h:99999", "http://user:secret@h", "http://h?x=1"]
)
def test_bad_addresses_are_told_without_the_password(url: str) -> None:
    with pytest.raises(DeployKitError) as caught:
        parse_endpoint(url)
    assert "secret" not in str(caught.value)
