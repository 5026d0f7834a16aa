"""The line reader: the same lines however the stream is cut, bounded memory, bad bytes."""

from __future__ import annotations

import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from deploy_kit.startup.lines import HEAD_BYTES, TAIL_BYTES, LineSplitter, parse_line, seconds_between
from deploy_kit.startup.progress import clock_seconds, read_bar
from deploy_kit.startup.watcher import StartupWatcher


def split(chunks: list[bytes]) -> list[bytes]:
    splitter = LineSplitter()
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    rest = splitter.take_rest()
    return [*lines, rest] if rest else lines


@given(st.lists(st.binary(max_size=60)))
def test_cuts_do_not_matter(chunks: list[bytes]) -> None:
    data = b"".join(chunks)
    assert split(chunks) == split([data])
    assert split([bytes([byte]) for byte in data]) == split([data])
    assert split([data]) == [line for line in data.replace(b"\r", b"\n").split(b"\n") if line]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 3 * HEAD_BYTES), st.integers(1, 40_000))
def test_long_lines_are_shortened_the_same_way(length: int, piece: int) -> None:
    data = b"a" * length + b"z\nnext"
    pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
    lines = split(pieces)
    assert lines == split([data])
    assert len(lines[0]) <= HEAD_BYTES + TAIL_BYTES + 10
    assert lines[0].endswith(b"z")
    assert lines[1] == b"next"


@given(st.binary(max_size=300))
def test_any_bytes_are_read(data: bytes) -> None:
    watcher = StartupWatcher()
    watcher.feed(data)
    watcher.close()
    assert watcher.explain().verdict in (
        "starting",
        "loading",
        "capturing",
        "ready",
        "degraded",
        "hung",
        "crashed",
    )


@given(st.text(max_size=200))
def test_words_in_a_line_are_no_crash(text: str) -> None:
    watcher = StartupWatcher()
    flat = text.replace("\n", " ").replace("\r", " ")
    for word in ("Exception", "crashed", "SIGQUIT", "out of memory", "Traceback", "killed", "error"):
        watcher.feed(f"[2026-03-02 10:15:01] note: {word} {flat} {word}\n".encode())
    assert watcher.explain().verdict == "starting"


def test_memory_stays_constant() -> None:
    watcher = StartupWatcher()
    line = b"[2026-03-02 10:15:01 TP%d] Decode batch, #running-req: 3, #token: 11179, accept len: 2.90\n"
    watcher.feed(b"[2026-03-02 10:15:01] The server is fired up and ready to roll!\n")
    block = b"".join(line % rank for rank in range(8)) * 200
    trouble = (
        b'Traceback (most recent call last):\n  File "a", line 1, in b\nValueError: x\n' * 50
        + b"x" * 3_000_000
    )
    for _ in range(3):
        watcher.feed(block + trouble)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(12):
        watcher.feed(block + trouble)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 300_000
    assert watcher.explain().verdict == "ready"


def test_prefixes() -> None:
    line = parse_line(b"sglang-1  | [2026-03-02 10:15:09 DP0 TP3 EP3] Init torch distributed begin.")
    assert (line.rank, line.tag, line.text) == (3, "DP0 TP3 EP3", "Init torch distributed begin.")
    line = parse_line(b"[rank5]:[E227 16:30:43.526 ProcessGroupNCCL.cpp:1785] late")
    assert (line.rank, line.stream) == (5, "[rank5]")
    line = parse_line(b'sglang  |   File "x.py", line 3, in f')
    assert line.indented
    assert parse_line(b"\x1b[31m[2026-03-02 10:15:09 TP0] red\x1b[0m").text == "red"


def test_bars() -> None:
    read = read_bar(
        "Loading safetensors checkpoint shards:  71% Completed | 46/64 [09:10<03:35, 11.97s/it]rest"
    )
    assert read is not None
    bar, rest = read
    assert (bar.kind, bar.done, bar.total, bar.percent, bar.remaining_seconds, rest) == (
        "weights",
        46,
        64,
        71,
        215,
        "rest",
    )
    read = read_bar(
        "Capturing batches (bs=1 avail_mem=9.87 GB): 100%|██████████| 6/6 [00:09<00:00,  1.55s/it]"
    )
    assert read is not None
    assert (read[0].kind, read[0].batch_size, read[0].seconds_per_item) == ("capture", 1, 1.55)
    assert read_bar("usage is 50% | of 3/4 [nothing]") is None
    assert clock_seconds("1:02:03") == 3723
    assert clock_seconds("?") is None


def test_clock_jumps() -> None:
    assert seconds_between("2026-03-02 10:15:09", "2026-03-02 10:15:19") == 10
    assert seconds_between("2026-03-02 10:15:09", "2026-03-02 09:15:09") is None
    assert seconds_between("2026-03-02 10:15:09", "2038-01-01 00:00:00") is None
    assert seconds_between(None, "2026-03-02 10:15:09") is None
