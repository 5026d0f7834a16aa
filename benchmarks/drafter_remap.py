"""Remap against cp on one disk, in one run: pairs of the two, each copy and each remap flushed to the disk.

    python benchmarks/drafter_remap.py --folder /some/disk [--gigabytes 2] [--pairs 5]

Prints every pair, the median ratio (remap's speed as a share of cp's) and remap's peak memory; exits 1 below
80 % or above 300 MB. The drafter is made for it: a head of 40 % of the file, re-ordered at random to another
vocabulary of which it has half of the tokens, so every row is read from another place.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from deploy_kit.drafter.weights_file import header_bytes

ROWS, WIDTH = 32_000, 7_168
ROW_BYTES = WIDTH * 2
SPEED_WANTED, MEMORY_LIMIT_BYTES = 0.80, 300 * 10**6
PROGRAM = (
    "import resource, sys; from deploy_kit.cli.app import main\n"
    "try: main()\n"
    "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, file=sys.stderr)"
)


def make_drafter(folder: Path, size_bytes: int) -> None:
    """Write a drafter of about that size: head, other weights, map."""
    folder.mkdir()
    rest = max(1, size_bytes // ROW_BYTES - ROWS)
    layout = [
        ("fc.weight", "BF16", (rest, WIDTH), rest * ROW_BYTES),
        ("lm_head.weight", "BF16", (ROWS, WIDTH), ROWS * ROW_BYTES),
        ("d2t", "I64", (ROWS,), ROWS * 8),
    ]
    (folder / "config.json").write_text(json.dumps({"vocab_size": 163_840, "draft_vocab_size": ROWS}))
    random = np.random.default_rng(1)
    with (folder / "model.safetensors").open("wb") as handle:
        handle.write(header_bytes(layout, {}))
        left = (rest + ROWS) * ROW_BYTES
        while left:
            # Below 2.0 and finite as BF16, or the head would have no mean row.
            piece = (random.integers(0, 0x4000, min(left, 64 * 2**20) // 2, dtype=np.uint16)).tobytes()
            handle.write(piece)
            left -= len(piece)
        handle.write(np.arange(ROWS, dtype=np.int64).tobytes())
        os.fsync(handle.fileno())


def make_vocabulary(folder: Path) -> None:
    """Write a map alone: half of the drafter's tokens, shuffled among others."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": 163_840}))
    random = np.random.default_rng(2)
    known = random.permutation(ROWS)[: ROWS // 2] * 2
    others = random.permutation(np.arange(2 * ROWS, 163_840))[: ROWS - known.size]
    targets = random.permutation(np.concatenate([known, others])).astype(np.int64)
    offsets = targets - np.arange(ROWS)
    (folder / "model.safetensors").write_bytes(
        header_bytes([("d2t", "I64", (ROWS,), ROWS * 8)], {}) + offsets.tobytes()
    )


def timed_cp(source: Path, out: Path) -> float:
    """Return the seconds that cp and the flush of its copy take."""
    start = time.perf_counter()
    subprocess.run(["cp", "-r", source, out], check=True)
    subprocess.run(["sync", *out.iterdir()], check=True)
    return time.perf_counter() - start


def timed_remap(source: Path, vocabulary: Path, out: Path) -> tuple[float, int]:
    """Return the seconds of the whole command, its own flush included, and its peak memory in bytes."""
    start = time.perf_counter()
    words = ["drafter", "remap", source, "--to-vocab-of", vocabulary, "-o", out, "--json"]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    return seconds, int(done.stderr.split()[-1])


def main() -> int:
    """Run the pairs and print what they measured."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--folder", type=Path, required=True, help="a folder on the disk to measure")
    parser.add_argument("--gigabytes", type=float, default=2.38)
    parser.add_argument("--pairs", type=int, default=5)
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="drafter-remap-", dir=given.folder))
    ratios, peak = [], 0
    try:
        source, vocabulary = work / "drafter", work / "vocabulary"
        make_drafter(source, int(given.gigabytes * 10**9))
        make_vocabulary(vocabulary)
        size = (source / "model.safetensors").stat().st_size
        timed_cp(source, work / "warm")
        shutil.rmtree(work / "warm")
        for pair in range(given.pairs):
            copied, remapped = work / "copied", work / "remapped"
            order = ("cp", "remap") if pair % 2 == 0 else ("remap", "cp")
            seconds = {}
            for which in order:
                if which == "cp":
                    seconds["cp"] = timed_cp(source, copied)
                else:
                    seconds["remap"], memory = timed_remap(source, vocabulary, remapped)
                    peak = max(peak, memory)
            ratios.append(seconds["cp"] / seconds["remap"])
            shutil.rmtree(copied)
            shutil.rmtree(remapped)
            rates = {name: size / 1e6 / value for name, value in seconds.items()}
            shown = f"cp {rates['cp']:.0f} MB/s, remap {rates['remap']:.0f} MB/s"
            print(f"pair {pair + 1}: {shown}, ratio {ratios[-1]:.2f}", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    ratio = statistics.median(ratios)
    wanted = f"wanted {SPEED_WANTED}, below {MEMORY_LIMIT_BYTES / 1e6:.0f} MB"
    print(f"{size / 1e9:.2f} GB: median ratio {ratio:.2f}, peak memory {peak / 1e6:.0f} MB ({wanted})")
    return 0 if ratio >= SPEED_WANTED and peak < MEMORY_LIMIT_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
