"""A stand-in for an inference server, for measuring the benchmark client itself. It infers nothing.

It answers `/v1/chat/completions` and `/generate` with a stream of events at exact, fixed gaps, each holding
a fixed number of tokens and the moment it was written, and counts what it did on `/metrics` under the names
a real engine uses. Run it as a process of its own: `python -m deploy_kit.bench.standin_server --port 0`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FAULTS = ("none", "refuse", "drop", "error-event", "short", "garbage", "hang", "http-400")


@dataclass(frozen=True)
class Behaviour:
    """How the stand-in behaves. Every `fault_every`-th request meets the fault (0: none does)."""

    gap_seconds: float = 0.02
    first_seconds: float = 0.05
    tokens_per_event: int = 1
    fault: str = "none"
    fault_every: int = 0
    usage: str = "continuous"  # "final": token counts only in the last event; "none": never


class StandIn:
    """What all connections share: the behaviour and the counters."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.requests = 0
        self.verifies = 0
        self.tokens = 0
        self.gaps: list[float] = []  # between writes of one stream, seconds

    def metrics(self) -> str:
        """Return the counters as a metrics page."""
        gap = self.behaviour.gap_seconds
        speculating = self.behaviour.tokens_per_event > 1
        lines = [f'sglang:generation_tokens_total{{tp_rank="0"}} {self.tokens}']
        if speculating:
            label = '{tp_rank="0"}'
            phase = '{tp_rank="0",phase="verify"}'
            lines += [
                f"deploy_kit_spec_accept_length_sum{label} {self.verifies * self.behaviour.tokens_per_event}",
                f"deploy_kit_spec_accept_length_count{label} {self.verifies}",
                f"deploy_kit_forward_seconds_sum{phase} {self.verifies * gap * 0.75}",
                f"deploy_kit_forward_seconds_count{phase} {self.verifies}",
                # A second rank shows the same forwards once more.
                f'deploy_kit_forward_seconds_sum{{tp_rank="1",phase="verify"}} {self.verifies * gap * 0.75}',
                f"deploy_kit_spec_cycle_seconds_sum{label} {self.verifies * gap}",
                f"deploy_kit_spec_cycle_seconds_count{label} {self.verifies}",
            ]
        return "\n".join(lines) + "\n"


class StandInConnection(asyncio.Protocol):
    """One connection; answers its requests one after the other."""

    def __init__(self, server: StandIn) -> None:
        self._server = server
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
        }
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        body, self._buffer = rest[:length], rest[length:]
        self._answer(first.split()[1], body)

    def _answer(self, path: str, body: bytes) -> None:
        if path == "/v1/models":
            self._whole({"object": "list", "data": [{"id": "stand-in", "object": "model"}]})
        elif path == "/server_info":
            self._whole({"stand_in": "deploy_kit.bench.standin_server", "device": "none"})
        elif path == "/gaps":
            self._whole({"gaps_seconds": self._server.gaps})
            self._server.gaps = []
        elif path == "/metrics":
            self._write_whole(200, "text/plain", self._server.metrics().encode())
        elif path in ("/v1/chat/completions", "/v1/completions", "/generate"):
            self._stream(path, json.loads(body))
        elif path in ("/health", "/ready", "/flush_cache"):
            self._whole({})
        else:
            self._write_whole(404, "text/plain", b"not in the stand-in\n")

    def _whole(self, value: Any) -> None:
        self._write_whole(200, "application/json", json.dumps(value).encode())

    def _write_whole(self, status: int, kind: str, data: bytes) -> None:
        self._write(
            f"HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n".encode()
            + data
        )

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _stream(self, path: str, asked: dict[str, Any]) -> None:
        behaviour = self._server.behaviour
        self._server.requests += 1
        faulty = bool(behaviour.fault_every) and self._server.requests % behaviour.fault_every == 0
        fault = behaviour.fault if faulty else "none"
        if fault == "refuse":
            self._write_whole(503, "text/plain", b"busy")
            return
        if fault == "http-400":
            self._write_whole(400, "application/json", b'{"error": "too long"}')
            return
        if fault == "hang":
            return
        native = path == "/generate"
        limits = asked.get("sampling_params") or asked
        names = ("max_new_tokens", "max_completion_tokens", "max_tokens")
        wanted = int(next((limits[name] for name in names if limits.get(name)), 16))
        if fault == "short":
            wanted = max(1, wanted // 2)
        self._write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        stream = _Stream(self, native, wanted, fault, bool(asked.get("stream", True)))
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(loop.time() + behaviour.first_seconds, stream.step)

    def later(self, at: float, step: Any) -> None:
        """Arrange the stream's next step at the loop's time `at`."""
        self._timer = asyncio.get_running_loop().call_at(at, step)

    def event(self, payload: bytes) -> None:
        """Write one server-sent event as one HTTP chunk."""
        data = b"data: " + payload + b"\n\n"
        self._write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def end(self) -> None:
        """End the chunked body."""
        self._write(b"0\r\n\r\n")

    def drop(self) -> None:
        """Close the connection in the middle."""
        if self._transport is not None:
            self._transport.close()

    @property
    def server(self) -> StandIn:
        """The shared state."""
        return self._server


class _Stream:
    def __init__(
        self, connection: StandInConnection, native: bool, wanted: int, fault: str, streaming: bool
    ) -> None:
        self.connection, self.native, self.wanted = connection, native, wanted
        self.fault, self.streaming = fault, streaming
        self.sent = 0
        self.due = asyncio.get_running_loop().time() + connection.server.behaviour.first_seconds
        self.last: float | None = None

    def step(self) -> None:
        server = self.connection.server
        behaviour = server.behaviour
        now = time.perf_counter()
        if self.last is not None:
            server.gaps.append(now - self.last)
        self.last = now
        grown = 1 if self.sent == 0 else min(behaviour.tokens_per_event, self.wanted - self.sent)
        if self.sent and behaviour.tokens_per_event > 1:
            server.verifies += 1
        self.sent += grown
        server.tokens += grown
        if self.fault == "drop" and self.sent * 2 >= self.wanted:
            self.connection.drop()
            return
        if self.fault == "error-event" and self.sent * 2 >= self.wanted:
            self.connection.event(b'{"error": {"message": "stand-in fault"}}')
            self.connection.end()
            return
        if self.fault == "garbage":
            self.connection.event(b"{not json")
        last = self.sent >= self.wanted
        self.connection.event(json.dumps(self._payload(grown, now, last)).encode())
        if last:
            if not self.native:
                if behaviour.usage == "final":
                    self.connection.event(json.dumps({"choices": [], "usage": self._usage()}).encode())
                self.connection.event(b"[DONE]")
            self.connection.end()
            return
        self.due += behaviour.gap_seconds
        self.connection.later(self.due, self.step)

    def _usage(self) -> dict[str, int]:
        return {"prompt_tokens": 100, "completion_tokens": self.sent, "total_tokens": 100 + self.sent}

    def _payload(self, grown: int, now: float, last: bool) -> dict[str, Any]:
        reason = "length" if last else None
        if self.native:
            meta: dict[str, Any] = {"prompt_tokens": 100, "completion_tokens": self.sent, "written_at": now}
            meta["finish_reason"] = {"type": reason} if reason else None
            return {"text": "word " * self.sent, "meta_info": meta}
        payload: dict[str, Any] = {
            "id": "stand-in",
            "written_at": now,
            "choices": [{"index": 0, "delta": {"content": "word " * grown}, "finish_reason": reason}],
        }
        if self.connection.server.behaviour.usage == "continuous":
            payload["usage"] = self._usage()
        return payload


async def serve(behaviour: Behaviour, port: int) -> None:
    """Serve until cancelled; the first line on stdout is the port."""
    shared = StandIn(behaviour)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: StandInConnection(shared), "127.0.0.1", port, backlog=1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--gap-ms", type=float, default=20.0)
    parser.add_argument("--first-ms", type=float, default=50.0)
    parser.add_argument("--tokens-per-event", type=int, default=1)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--fault-every", type=int, default=0)
    parser.add_argument("--usage", choices=("continuous", "final", "none"), default="continuous")
    options = parser.parse_args(arguments)
    behaviour = Behaviour(
        gap_seconds=options.gap_ms / 1000,
        first_seconds=options.first_ms / 1000,
        tokens_per_event=options.tokens_per_event,
        fault=options.fault,
        fault_every=options.fault_every,
        usage=options.usage,
    )
    import contextlib

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(behaviour, options.port))


if __name__ == "__main__":
    main()
