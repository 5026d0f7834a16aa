"""One streamed HTTP request with the arrival time of every piece, at little cost to the client.

h11 writes the request and reads the answer's head over a bare asyncio protocol; the chunked body is walked
by `ChunkedBody`, since h11 spends tens of microseconds on each chunk. The arrival time is taken when the
event loop hands the bytes over, before anything is parsed, and JSON is read only after the request's end:
what the client does with a token must not show up as the server's token gap. (benchmarks/bench_client.py
compares it with httpx and with other benchmark clients.)
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

LIMIT_BYTES = 512 * 1024 * 1024  # of one answer
_HEX = b"0123456789abcdefABCDEF"


@dataclass(frozen=True)
class Endpoint:
    """Where requests go: host, port, TLS, and the path in front of the API's own."""

    host: str
    port: int
    tls: bool
    prefix: str

    @property
    def netloc(self) -> str:
        """Host and port as the Host header has them."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"{name}:{self.port}"

    @property
    def base(self) -> str:
        """The address without a trailing slash."""
        return f"{'https' if self.tls else 'http'}://{self.netloc}{self.prefix}"


def parse_endpoint(url: str) -> Endpoint:
    """Given "http://host:port[/prefix]" (a trailing /v1 is dropped), return the endpoint."""
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        port = parts.port
        host = parts.hostname
    except ValueError:
        parts, port, host = urlsplit(""), None, None
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.query or parts.fragment:
        raise DeployKitError(
            "not a server's address",
            key="URL",
            found=url.rpartition("@")[2],  # never repeat credentials
            allowed="http://HOST:PORT or https://HOST:PORT, without user, query or fragment",
            exit_code=ExitCode.USAGE,
        )
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Endpoint(host, port or (443 if parts.scheme == "https" else 80), parts.scheme == "https", prefix)


@dataclass
class Reply:
    """What came back. Times are `time.perf_counter()` seconds; `pieces` are the body in order of arrival.
    `error` is None only when the whole answer arrived with status 200."""

    sent_at: float = 0.0
    status: int | None = None
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    ended_at: float = 0.0
    error: str | None = None
    timed_out: bool = False
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """All pieces together."""
        return b"".join(piece for _, piece in self.pieces)


class ChunkedBody:
    """Takes a chunked body apart (RFC 9112, section 7.1), in whatever pieces it arrives."""

    def __init__(self) -> None:
        self._rest = b""
        self._missing = 0  # bytes of the current chunk that have not arrived, its closing line end included
        self._trailer = False
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        """Given the next bytes, return the payload in them; `ValueError` when they are no chunked body."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        elif not (self._missing or self._trailer or self.ended):
            # What an engine sends for a step: one whole chunk. Said first, because there are so many.
            head = data[: data.find(b"\r\n", 0, 10)]
            if head and not head.strip(_HEX) and data.endswith(b"\r\n"):
                length = int(head, 16)
                if length and len(data) == len(head) + length + 4:
                    return data[len(head) + 2 : -2]
        place, size = 0, len(data)
        found: list[bytes] = []
        while place < size and not self.ended:
            if self._missing:
                taken = min(self._missing, size - place)
                self._missing -= taken
                # The last two bytes are the line end: they may come with the next piece.
                wanted = taken - max(0, 2 - self._missing)
                if wanted > 0:
                    found.append(data[place : place + wanted])
                place += taken
                continue
            line_end = data.find(b"\r\n", place)
            if line_end < 0:
                if size - place > 4096:
                    raise ValueError("a chunk's size line is too long")
                self._rest = data[place:]
                break
            line = data[place:line_end]
            place = line_end + 2
            if self._trailer:
                self.ended = not line
                continue
            digits = line.partition(b";")[0].strip()
            if not digits or len(digits) > 8 or digits.strip(_HEX):
                raise ValueError("a chunk's size is no number")
            length = int(digits, 16)
            if length == 0:
                self._trailer = True
            else:
                self._missing = length + 2
        return found[0] if len(found) == 1 else b"".join(found)


class Connection(asyncio.Protocol):
    """One kept-alive connection that carries one request at a time."""

    def __init__(self) -> None:
        self._http = h11.Connection(our_role=h11.CLIENT)
        self._transport: asyncio.Transport | None = None
        self._reply: Reply | None = None
        self._done: asyncio.Future[None] | None = None
        self._size = 0
        self._chunks: ChunkedBody | None = None
        self._reusable = True

    @property
    def usable(self) -> bool:
        """Whether another request may be sent on this connection."""
        return self._reusable and self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    async def post(
        self, endpoint: Endpoint, path: str, body: bytes, headers: dict[str, str], timeout_seconds: float
    ) -> Reply:
        """Send one POST and return the whole reply; errors are in it, none is raised."""
        reply = Reply()
        self._reply, self._size, self._chunks, self._reusable = reply, 0, None, False
        self._http = h11.Connection(our_role=h11.CLIENT)
        self._done = asyncio.get_running_loop().create_future()
        request = h11.Request(
            method="POST",
            target=endpoint.prefix + path,
            headers=[
                ("Host", endpoint.netloc),
                ("Content-Type", "application/json"),
                ("Accept", "text/event-stream"),
                ("Content-Length", str(len(body))),
                *headers.items(),
            ],
        )
        reply.sent_at = time.perf_counter()
        try:
            data = (self._http.send(request) or b"") + (self._http.send(h11.Data(data=body)) or b"")
            self._write(data + (self._http.send(h11.EndOfMessage()) or b""))
            async with asyncio.timeout(timeout_seconds):
                await self._done
        except TimeoutError:
            reply.timed_out = True
            reply.error = f"no whole answer within {timeout_seconds:g} s"
        except (h11.LocalProtocolError, OSError) as error:
            reply.error = f"cannot send: {error}"
        reply.ended_at = reply.ended_at or time.perf_counter()
        if reply.error is None and reply.status != 200:
            reply.error = f"HTTP {reply.status}"
        if reply.error is not None:
            self.close()
        else:
            close = "close" in reply.headers.get("connection", "").lower()
            # h11 sees the end of a body with a length; of a chunked one only that it was walked to its end.
            whole = self._http.their_state is h11.DONE or (self._chunks is not None and self._chunks.ended)
            self._reusable = whole and not close
        self._reply = None
        return reply

    def _write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        self._transport.write(data)

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._feed(data, now)

    def eof_received(self) -> bool:
        now = time.perf_counter()
        if self._chunks is None:
            self._feed(b"", now)
        self._finish(now, "the server closed the connection before the answer's end")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(time.perf_counter(), f"the connection was lost: {exc}" if exc else "the server closed")

    def _feed(self, data: bytes, now: float) -> None:
        reply = self._reply
        if reply is None:
            return
        try:
            if self._chunks is not None:
                self._feed_chunked(reply, data, now)
                return
            self._http.receive_data(data)
            while True:
                event = self._http.next_event()
                if type(event) is h11.Data:
                    self._size += len(event.data)
                    if self._size > LIMIT_BYTES:
                        self._finish(now, f"the answer is longer than {LIMIT_BYTES} bytes")
                        return
                    reply.pieces.append((now, bytes(event.data)))
                elif type(event) is h11.Response:
                    reply.status = event.status_code
                    reply.headers = {
                        name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers
                    }
                    if reply.headers.get("transfer-encoding", "").lower() == "chunked":
                        self._chunks = ChunkedBody()
                        self._feed_chunked(reply, self._http.trailing_data[0], now)
                        return
                elif type(event) is h11.EndOfMessage:
                    self._finish(now, None)
                    return
                elif event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                elif type(event) is h11.ConnectionClosed:
                    self._finish(now, "the server closed the connection before the answer's end")
                    return
        except (h11.RemoteProtocolError, ValueError) as error:
            cut = not data  # the end of the connection, in the middle of an answer
            self._finish(
                now,
                "the server closed the connection before the answer's end"
                if cut
                else f"not valid HTTP: {error}",
            )

    def _feed_chunked(self, reply: Reply, data: bytes, now: float) -> None:
        if self._chunks is None:
            return
        payload = self._chunks.feed(data)
        if payload:
            self._size += len(payload)
            reply.pieces.append((now, payload))
        if self._chunks.ended:
            self._finish(now, None)
        elif self._size > LIMIT_BYTES:
            self._finish(now, f"the answer is longer than {LIMIT_BYTES} bytes")

    def _finish(self, now: float, error: str | None) -> None:
        if self._done is not None and not self._done.done():
            if self._reply is not None:
                self._reply.ended_at = now
                self._reply.error = self._reply.error or error
            self._done.set_result(None)


class Client:
    """Connections to one server, reused between requests."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        headers: dict[str, str] | None = None,
        timeout_seconds: float = 600.0,
        connect_seconds: float = 10.0,
    ) -> None:
        self.endpoint = endpoint
        self._headers = dict(headers or {})
        self._timeout = timeout_seconds
        self._connect = connect_seconds
        self._idle: list[Connection] = []
        self._ssl = ssl.create_default_context() if endpoint.tls else None

    async def post(self, path: str, body: bytes) -> Reply:
        """Send one POST on an idle or new connection and return the reply; errors are in it."""
        connection = self._take_idle()
        fresh = connection is None
        if connection is None:
            started = time.perf_counter()
            try:
                connection = await self._open()
            except (OSError, TimeoutError) as error:
                text = str(error) or f"no connection within {self._connect:g} s"
                return Reply(sent_at=started, ended_at=time.perf_counter(), error=f"cannot connect: {text}")
        reply = await connection.post(self.endpoint, path, body, self._headers, self._timeout)
        if reply.error is not None and reply.status is None and not fresh and not reply.timed_out:
            # A kept-alive connection that the server had just closed; the request never reached it.
            connection.close()
            try:
                connection = await self._open()
            except (OSError, TimeoutError):
                return reply
            reply = await connection.post(self.endpoint, path, body, self._headers, self._timeout)
        if connection.usable:
            self._idle.append(connection)
        else:
            connection.close()
        return reply

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.close()
        return None

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect):
            transport, connection = await loop.create_connection(
                Connection, self.endpoint.host, self.endpoint.port, ssl=self._ssl
            )
        sock = transport.get_extra_info("socket")
        if sock is not None:
            import socket

            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
