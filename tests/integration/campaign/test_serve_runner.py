"""The runner that starts `deploy-kit serve`, with a stand-in for it: readiness, causes, limits, leftovers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from campaign_standins import ROOT, configs_with
from typer.testing import CliRunner

from deploy_kit.campaign.engines import (
    EngineFailure,
    ServeRunner,
    free_port,
    refuse_levers_off,
    wait_for_port,
)
from deploy_kit.campaign.model import Schedule
from deploy_kit.cli.campaign import app
from deploy_kit.configs.catalog import Catalog
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.plan.model import Plan
from deploy_kit.plan.resolve import resolve
from deploy_kit.runtime.settings import read_settings
from deploy_kit.runtime.state import process_alive, read_state

STANDIN = Path(__file__).with_name("standin_serve.py")
LEVERS = ("crashes", "hangs", "deaf", "says-no", "fine", "inert")
PYTHONPATH = f"{ROOT}:{ROOT / 'tests/unit/campaign'}"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return configs_with(tmp_path, *LEVERS)


def runner_of(catalog: Catalog, **schedule: int) -> ServeRunner:
    port = free_port()
    return ServeRunner(
        settings=replace(read_settings({}), port=port, drain_seconds=1.0),
        schedule=Schedule(**schedule),
        host="rehearsal",
        configs=catalog.folder,
        command=(sys.executable, str(STANDIN)),
        environment={**os.environ, "PYTHONPATH": PYTHONPATH, "DEPLOY_KIT_LEVERS": "left-from-before"},
    )


def plan_of(catalog: Catalog, runner: ServeRunner, *levers: str) -> Plan:
    return resolve(catalog, "baseline", host="rehearsal", levers=levers, port=runner.port)


def said(folder: Path, what: str) -> object:
    line = next(x for x in (folder / "engine.log").read_text().splitlines() if x.startswith(what))
    return json.loads(line.removeprefix(what))


def test_it_serves_exactly_the_plan_and_stops_it(tmp_path: Path, catalog: Catalog) -> None:
    runner = runner_of(catalog)
    folder = tmp_path / "start"
    words: list[str] = []
    with runner.running(plan_of(catalog, runner, "fine"), folder, words.append) as engine:
        state = read_state(folder)
        assert state is not None
        assert process_alive(state.pid)
        assert engine.url == f"http://127.0.0.1:{runner.port}"
        assert engine.failure() is None
    assert not process_alive(state.pid)
    argv = said(folder, "argv")
    assert argv == [
        "baseline", "--host", "rehearsal", "--stack", "rehearsal", "--model", "rehearsal-tiny",
        "--configs", str(catalog.folder), "--lever=fine",
    ]  # fmt: skip
    environment = said(folder, "environment")
    assert isinstance(environment, dict)
    assert "DEPLOY_KIT_LEVERS" not in environment, "ours does not leak into the plan"
    assert environment["DEPLOY_KIT_PORT"] == str(runner.port)
    assert words[-1] == "stopping the engine"


def test_a_crash_has_the_watchers_cause(tmp_path: Path, catalog: Catalog) -> None:
    runner = runner_of(catalog)
    plan = plan_of(catalog, runner, "crashes")
    with pytest.raises(EngineFailure) as caught, runner.running(plan, tmp_path / "start", lambda what: None):
        pass
    failure = caught.value
    assert (failure.cause, failure.cause_id) == ("out of GPU memory while loading", "oom-load")
    assert failure.remedy == "less"
    assert failure.exit_code == 40
    assert failure.evidence == ("torch.OutOfMemoryError: CUDA out of memory",)


def test_a_lever_that_the_engine_leaves_off_comes_with_its_line(tmp_path: Path, catalog: Catalog) -> None:
    runner = runner_of(catalog)
    plan = plan_of(catalog, runner, "inert")
    with runner.running(plan, tmp_path / "start", lambda what: None) as engine:
        assert engine.levers_off() == {"inert": "it is disabled here"}
        with pytest.raises(EngineFailure) as caught:
            refuse_levers_off(engine)
    assert caught.value.cause_id == "lever-off"
    assert "inert" in caught.value.cause


def test_a_refusal_before_the_engine_has_its_own_words(tmp_path: Path, catalog: Catalog) -> None:
    runner = runner_of(catalog)
    plan = plan_of(catalog, runner, "says-no")
    with pytest.raises(EngineFailure) as caught, runner.running(plan, tmp_path / "start", lambda what: None):
        pass
    assert caught.value.cause == "the model is not there"
    assert caught.value.remedy == "download it"
    assert caught.value.exit_code == 42


def test_a_start_without_end_is_ended_at_its_limit(tmp_path: Path, catalog: Catalog) -> None:
    runner = runner_of(catalog, start_limit_seconds=3)
    folder = tmp_path / "start"
    plan = plan_of(catalog, runner, "hangs")
    with pytest.raises(EngineFailure) as caught, runner.running(plan, folder, lambda what: None):
        pass
    assert "not ready within 3 s: it was in phase loading" in caught.value.cause
    assert caught.value.cause_id == "start-limit"
    assert caught.value.evidence == ("no log line for 9 s",)
    state = read_state(folder)
    assert state is not None
    assert not process_alive(state.pid)


def test_one_that_ends_while_it_serves_is_noticed(tmp_path: Path, catalog: Catalog) -> None:
    runner = runner_of(catalog)
    folder = tmp_path / "start"
    with runner.running(plan_of(catalog, runner, "fine"), folder, lambda what: None) as engine:
        state = read_state(folder)
        assert state is not None
        os.kill(state.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while engine.failure() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        failure = engine.failure()
    assert failure is not None
    assert failure.exit_code == -9


def test_serve_ends_when_the_campaign_is_killed(tmp_path: Path, catalog: Catalog) -> None:
    """The very thing kill -9 leaves no chance to do ourselves."""
    folder = tmp_path / "start"
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_serve_runner import Catalog, plan_of, runner_of
catalog = Catalog(Path({str(catalog.folder)!r}))
runner = runner_of(catalog)
with runner.running(plan_of(catalog, runner, "fine"), Path({str(folder)!r}), lambda what: None):
    print("up", flush=True)
    sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    state = read_state(folder)
    assert state is not None
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while process_alive(state.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not process_alive(state.pid)


def test_a_taken_port_is_waited_for_then_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        words: list[str] = []
        with pytest.raises(DeployKitError) as caught:
            wait_for_port("127.0.0.1", taken.getsockname()[1], 0.6, words.append)
    assert caught.value.exit_code == ExitCode.PORT_TAKEN
    assert len(words) == 1


def write_campaign(folder: Path, *levers: str) -> Path:
    file = folder / "campaign.toml"
    lines = [
        'name = "x"',
        'description = "d"',
        'question = "q"',
        "[base]",
        'profile = "baseline"',
        'host = "rehearsal"',
    ]
    lines += [f'[[lever]]\nname = "{name}"' for name in levers]
    file.write_text("\n".join(lines) + "\n")
    return file


def test_the_command_shows_its_plan_and_asks_nobody_who_is_not_there(
    tmp_path: Path, catalog: Catalog
) -> None:
    file = write_campaign(tmp_path, "fine", "crashes")
    words = [str(file), "--state", str(tmp_path / "state"), "--configs", str(catalog.folder)]
    shown = CliRunner().invoke(app, [*words, "--dry-run", "--json"], catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    answer = json.loads(shown.stdout)
    assert answer["left"]["cells"] == 2 * 3 * 2 + 3 * 2
    assert not (tmp_path / "state").exists(), "a dry run writes nothing"
    with pytest.raises(DeployKitError, match="nobody can be asked") as caught:
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert caught.value.exit_code == ExitCode.USAGE
    with pytest.raises(DeployKitError, match="no such way to start engines"):
        CliRunner().invoke(app, [*words, "--engines", "kubernetes"], catch_exceptions=False)
