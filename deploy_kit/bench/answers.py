"""What to send to each kind of server, and what its stream says: token counts, times, errors. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from pydantic_core import from_json

from deploy_kit.bench.stream import Reply

Interface = Literal["openai", "sglang"]


@dataclass(frozen=True)
class Ask:
    """One request: the conversation so far (alternating user and assistant texts, a user's last), and how
    long the answer is to be."""

    turns: tuple[str, ...]
    output_tokens: int
    temperature: float = 0.0
    ignore_eos: bool = True


@dataclass(frozen=True)
class Answer:
    """What one request gave. Times are seconds; `events` are (seconds since sending, tokens so far)."""

    output_tokens: int
    prompt_tokens: int | None
    ttft_seconds: float | None
    e2e_seconds: float
    events: tuple[tuple[float, int], ...]
    text: str
    error: str | None
    finish_reason: str | None = None
    spec_verify_count: int | None = None
    tokens_are: Literal["reported", "one an event"] = "reported"

    @property
    def tpot_seconds(self) -> float | None:
        """Seconds for each token after the first event's."""
        if self.error is not None or len(self.events) < 2:
            return None
        (first_at, first), (last_at, last) = self.events[0], self.events[-1]
        return (last_at - first_at) / (last - first) if last > first else None

    @property
    def gaps_seconds(self) -> list[float]:
        """Seconds between events: a stream's engine steps as the client sees them."""
        times = [at for at, _ in self.events]
        return [b - a for a, b in pairwise(times)]

    @property
    def tokens_per_event(self) -> float | None:
        """Tokens of each event after the first: the accept length as the client sees it."""
        if len(self.events) < 2:
            return None
        return (self.events[-1][1] - self.events[0][1]) / (len(self.events) - 1)


def path_of(interface: Interface) -> str:
    """Return the path requests of this interface go to."""
    return "/v1/chat/completions" if interface == "openai" else "/generate"


def body_of(interface: Interface, model: str, ask: Ask) -> bytes:
    """Given what to ask, return the request's body. Both ask for a stream with token counts in each event."""
    if interface == "sglang":
        value: dict[str, Any] = {
            "text": "\n\n".join(ask.turns),
            "sampling_params": {
                "max_new_tokens": ask.output_tokens,
                "temperature": ask.temperature,
                "ignore_eos": ask.ignore_eos,
            },
            "stream": True,
        }
    else:
        roles = ("user", "assistant")
        value = {
            "model": model,
            "messages": [{"role": roles[index % 2], "content": turn} for index, turn in enumerate(ask.turns)],
            "max_tokens": ask.output_tokens,
            "temperature": ask.temperature,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if ask.ignore_eos:
            value["ignore_eos"] = True
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def read_answer(interface: Interface, reply: Reply, ask: Ask) -> Answer:
    """Given a whole reply, return its answer. A stream that broke, carried an error, or gave fewer tokens
    than asked for (with ignore_eos) is an error with what arrived kept."""
    events: list[tuple[float, int]] = []
    text: list[str] = []
    state: dict[str, Any] = {}
    error = reply.error
    if reply.status is not None and reply.status != 200:
        error = f"HTTP {reply.status}: {_words(reply.body)}"
    else:
        read = _read_sglang if interface == "sglang" else _read_openai
        for at, payload in _server_sent(reply.pieces):
            if payload == b"[DONE]":
                state["done"] = True
                continue
            try:
                value = _read_json(payload)
            except ValueError:
                error = error or "an event is not valid JSON"
                continue
            if not isinstance(value, dict):
                error = error or "an event is not a JSON object"
                continue
            if value.get("error"):
                error = error or f"the server reported: {_words(json.dumps(value['error']).encode())}"
                continue
            tokens, piece = read(value, state)
            if piece is not None:
                text.append(piece)
            if tokens is not None and (not events or tokens > events[-1][1]):
                events.append((at - reply.sent_at, tokens))
    if error is None and not events:
        error = "the answer holds no token"
    output = events[-1][1] if events else 0
    if error is None and ask.ignore_eos and output != ask.output_tokens:
        error = f"{output} tokens instead of {ask.output_tokens}, although the end was to be ignored"
    return Answer(
        output_tokens=output,
        prompt_tokens=state.get("prompt_tokens"),
        ttft_seconds=events[0][0] if events else None,
        e2e_seconds=reply.ended_at - reply.sent_at,
        events=tuple(events),
        text=state.get("whole_text") or "".join(text),
        error=error,
        finish_reason=state.get("finish_reason"),
        spec_verify_count=state.get("spec_verify_ct"),
        tokens_are="one an event" if state.get("counted") else "reported",
    )


def _read_openai(value: dict[str, Any], state: dict[str, Any]) -> tuple[int | None, str | None]:
    usage = value.get("usage")
    choices = value.get("choices") or []
    piece: str | None = None
    if choices and isinstance(choices[0], dict):
        delta = choices[0].get("delta") or {}
        for part in (delta.get("reasoning_content"), delta.get("content"), choices[0].get("text")):
            if part and isinstance(part, str):
                piece = part if piece is None else piece + part
        if reason := choices[0].get("finish_reason"):
            state["finish_reason"] = reason
        if delta.get("tool_calls"):
            piece = piece or ""
    if isinstance(usage, dict):
        state["prompt_tokens"] = _count(usage.get("prompt_tokens")) or state.get("prompt_tokens")
        tokens = _count(usage.get("completion_tokens"))
        if choices or not state.get("counted"):
            # The role's first event reports 0 tokens; only growth is an event.
            state["reported"] = tokens
            return (tokens or None), piece
        # Counts came only at the end: the events were counted one by one, the total is the reported one.
        return tokens or None, piece
    if piece and not state.get("reported"):
        state["counted"] = state.get("counted", 0) + 1
        return state["counted"], piece
    return None, piece


def _read_sglang(value: dict[str, Any], state: dict[str, Any]) -> tuple[int | None, str | None]:
    meta = value.get("meta_info") or {}
    if isinstance(value.get("text"), str):
        state["whole_text"] = value["text"]
    state["prompt_tokens"] = _count(meta.get("prompt_tokens")) or state.get("prompt_tokens")
    state["spec_verify_ct"] = _count(meta.get("spec_verify_ct")) or state.get("spec_verify_ct")
    reason = meta.get("finish_reason")
    if isinstance(reason, dict):
        state["finish_reason"] = reason.get("type")
    return (_count(meta.get("completion_tokens")) or None), None


def _server_sent(pieces: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    # Lines may be split over pieces; an event belongs to the piece that completed it.
    rest = b""
    for at, piece in pieces:
        if (
            not rest
            and piece.startswith(b"data:")
            and piece.find(b"\n") == len(piece) - 2 == piece.find(b"\n\n")
        ):
            yield at, piece[5:].strip()  # one whole event, as nearly all are
            continue
        rest += piece
        if b"\n" not in piece:
            continue
        *lines, rest = rest.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield at, line[5:].strip()
    if rest.startswith(b"data:") and pieces:
        yield pieces[-1][0], rest[5:].strip()


def _read_json(payload: bytes) -> Any:
    try:
        return from_json(payload)  # several times as fast
    except ValueError:
        return json.loads(
            payload
        )  # half a surrogate pair, which an engine that cuts a character sends, is no error


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _words(data: bytes) -> str:
    text = " ".join(data.decode(errors="replace").split())
    return text if len(text) <= 200 else text[:197] + "..."
