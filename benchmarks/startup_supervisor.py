"""What following the engine's output costs: our CPU time at 10,000 lines a second, and whether it waits.

Prints (1) the share of one core that reading, passing on and watching take at a steady rate, and (2) the
paired ratio of the time that a writer of the same bytes needs with us as its reader to the time with a reader
that throws everything away. Pairs run alternately, so that the machine's mood falls on both.

Usage: python benchmarks/startup_supervisor.py [--seconds 10] [--rate 10000] [--pairs 7]
"""

# ruff: noqa: E501  (the lines of logs are data)
from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

from deploy_kit.runtime.relay import Relay, prefer_reading
from deploy_kit.startup.watcher import StartupWatcher

DECODE = (
    b"[2026-03-02 10:20:03 TP0] Decode batch, #running-req: 3, #token: 11179, token usage: 0.08, accept len: 2.90,"
    b" accept rate: 0.63, cuda graph: True, gen throughput (token/s): 163.11, #queue-req: 0\n"
)
NOISE = b"[2026-03-02 10:15:09 TP3] Ignore import error when loading sglang.srt.models.x: No module named 'cutlass'\n"
ACCESS = b'[2026-03-02 10:20:03] INFO:     127.0.0.1:40052 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
MIXED = (DECODE, NOISE, ACCESS, b"box:211:409 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n")
STEADY = """
import os, sys, time
rate, seconds = int(sys.argv[1]), float(sys.argv[2])
lines = sys.stdin.buffer.read().splitlines(keepends=True)
begun, done, writing = time.monotonic(), 0, 0.0
while (now := time.monotonic() - begun) < seconds:
    while done < now * rate:
        before = time.perf_counter()
        os.write(1, lines[done % len(lines)])
        writing += time.perf_counter() - before
        done += 1
    time.sleep(0.001)
print(done, writing, file=sys.stderr)
"""
FLOOD_BLOCKS = 2_000
FLOOD = """
import os, sys, time
block = sys.stdin.buffer.read() * 64
begun = time.monotonic()
for _ in range(int(sys.argv[1])):
    os.write(1, block)
print(time.monotonic() - begun, file=sys.stderr)
"""


def follow(program: str, arguments: list[str], *, watched: bool) -> str:
    """Run a writer with us (or with a reader that throws away) at the other end; return what it says."""
    child = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    if child.stdin is None or child.stdout is None or child.stderr is None:
        raise RuntimeError("no pipes")
    child.stdin.write(b"".join(MIXED))
    child.stdin.close()
    if watched:
        watcher = StartupWatcher()
        with open(os.devnull, "wb", buffering=0) as output:  # noqa: PTH123  (a raw file)
            relay = Relay(child.stdout, output, secret=b"k-0123456789abcdef", observer=watcher.feed)
            child.wait()
            relay.finish(timeout_seconds=60)
    else:
        while os.read(child.stdout.fileno(), 1 << 20):
            pass
        child.wait()
    return child.stderr.read().decode().strip()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    prefer_reading()  # as `deploy-kit serve` does
    steady = [str(options.rate), str(options.seconds)]
    cpu, wall = time.process_time(), time.monotonic()
    lines = int(follow(STEADY, steady, watched=True).split()[0])
    share = (time.process_time() - cpu) / (time.monotonic() - wall)
    print(
        f"steady: {lines} lines in {options.seconds:.0f} s: {share:.1%} of one core (own CPU time / wall time)"
    )
    short = [str(options.rate), "2"]
    ratios = []
    for pair in range(options.pairs):
        order = (True, False) if pair % 2 else (False, True)
        spent = {watched: float(follow(STEADY, short, watched=watched).split()[1]) for watched in order}
        ratios.append(spent[True] / spent[False])
    print(
        f"steady: the writer's time inside write() with us / with a reader that throws away: median"
        f" {statistics.median(ratios):.2f} (paired, {options.pairs} pairs, {min(ratios):.2f} to {max(ratios):.2f})"
    )
    ratios, speeds = [], []
    mega = FLOOD_BLOCKS * 64 * len(b"".join(MIXED)) / 1e6
    for pair in range(options.pairs):
        order = (True, False) if pair % 2 else (False, True)
        took = {watched: float(follow(FLOOD, [str(FLOOD_BLOCKS)], watched=watched)) for watched in order}
        ratios.append(took[True] / took[False])
        speeds.append(mega / took[True])
    print(
        f"flood: {mega:.0f} MB ({mega * 1e6 / len(b''.join(MIXED)) * len(MIXED):.0f} lines) written as fast as they go:"
        f" {statistics.median(speeds):.0f} MB/s with us; writer's time ratio, paired: median {statistics.median(ratios):.2f}"
    )


if __name__ == "__main__":
    main()
