"""A chunked body comes out the same however it is cut, as h11 reads it; rubbish is refused."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy_kit.bench.stream import ChunkedBody


def encode(chunks: list[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    body = b"".join(b"%x%s\r\n%s\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    return body + b"0\r\n" + trailer + b"\r\n"


def by_h11(body: bytes) -> bytes:
    connection = h11.Connection(our_role=h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "h")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    found = b""
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        if isinstance(event, h11.Data):
            found += bytes(event.data)
    return found


@settings(max_examples=200, deadline=None)
@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40) | st.just(b"0\r\n\r\n"), max_size=6),
    cuts=st.lists(st.integers(0, 400), max_size=10),
    extension=st.sampled_from([b"", b";a=b"]),
    trailer=st.sampled_from([b"", b"X-A: b\r\n"]),
)
def test_any_cutting_gives_what_h11_gives(
    chunks: list[bytes], cuts: list[int], extension: bytes, trailer: bytes
) -> None:
    whole = encode(chunks, extension, trailer)
    edges = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    body = ChunkedBody()
    found = b""
    for start, end in zip(edges, edges[1:], strict=False):  # noqa: RUF007
        assert not body.ended
        found += body.feed(whole[start:end])
    assert body.ended
    assert found == b"".join(chunks) == by_h11(whole)


@pytest.mark.parametrize("bad", [b"xyz\r\n", b"\r\n", b"-5\r\n", b"fffffffff\r\n", b"1" * 5000])
def test_rubbish_is_refused(bad: bytes) -> None:
    with pytest.raises(ValueError, match="a chunk's size"):
        ChunkedBody().feed(bad)


def test_a_cut_body_has_not_ended() -> None:
    whole = encode([b"abc", b"defg"])
    for length in range(len(whole)):
        body = ChunkedBody()
        body.feed(whole[:length])
        assert not body.ended
