"""The runner of the test stages, with real processes: order, whole output, and that nothing outlives it."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "stages.py"


def load(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


STAGES = load("stages", SCRIPT)


STOP = ((signal.SIGINT, 0.5), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))


def shell(name: str, script: str, *after: str) -> object:
    return STAGES.Stage(name, ("sh", "-c", script), after)


def alive(pid: int) -> bool:
    """Whether a process runs; a dead one that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} outlived its run"
        time.sleep(0.02)


def read_pid(file: Path) -> int:
    deadline = time.monotonic() + 20
    while not (file.exists() and file.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return int(file.read_text())


def test_every_stage_is_in_the_whole_run_once() -> None:
    whole = [name for lane in STAGES.LANES for name in lane]
    assert len(whole) == len(set(whole))
    assert {*whole, "hosts", STAGES.CLEAN_UP} == set(STAGES.STAGES)
    assert {*STAGES.SLOW_ORDER, STAGES.CLEAN_UP} == set(STAGES.STAGES)
    for lane in (STAGES.SLOW_ORDER, *STAGES.LANES):
        for name in lane:
            for needed in STAGES.STAGES[name].after:
                assert needed not in lane or lane.index(needed) < lane.index(name), (name, needed)


def test_side_by_side_and_after_what_is_needed(tmp_path: Path) -> None:
    order = tmp_path / "order"
    said: list[str] = []
    run = STAGES.Run(tmp_path, said.append)
    slow, needing = (
        shell("slow", f"sleep 0.4; echo slow >>{order}; echo output of slow"),
        shell("needing", f"echo needing >>{order}", "slow"),
    )
    assert run.run([[slow], [shell("quick", f"echo quick >>{order}"), needing]])
    assert order.read_text().split() == ["quick", "slow", "needing"]
    assert sorted(line.split()[1] for line in run.lines) == ["needing", "quick", "slow"]
    assert all(line.startswith("ok ") for line in run.lines)
    assert "output of slow" in "\n".join(said)


def test_a_stage_of_another_run_is_not_waited_for(tmp_path: Path) -> None:
    run = STAGES.Run(tmp_path, lambda _: None)
    assert run.run([[shell("needing", "true", "not-in-this-run")], [shell("other", "true")]])


def test_a_failure_is_shown_whole_and_ends_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STAGES, "STOP", STOP)
    said: list[str] = []
    pid_file = tmp_path / "pid"
    run = STAGES.Run(tmp_path, said.append)
    # A shell's background takes no SIGINT: it must be told by another signal.
    long = shell("long", f"sleep 600 & echo $! >{pid_file}; wait")
    failing = shell(
        "failing", f"while ! [ -s {pid_file} ]; do sleep 0.05; done; seq 5000; echo why >&2; exit 3"
    )
    began = time.monotonic()
    assert not run.run([[long, shell("never", f"touch {tmp_path}/never")], [failing]])
    assert time.monotonic() - began < 30
    text = "\n".join(said)
    assert "\n1\n2\n3\n" in text
    assert "\n4999\n5000\nwhy\n" in text
    assert [line.split()[:2] for line in run.lines] == [["FAILED", "failing"], ["ended", "long"]]
    assert not (tmp_path / "never").exists()
    wait_until_gone(read_pid(pid_file))


def test_what_a_failed_stage_left_in_its_group_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(STAGES, "STOP", STOP)
    pid_file = tmp_path / "pid"
    run = STAGES.Run(tmp_path, lambda _: None)
    assert not run.run([[shell("failing", f"sleep 600 & echo $! >{pid_file}; exit 1")], []])
    wait_until_gone(read_pid(pid_file))


PROGRAM = """
import importlib.util, pathlib, signal, sys
sys.path.insert(0, {scripts!r})
import stages
stages.ROOT = pathlib.Path({folder!r})
stages.STAGES = {{
    "up": stages.Stage("up", ("sh", "-c", "touch up")),
    "stubborn": stages.Stage(
        "stubborn", ("sh", "-c", "trap '' INT; echo $$ >stubborn; while :; do sleep 0.1; done")
    ),
    "long": stages.Stage("long", ("sh", "-c", "sleep 600 & echo $! >long; wait")),
    "down": stages.Stage("down", ("sh", "-c", "touch down")),
}}
stages.LANES = (("up", "stubborn"), ("long",))
stages.STOP = ((signal.SIGINT, 0.5), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))
sys.exit(stages.main([]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_and_takes_the_deployment_down(tmp_path: Path, number: signal.Signals) -> None:
    program = PROGRAM.format(scripts=str(SCRIPT.parent), folder=str(tmp_path))
    process = subprocess.Popen(
        # As a shell starts what it puts into the background.
        ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-c", program],
        env={name: value for name, value in os.environ.items() if name != "KIT_SLOW"},
        stdout=subprocess.PIPE,
        text=True,
    )
    pids = [read_pid(tmp_path / name) for name in ("stubborn", "long")]
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    for pid in pids:
        wait_until_gone(pid)
    assert (tmp_path / "up").exists()
    assert (tmp_path / "down").exists()
    assert "ended   long" in output
    assert "ok      down" in output


def test_the_files_whose_tests_stay_together_are_there() -> None:
    together = load("tests_conftest", ROOT / "tests" / "conftest.py").TOGETHER
    assert [name for name in together if not (ROOT / "tests/integration" / name).is_file()] == []


def test_an_unknown_stage_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert STAGES.main(["unti"]) == 2
    assert "unti" in capsys.readouterr().err
