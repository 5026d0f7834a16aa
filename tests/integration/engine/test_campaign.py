"""A whole campaign on the real engine: two levers, one that crashes on purpose, kill -9 in the middle."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from deploy_kit.receipts import read_receipts
from deploy_kit.runtime.child import living_members
from deploy_kit.runtime.state import process_alive, read_state

ROOT = Path(__file__).parents[3]
LIMIT_SECONDS = 1500.0
LEVER = """
name = "{name}"
description = "{description}"
expected_effect = "{effect}"
acceptance = "this test"
status_on_sm120 = "not for SM120"
source = "this test"
[needs]
accelerator = "cpu"
[flags]
{flags}
"""
# In the campaign's order: after the one that crashes there is something to go on with.
LEVERS = {
    "log-oftener": ("a line every 7 decode steps", "none", "decode-log-interval = 7"),
    "crashes": ("weights of a kind that is not there", "it crashes at the load", 'load-format = "pt"'),
    "one-at-a-time": ("one running request at a time", "slower at C=3", "max-running-requests = 1"),
}
CAMPAIGN = """
name = "rehearsal"
description = "Two levers and one that crashes on purpose, on the rehearsal engine"
question = "does a campaign find out what is known beforehand?"
[base]
profile = "baseline"
host = "rehearsal"
[bench]
concurrencies = [3]
rounds = 1
requests = 2
output_tokens = 48
[schedule]
repeats = 2
expected_start_seconds = 20
expected_bench_seconds = 5
start_limit_seconds = 400
"""

# Eleven starts of the engine, one after the other. Nothing in it depends on how fast they are.
pytestmark = pytest.mark.timeout(1800)


class Rehearsal:
    """A campaign's files, and the command as a person runs it."""

    def __init__(self, folder: Path, models: Path) -> None:
        self.folder, self.state_folder = folder, folder / "state"
        self.configs = folder / "configs"
        shutil.copytree(ROOT / "configs", self.configs)
        model = self.configs / "models" / "rehearsal-tiny.toml"
        model.write_text(model.read_text().replace("/opt/rehearsal/models", str(models)))
        for name, (description, effect, flags) in LEVERS.items():
            text = LEVER.format(name=name, description=description, effect=effect, flags=flags)
            (self.configs / "levers" / f"{name}.toml").write_text(text)
        self.file = folder / "rehearsal.toml"
        self.file.write_text(CAMPAIGN + "".join(f'[[lever]]\nname = "{name}"\n' for name in LEVERS))
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = int(taken.getsockname()[1])

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "DEPLOY_KIT_CONFIGS": str(self.configs),
            "DEPLOY_KIT_PORT": str(self.port),
            "DEPLOY_KIT_DRAIN_SECONDS": "10",
        }
        if not importlib.metadata.entry_points(group="sglang.srt.plugins", name="deploy_kit_telemetry"):
            environment["DEPLOY_KIT_ALLOW_MISSING_TELEMETRY"] = "1"  # outside the image
        command = [sys.executable, "-m", "deploy_kit", "campaign", str(self.file), "--json"]
        with (self.folder / "progress").open("ab") as progress:
            return subprocess.Popen(
                [*command, "--state", str(self.state_folder), *options],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=progress,
            )

    def state(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.state_folder / "campaign.json").read_text())
        except (OSError, ValueError):
            return {}
        return found

    def tail(self) -> str:
        return (self.folder / "progress").read_text(errors="replace")[-3000:]


def wait(condition: Callable[[], bool], process: subprocess.Popen[bytes], rehearsal: Rehearsal) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert process.poll() is None, rehearsal.tail()
        assert time.monotonic() < deadline, rehearsal.tail()
        time.sleep(0.1)


def test_a_campaign_from_end_to_end(tmp_path: Path, models: Path) -> None:
    rehearsal = Rehearsal(tmp_path, models)
    process = rehearsal.start("--yes")
    # Killed while the engine of the second cell serves: the first is over, this one is not.
    key = "log-oftener/lever/0"
    engine = rehearsal.state_folder / "engines" / "log-oftener-lever-0-1"

    def serving() -> bool:
        found = read_state(engine)
        return found is not None and found.ready

    wait(serving, process, rehearsal)
    left = read_state(engine)
    assert left is not None
    assert left.engine_pid is not None
    process.kill()
    process.wait()
    before = rehearsal.state()
    assert [cell["key"] for cell in before["cells"]] == ["log-oftener/base/0"]
    assert before["running"]["key"] == key

    again = rehearsal.start("--yes")
    output, _ = again.communicate(timeout=LIMIT_SECONDS)
    assert again.returncode == 20, rehearsal.tail()  # finished, and a lever crashed the engine
    assert not process_alive(left.pid), "the killed campaign's `serve` is gone"
    assert living_members(left.engine_pid) == [], "and its engine"
    state = json.loads(output)
    assert state["finished"]
    assert state["resumed"] == 1
    assert state["rehearsal"]
    keys = [cell["key"] for cell in state["cells"]]
    first, last = (
        [f"{lever}/{side}/{n}" for n in (0, 1) for side in ("base", "lever")]
        for lever in ("log-oftener", "one-at-a-time")
    )
    assert keys == [*first, "crashes/base/0", "crashes/lever/0", *last]
    assert state["cells"][0] == before["cells"][0], "the finished cell was kept as it was"
    assert next(cell for cell in state["cells"] if cell["key"] == key)["attempts"] == 2

    by_name = {result["name"]: result for result in state["levers"]}
    nothing, crash, slower = (by_name[name] for name in LEVERS)
    assert [result["outcome"] for result in (nothing, crash, slower)] == ["done", "failed", "done"]
    for result in (nothing, slower):
        effect = effect_of(result)
        print(result["name"], result["verdict"], result["reason"])
        assert effect["interval"][0] < effect["ratio"] < effect["interval"][1]
    assert crash["cause_id"] == "weights-missing", "the watcher's cause"
    crashed = next(cell for cell in state["cells"] if cell["key"] == "crashes/lever/0")
    assert crashed["exit_code"] == 42
    assert crashed["evidence"]
    receipts = read_receipts(rehearsal.state_folder / "receipts", kind="bench")
    assert not receipts.errors
    by_id = {receipt.receipt_id: receipt for receipt in receipts}
    assert len(by_id) == 9
    for cell in state["cells"]:
        if cell["step"] == "one-at-a-time":
            together = decoding_at_once(by_id[cell["receipt_id"]].samples)
            assert (together < 1.5) is (cell["side"] == "lever"), (cell["key"], together)
    for receipt in receipts:
        assert receipt.rehearsal
        assert receipt.versions["sglang"]
        assert str(tmp_path) not in receipt.model_dump_json(), "no path of this machine"

    shown = rehearsal.start("--dry-run")
    output, _ = shown.communicate(timeout=60)
    assert json.loads(output)["left"]["cells"] == 0, "run again, there is nothing to do"


def decoding_at_once(samples: Sequence[Any]) -> float:
    """How many of the requests had their tokens made at one time, on average: no question of speed."""
    began = [sample["sent_seconds"] + sample["ttft_seconds"] for sample in samples]
    ended = [sample["sent_seconds"] + sample["e2e_seconds"] for sample in samples]
    some, until = 0.0, 0.0
    for begin, end in sorted(zip(began, ended, strict=True)):
        some += max(0.0, end - max(begin, until))
        until = max(until, end)
    return float(sum(ended) - sum(began)) / some


def effect_of(result: dict[str, Any]) -> dict[str, Any]:
    (found,) = [
        effect
        for effect in result["effects"]
        if effect["metric"] == "tokens_per_second" and effect["concurrency"] is None
    ]
    return dict(found)
