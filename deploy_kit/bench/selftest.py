"""What the client itself adds: its streams against a stand-in server that knows when it wrote each event."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from deploy_kit.bench.answers import Ask, body_of, path_of
from deploy_kit.bench.measure import percentile
from deploy_kit.bench.stream import Client, Reply, parse_endpoint
from deploy_kit.errors import DeployKitError

LIMIT_SECONDS = 0.001  # the most the client may add to the median token gap


@dataclass(frozen=True)
class SelfTest:
    """What the client adds, in seconds, at `streams` streams. Delays are from the moment the stand-in wrote
    an event to the moment the client noted it, on one clock."""

    streams: int
    events: int
    gap_seconds: float
    server_gap_p50_seconds: float
    client_gap_p50_seconds: float
    delay_p50_seconds: float
    delay_p99_seconds: float
    tokens_per_second: float
    client_cpu_ratio: float

    @property
    def added_seconds(self) -> float:
        """What the client adds to the median gap between tokens."""
        return self.client_gap_p50_seconds - self.server_gap_p50_seconds

    @property
    def passed(self) -> bool:
        """Whether the client's share is below the limit, in gap and in delay."""
        return abs(self.added_seconds) < LIMIT_SECONDS and self.delay_p50_seconds < LIMIT_SECONDS

    @property
    def machine_busy(self) -> bool:
        """Whether the stand-in itself could not keep its pace: then a failure says nothing of the client."""
        return self.server_gap_p50_seconds > 1.1 * self.gap_seconds

    def as_dict(self) -> dict[str, Any]:
        """Return the result for `--json`."""
        return {
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
            "added_seconds": self.added_seconds,
            "limit_seconds": LIMIT_SECONDS,
            "passed": self.passed,
            "machine_busy": self.machine_busy,
        }


@contextlib.contextmanager
def standin(*options: str) -> Iterator[str]:
    """Run the stand-in server as a process of its own; gives its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "deploy_kit.bench.standin_server", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        line = process.stdout.readline() if process.stdout else ""
        if not line.strip().isdigit():
            raise DeployKitError("the stand-in server did not start")
        yield f"http://127.0.0.1:{line.strip()}"
    finally:
        process.terminate()
        process.wait(timeout=10)
        if process.stdout:
            process.stdout.close()


def self_test(*, streams: int = 128, tokens: int = 200, gap_seconds: float = 0.02) -> SelfTest:
    """Measure the client at `streams` streams of `tokens` tokens; starts and ends a stand-in server."""
    with standin("--gap-ms", str(gap_seconds * 1000)) as url:
        return asyncio.run(_measure(url, streams, tokens, gap_seconds))


async def _measure(url: str, streams: int, tokens: int, gap_seconds: float) -> SelfTest:
    client = Client(parse_endpoint(url), timeout_seconds=120)
    body = body_of("openai", "stand-in", Ask(("Say word.",), tokens))
    await asyncio.gather(*(client.post(path_of("openai"), body) for _ in range(streams)))  # warm-up
    cpu, began = time.process_time(), time.perf_counter()
    replies = await asyncio.gather(*(client.post(path_of("openai"), body) for _ in range(streams)))
    elapsed, used = time.perf_counter() - began, time.process_time() - cpu
    client.close()
    failed = [reply.error for reply in replies if reply.error is not None]
    if failed:
        raise DeployKitError(f"the self-test's requests failed: {failed[0]}")
    seen = [_events(reply) for reply in replies]
    delays = sorted(received - written for stream in seen for received, written in stream)
    return SelfTest(
        streams=streams,
        events=len(delays),
        gap_seconds=gap_seconds,
        server_gap_p50_seconds=_median_gap([[written for _, written in stream] for stream in seen]),
        client_gap_p50_seconds=_median_gap([[received for received, _ in stream] for stream in seen]),
        delay_p50_seconds=percentile(delays, 0.5),
        delay_p99_seconds=percentile(delays, 0.99),
        tokens_per_second=streams * tokens / elapsed,
        client_cpu_ratio=used / elapsed,
    )


def _events(reply: Reply) -> list[tuple[float, float]]:
    return [
        (received, json.loads(line[6:])["written_at"])
        for received, piece in reply.pieces
        for line in piece.split(b"\n")
        if line.startswith(b"data: {")
    ]


def _median_gap(streams: list[list[float]]) -> float:
    return statistics.median(b - a for times in streams for a, b in itertools.pairwise(times))
