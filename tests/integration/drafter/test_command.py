"""The command in its own process: exit codes, JSON, no traceback for bad input, memory, a kill midway."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests/unit/drafter"))

from checkpoints import EVERY_FOURTH, OTHER, write_drafter, write_target  # noqa: E402

from deploy_kit.drafter.remap import plan_remap, write_remap  # noqa: E402
from deploy_kit.drafter.weights_file import header_bytes  # noqa: E402
from deploy_kit.errors import DeployKitError  # noqa: E402
from deploy_kit.exit_codes import ExitCode  # noqa: E402

BASE = [sys.executable, "-m", "deploy_kit", "drafter"]


def call(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*BASE, *map(str, words)], capture_output=True, text=True, timeout=60, check=False, **options
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests/cases").glob("drafter-*.yaml")), ids=lambda path: path.stem
)
def test_cases_as_files(path: Path, tmp_path: Path) -> None:
    case = yaml.safe_load(path.read_text())
    (tmp_path / "paste.txt").write_text(case["input"])
    done = call("check", "--from", tmp_path / "paste.txt", "--json")
    result = json.loads(done.stdout)
    assert result["verdict"] == case["expect"]["verdict"]
    assert done.returncode == {"ok": 0, "warn": 20, "reject": 21}[result["verdict"]]


def test_check_of_folders_and_stdin(tmp_path: Path) -> None:
    draft, target = write_drafter(tmp_path / "d"), write_target(tmp_path / "t")
    done = call("check", draft, "--target", target, "--stack", "current")
    assert done.returncode == 0 and done.stdout.startswith("ok")
    flags = call(
        "check", draft, "--target", target, "--server-flags", "--speculative-algorithm EAGLE", "--json"
    )
    assert flags.returncode == 21 and "1.00" in json.loads(flags.stdout)["cause"]
    piped = call("check", "--from", "-", "--json", input="--- draft config.json\n{}\n")
    assert json.loads(piped.stdout)["verdict"] in ("warn", "reject")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["check"], 2),
        (["check", "nowhere"], 5),
        (["check", "--from", "nowhere"], 5),
        (["check", "x", "--from", "y"], 2),
        (["check", "x", "--stack", "no-such-stack"], 4),
        (["compare", "nowhere", "nowhere"], 5),
        (["remap", "nowhere", "-o", "x"], 2),
        (["predict"], 2),
        (["predict", "1.5"], 2),
        (["predict", "0.5/0.2"], 2),
        (["predict", "0.9/0.9", "--topk", "2", "--draft-tokens", "4"], 2),
    ],
)
def test_bad_calls(words: list[str], code: int) -> None:
    done = call(*words, cwd=ROOT)
    assert done.returncode == code, done.stderr
    assert done.stderr


def test_predict_and_profile() -> None:
    done = call(
        "predict",
        "0.747,0.747,0.747",
        "--profile",
        "eagle3",
        "--cycle-ms",
        "30",
        "--baseline-tok-s",
        "82",
        "--json",
        cwd=ROOT,
    )
    result = json.loads(done.stdout)
    assert result["accept_length"] == pytest.approx(2.7218) and result["pays"] is True
    assert result["draft_tokens"] == 4
    unknown = json.loads(call("predict", "38.3%,3.5%", "--json").stdout)
    assert unknown["break_even_accept_length"] is None and unknown["pays"].startswith("unknown")


def test_compare_and_remap(tmp_path: Path) -> None:
    a, b = write_drafter(tmp_path / "a"), write_drafter(tmp_path / "b", OTHER)
    counts = tmp_path / "counts"
    counts.write_text("\n".join(f"{token} {1 + token}" for token in range(96)))
    result = json.loads(call("compare", a, b, "--frequencies", counts, "--json").stdout)
    assert result["vocabulary"]["both"] == 12 and 0 < result["ceiling"]["a"]["covered"] < 1
    dry = json.loads(call("remap", a, "--to-vocab-of", b, "-o", tmp_path / "c", "--dry-run", "--json").stdout)
    assert not (tmp_path / "c").exists() and dry["written"] is False
    done = json.loads(call("remap", a, "--to-vocab-of", b, "-o", tmp_path / "c", "--json").stdout)
    assert (done["kept"], done["initialised"], done["written"]) == (12, 12, True)
    assert call("remap", a, "--to-vocab-of", b, "-o", tmp_path / "c").returncode == 2
    frequent = call("remap", a, "--from-frequencies", counts, "--size", "30", "-o", tmp_path / "f", "--json")
    assert json.loads(frequent.stdout)["rows"] == 30


def big_drafter(folder: Path, rows: int, width: int) -> Path:
    """A drafter with a head of rows x width x 2 bytes, and as much beside it, never held in memory."""
    folder.mkdir()
    head = rows * width * 2
    layout = [
        ("fc.weight", "BF16", (rows, width), head),
        ("lm_head.weight", "BF16", (rows, width), head),
        ("d2t", "I64", (rows,), rows * 8),
    ]
    (folder / "config.json").write_text(json.dumps({"vocab_size": rows * 2, "draft_vocab_size": rows}))
    with (folder / "model.safetensors").open("wb") as handle:
        handle.write(header_bytes(layout, {}))
        for index in range(2 * rows):
            handle.write((index & 0x3FFF).to_bytes(2, "little") * width)
        handle.write(np.arange(rows, dtype=np.int64).tobytes())
    return folder


def test_memory_stays_small_however_large_the_file(tmp_path: Path) -> None:
    # 410 MB in and out; the whole command, interpreter included, must stay below 300 MB.
    rows, width = 25_000, 4_096
    source = big_drafter(tmp_path / "a", rows, width)
    other = tmp_path / "order"
    other.mkdir()
    targets = np.random.default_rng(1).permutation(rows * 2)[:rows].astype(np.int64)
    (other / "config.json").write_text(json.dumps({"vocab_size": rows * 2}))
    (other / "model.safetensors").write_bytes(
        header_bytes([("d2t", "I64", (rows,), rows * 8)], {}) + (targets - np.arange(rows)).tobytes()
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    done = call("remap", source, "--to-vocab-of", other, "-o", tmp_path / "b", "--json")
    assert done.returncode == 0, done.stderr
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert max(peak, before) * 1024 < 300 * 10**6
    result = json.loads(done.stdout)
    assert result["kept"] == int(np.isin(targets, np.arange(rows) * 2).sum())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_stopped_in_the_middle(how: signal.Signals, tmp_path: Path) -> None:
    source = big_drafter(tmp_path / "a", 25_000, 4_096)
    before = (source / "model.safetensors").stat()
    process = subprocess.Popen(
        [*BASE, "remap", str(source), "--to-vocab-of", str(source), "-o", str(tmp_path / "b")]
    )
    try:
        deadline = time.monotonic() + 30
        while (
            not list(tmp_path.glob(".b.remap-*")) and time.monotonic() < deadline and process.poll() is None
        ):
            time.sleep(0.002)
        process.send_signal(how)
        code = process.wait(30)
    finally:
        process.kill()
    if code == 0:
        pytest.skip("it was done before the signal came")
    assert not (tmp_path / "b").exists()
    assert (source / "model.safetensors").stat().st_mtime_ns == before.st_mtime_ns
    left = list(tmp_path.glob(".b.remap-*"))
    assert len(left) == (1 if how == signal.SIGKILL else 0)
    # The next run is not disturbed by what a kill left.
    assert call("remap", source, "--to-vocab-of", source, "-o", tmp_path / "b").returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_full_disk(tmp_path: Path) -> None:
    source = write_drafter(tmp_path / "a", EVERY_FOURTH)
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(small)], check=False)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        done = call("remap", source, "--to-vocab-of", source, "-o", small / "b")
        assert done.returncode == 13, done.stderr
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_file_size_limit_leaves_nothing(tmp_path: Path) -> None:
    source = write_drafter(tmp_path / "a")
    original = (source / "model.safetensors").read_bytes()

    def limit() -> None:
        # As `ulimit -f` does: a write beyond it is refused (Python ignores the signal).
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    done = call("remap", source, "--to-vocab-of", source, "-o", tmp_path / "b", preexec_fn=limit)
    assert done.returncode == 5 and "File too large" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (source / "model.safetensors").read_bytes() == original


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_a_disk_that_fills_up_midway(tmp_path: Path) -> None:
    """There is room when it starts; another program takes it."""
    source = write_drafter(tmp_path / "a", EVERY_FOURTH)
    original = (source / "model.safetensors").read_bytes()
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)], check=False)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    filler = small / "filler"

    def take_the_rest(_: int) -> None:
        with filler.open("ab", buffering=0) as handle, contextlib.suppress(OSError):
            while True:
                handle.write(b"x" * 4096)

    try:
        plan = plan_remap(source, OTHER, None)
        with pytest.raises(DeployKitError) as caught:
            write_remap(plan, small / "b", initial="zero", progress=take_the_rest)
        assert caught.value.exit_code == ExitCode.DISK_FULL
        assert [path.name for path in small.iterdir()] == ["filler"]
        assert (source / "model.safetensors").read_bytes() == original
    finally:
        subprocess.run(["umount", str(small)], check=True)
