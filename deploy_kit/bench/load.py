"""Holding a load on a server: closed loops (so many streams at once) and open loops (so many arrivals)."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from deploy_kit.bench.answers import Answer, Ask, Interface, body_of, path_of, read_answer
from deploy_kit.bench.measure import Sample
from deploy_kit.bench.stream import Client, Reply

_RETRY_STATUS = (429, 502, 503)


@dataclass(frozen=True)
class Sender:
    """How requests are made: the client, the server's interface and model, the answers asked for."""

    client: Client
    interface: Interface
    model: str
    output_tokens: int
    temperature: float
    ignore_eos: bool
    retries: int = 2

    def ask(self, turns: tuple[str, ...], output_tokens: int | None = None) -> Ask:
        """Return the request for these turns."""
        return Ask(turns, output_tokens or self.output_tokens, self.temperature, self.ignore_eos)


@dataclass(frozen=True)
class _Raw:
    # A finished request, not yet parsed: parsing waits until the cell is over.
    prompt: int
    turn: int
    sent: float
    reply: Reply
    ask: Ask
    retries: int


@dataclass(frozen=True)
class CellRun:
    """A finished cell: its samples, and its length from the first request's start to the last one's end."""

    samples: tuple[Sample, ...]
    interval_seconds: float


Script = tuple[int, tuple[str, ...]]  # a prompt's number and the user's turns


async def closed_loop(
    sender: Sender,
    scripts: Sequence[Script],
    concurrency: int,
    *,
    output_tokens: int | None = None,
    finished: Callable[[], None] = lambda: None,
) -> CellRun:
    """Given scripts, work through them with `concurrency` streams, each beginning the next script as soon as
    its last one ended, and return every sample."""
    queue = iter(scripts)
    raw: list[_Raw] = []

    async def stream() -> None:
        for number, turns in queue:
            await _converse(sender, number, turns, raw, output_tokens)
            finished()

    with _no_collection():
        started = time.perf_counter()
        await asyncio.gather(*(stream() for _ in range(concurrency)))
    return _cell_run(sender.interface, raw, started)


async def open_loop(
    sender: Sender,
    scripts: Sequence[Script],
    rate_per_second: float,
    *,
    seed: int,
    finished: Callable[[], None] = lambda: None,
) -> CellRun:
    """Given scripts, begin one at each arrival of a Poisson process of this rate (seeded), however many are
    still running, and return every sample."""
    raw: list[_Raw] = []
    with _no_collection():
        started = time.perf_counter()

        async def arrive(at: float, number: int, turns: tuple[str, ...]) -> None:
            await asyncio.sleep(max(0.0, started + at - time.perf_counter()))
            await _converse(sender, number, turns, raw, None)
            finished()

        arrivals = poisson_arrivals(rate_per_second, len(scripts), seed)
        await asyncio.gather(
            *(arrive(at, number, turns) for at, (number, turns) in zip(arrivals, scripts, strict=True))
        )
    return _cell_run(sender.interface, raw, started)


def poisson_arrivals(rate_per_second: float, count: int, seed: int) -> list[float]:
    """Return the first `count` arrival times in seconds of a Poisson process, the same for the same seed."""
    draw = random.Random(seed)  # noqa: S311  (arrivals, not secrets)
    times, now = [], 0.0
    for _ in range(count):
        now += draw.expovariate(rate_per_second)
        times.append(now)
    return times


async def _converse(
    sender: Sender, number: int, turns: tuple[str, ...], raw: list[_Raw], output_tokens: int | None
) -> None:
    so_far: list[str] = []
    for turn, text in enumerate(turns):
        so_far.append(text)
        ask = sender.ask(tuple(so_far), output_tokens)
        body = body_of(sender.interface, sender.model, ask)
        reply, retries = await _send(sender, body)
        raw.append(_Raw(number, turn, reply.sent_at, reply, ask, retries))
        if turn + 1 < len(turns):
            answer = read_answer(sender.interface, reply, ask)
            if answer.error is not None:
                return  # the rest of the script has nothing to stand on
            so_far.append(answer.text)


async def _send(sender: Sender, body: bytes) -> tuple[Reply, int]:
    attempt = 0
    while True:
        reply = await sender.client.post(path_of(sender.interface), body)
        refused = reply.status in _RETRY_STATUS or (reply.status is None and not reply.pieces)
        if not refused or reply.timed_out or attempt >= sender.retries:
            return reply, attempt
        await asyncio.sleep(0.25 * 2**attempt)
        attempt += 1


def _cell_run(interface: Interface, raw: Sequence[_Raw], started: float) -> CellRun:
    samples = tuple(
        Sample(
            prompt=entry.prompt,
            turn=entry.turn,
            sent_seconds=entry.sent - started,
            answer=read_answer(interface, entry.reply, entry.ask),
            retries=entry.retries,
        )
        for entry in sorted(raw, key=lambda entry: entry.sent)
    )
    first = min((entry.sent for entry in raw), default=started)
    last = max((entry.reply.ended_at for entry in raw), default=started)
    return CellRun(samples, max(last - first, 1e-9))


def first_error(samples: Sequence[Sample]) -> str | None:
    """Return the first error of the samples, or None."""
    return next((s.answer.error for s in samples if s.answer.error is not None), None)


def whole_answers(samples: Sequence[Sample]) -> list[Answer]:
    """Return the answers that came whole."""
    return [sample.answer for sample in samples if sample.answer.error is None]


@contextmanager
def _no_collection() -> Iterator[None]:
    # A garbage collection over a large heap stalls the event loop for milliseconds: not the server's doing.
    was = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
        gc.unfreeze()
