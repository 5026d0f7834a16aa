"""One streamed HTTP request with the arrival time of every piece, at little cost to the client.

h11 speaks HTTP over a bare asyncio protocol. The arrival time is taken when the event loop hands the bytes
over, before anything is parsed, and JSON is read only after the request's end: what the client does with a
token must not show up as the server's token gap. (httpx over the same stand-in server costs several times
the processor time for each piece: benchmarks/bench_client.py prints the ratio.)
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


class Connection(asyncio.Protocol):
    """One kept-alive connection that carries one request at a time."""

    def __init__(self) -> None:
        self._http = h11.Connection(our_role=h11.CLIENT)
        self._transport: asyncio.Transport | None = None
        self._reply: Reply | None = None
        self._done: asyncio.Future[None] | None = None
        self._size = 0

    @property
    def usable(self) -> bool:
        """Whether another request may be sent on this connection."""
        return (
            self._transport is not None
            and not self._transport.is_closing()
            and self._http.our_state is h11.IDLE
            and self._http.their_state is h11.IDLE
        )

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    async def post(
        self, endpoint: Endpoint, path: str, body: bytes, headers: dict[str, str], timeout_seconds: float
    ) -> Reply:
        """Send one POST and return the whole reply; errors are in it, none is raised."""
        reply = Reply()
        self._reply, self._size = reply, 0
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
        elif self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
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
        self._feed(b"", time.perf_counter())
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(time.perf_counter(), f"the connection was lost: {exc}" if exc else "the server closed")

    def _feed(self, data: bytes, now: float) -> None:
        reply = self._reply
        if reply is None:
            return
        try:
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
                elif type(event) is h11.EndOfMessage:
                    self._finish(now, None)
                    return
                elif event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                elif type(event) is h11.ConnectionClosed:
                    self._finish(now, "the server closed the connection before the answer's end")
                    return
        except h11.RemoteProtocolError as error:
            cut = not data  # the end of the connection, in the middle of an answer
            self._finish(
                now,
                "the server closed the connection before the answer's end"
                if cut
                else f"not valid HTTP: {error}",
            )

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
