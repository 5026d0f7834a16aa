"""`deploy-kit startup show`: the state file for people and for machines."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

from deploy_kit.cli.startup import app
from deploy_kit.runtime.state import EngineState, write_state

STATE = EngineState(
    phase="loading",
    plan_id="p",
    profile="eagle3",
    model="kimi",
    served_model_name="kimi-k2.5",
    rehearsal=False,
    pid=os.getpid(),
    engine_pid=None,
    started_at_seconds=time.time() - 300,
    details={
        "phase_seconds": {"starting": 20.0, "loading": 280.0},
        "progress_ratio": 0.5,
        "progress_text": "32/64, 280 s left",
        "expected_seconds": 700.0,
        "expected_phase_seconds": {"loading": 560.0},
        "expected_from": "about 700 s expected (4 earlier starts of this plan)",
        "not_ready_because": "the port is closed",
        "stalled": False,
    },
)


def show(folder: Path, *options: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["show", "--state-dir", str(folder), *options])
    return result.exit_code, result.stdout, result.stderr


def test_not_ready_with_elapsed_and_expected_time(tmp_path: Path) -> None:
    write_state(tmp_path, replace(STATE, started_at_seconds=time.time() - 300))
    code, out, err = show(tmp_path, "--json")
    answer = json.loads(out)
    assert code == 15
    assert answer["expected_seconds"] == 700.0
    assert 299 <= answer["elapsed_seconds"] < 400
    assert not answer["ready"]
    for words in ("32/64", "about 700 s expected", "the port is closed"):
        assert words in " ".join(err.split())


def test_ready_ended_gone_and_nothing(tmp_path: Path) -> None:
    assert show(tmp_path)[0] == 15
    write_state(tmp_path, replace(STATE, phase="serving", ready_at_seconds=time.time()))
    assert show(tmp_path, "--follow")[0] == 0
    write_state(tmp_path, replace(STATE, phase="exited", cause="no room", exit_code=40))
    code, _, err = show(tmp_path, "--follow")
    assert (code, "ended: no room" in err) == (40, True)
    write_state(tmp_path, replace(STATE, phase="exited", cause="stopped as asked", exit_code=0))
    assert show(tmp_path)[0] == 15
    write_state(tmp_path, replace(STATE, pid=2**22 + 1))
    code, _, err = show(tmp_path, "--follow")
    assert (code, "ended without a word" in err) == (15, True)


def test_a_damaged_state_file(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"phase": 3')
    assert show(tmp_path)[0] == 15
