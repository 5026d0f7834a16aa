"""A campaign that is killed at random moments, or meets a full disk, loses and repeats nothing finished.

The engines are stand-ins (campaign_standins.py): what is tested is what the campaign keeps.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from campaign_standins import ROOT

from deploy_kit.campaign.model import CampaignState
from deploy_kit.campaign.store import read_campaign_state
from deploy_kit.receipts import read_receipts
from deploy_kit.receipts.bench import parse_bench

DRIVER = Path(__file__).with_name("campaign_driver.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/unit/campaign'}"}
SEEDS = range(3)
CELLS = 4 + 2 + 4 + 4 + 4  # faster, crash-oom (base and its one try), same, better, the winners


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(DRIVER), str(folder)], env=ENVIRONMENT, stderr=subprocess.PIPE
    )


def finished_keys(folder: Path) -> set[str]:
    """The cells that are over: their receipt is on disk, or the state says so."""
    receipts = (
        read_receipts(folder / "state" / "receipts", kind="bench") if (folder / "state").is_dir() else ()
    )
    assert not getattr(receipts, "errors", ()), "no receipt is ever half-written"
    keys = {str(parse_bench(receipt)[0].server_start).split()[-1] for receipt in receipts}
    state = read_campaign_state(folder / "state") if (folder / "state").is_dir() else None
    return keys | ({cell.key for cell in state.cells} if state is not None else set())


def whole(folder: Path) -> CampaignState:
    state = read_campaign_state(folder / "state")
    assert state is not None
    assert state.finished
    assert len(state.cells) == len({cell.key for cell in state.cells}) == CELLS
    assert [result.outcome for result in state.levers] == ["done", "failed", "done", "done"]
    assert state.levers[0].verdict == "helps"
    assert state.levers[1].cause_id == "oom"
    assert state.combined is not None
    receipts = read_receipts(folder / "state" / "receipts", kind="bench")
    assert len(receipts) == CELLS - 1, "one for each measured cell; the crash has none"
    assert {receipt.receipt_id for receipt in receipts} == {
        cell.receipt_id for cell in state.cells if cell.receipt_id is not None
    }
    return state


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_at_random_moments_it_loses_and_repeats_nothing(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    begun = tmp_path / "begun"
    over: set[str] = set()
    kills = 0
    for _ in range(60):
        before = begun.read_text().split() if begun.exists() else []
        process = start(tmp_path)
        try:
            _wait_for_work(process, begun, len(before))
            process.wait(timeout=draw.uniform(0.0, 0.4))
        except subprocess.TimeoutExpired:
            process.kill()
            kills += 1
        _, errors = process.communicate(timeout=60)
        again = set((begun.read_text().split() if begun.exists() else [])[len(before) :]) & over
        assert not again, f"measured again although it was over: {again}"
        now = finished_keys(tmp_path)
        assert over <= now, f"lost: {over - now}"
        over = now
        if process.returncode == 0:
            break
        assert process.returncode == -9, errors.decode()
    # A kill after the last write, before the process's end, needs no resumption.
    assert 1 <= whole(tmp_path).resumed <= kills


def _wait_for_work(process: subprocess.Popen[bytes], begun: Path, count: int) -> None:
    """Until a measurement of this process has begun, or it has ended."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if begun.exists() and len(begun.read_text().split()) > count:
            return
        time.sleep(0.01)


def test_a_really_full_disk_stops_it_and_it_goes_on_with_room_again(tmp_path: Path) -> None:
    """On a small file system of its own, filled up while it runs."""
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(small)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        process = start(small)
        _wait_for_work(process, small / "begun", 2)
        filler = small / "filler"
        with filler.open("wb") as handle:
            while True:
                try:
                    handle.write(b"\0" * 65536)
                    handle.flush()
                except OSError:
                    break
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 13, errors.decode()
        assert "the disk is full" in errors.decode()
        over = finished_keys(small)
        assert over
        again = start(small)
        _, errors = again.communicate(timeout=60)
        assert again.returncode == 13, "still no room: refused before anything is started"
        assert finished_keys(small) == over
        filler.unlink()
        before = len((small / "begun").read_text().split())
        last = start(small)
        _, errors = last.communicate(timeout=120)
        assert last.returncode == 0, errors.decode()
        assert not set((small / "begun").read_text().split()[before:]) & over
        whole(small)
    finally:
        subprocess.run(["umount", str(small)], check=False)
        shutil.rmtree(small, ignore_errors=True)
