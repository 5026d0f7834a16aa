"""The supervisor with a stand-in engine: every end has its state, cause and code; nothing is left behind."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy_kit.configs.catalog import Catalog
from deploy_kit.exit_codes import ExitCode
from deploy_kit.exporter.facts import PlanFacts
from deploy_kit.exporter.server import start_exporter
from deploy_kit.plan.model import Plan
from deploy_kit.plan.resolve import resolve
from deploy_kit.runtime import supervisor as supervisor_module
from deploy_kit.runtime.child import Engine, living_members
from deploy_kit.runtime.levers_off import LeversOff
from deploy_kit.runtime.readiness import healthy, look
from deploy_kit.runtime.state import EngineState, read_state
from deploy_kit.runtime.supervisor import Supervisor
from deploy_kit.startup.status import StatusBoard

STANDIN = Path(__file__).with_name("standin_engine.py")
ROOT = Path(__file__).parents[3]
SECRET = "k-stand-in-0123456789"
STOPPED_SEEN_SECONDS = 30.0  # a few seconds on a quiet machine


class Running:
    """A supervisor in a thread, with a stand-in engine."""

    def __init__(
        self,
        folder: Path,
        scenario: str,
        *,
        output: io.BufferedIOBase | None = None,
        starts: bool = False,
        **more: object,
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = output if output is not None else io.BytesIO()
        self.engine: Engine | None = None
        self.board = StatusBoard()
        self.said: list[str] = []
        self.code: int | None = None
        plan: Plan = replace(
            resolve(Catalog(ROOT / "configs"), "baseline", host="rehearsal"),
            served_model_name="stand-in",
            port=self.port,
        )

        def start(observer: Callable[[bytes], None]) -> Engine:
            self.engine = Engine(
                [sys.executable, str(STANDIN), str(self.port), scenario],
                dict(os.environ),
                secret=SECRET,
                observer=observer,
                output=self.output,  # type: ignore[arg-type]
            )
            return self.engine

        self.supervisor = Supervisor(
            plan,
            folder,
            start=start,
            look=lambda: look(self.url, "stand-in", api_key=None, timeout_seconds=2.0),
            healthy=lambda: healthy(self.url, api_key=None, timeout_seconds=2.0),
            board=self.board,
            environment={"HF_TOKEN": "hf_abcdefghijklmn"},
            secret=SECRET,
            starts=folder / "starts" if starts else None,
            say=self.said.append,
            **more,  # type: ignore[arg-type]
        )
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.code = self.supervisor.run()

    def state(self) -> EngineState:
        state = read_state(self.folder)
        assert state is not None
        return state

    def wait(self, condition: Callable[[], bool], seconds: float = 90.0) -> float:
        started = time.monotonic()
        while not condition():
            assert time.monotonic() - started < seconds, (self.board.read(), self.said)
            time.sleep(0.02)
        return time.monotonic() - started

    def wait_ready(self) -> None:
        self.wait(lambda: read_state(self.folder) is not None and self.state().ready)

    def wait_end(self, seconds: float = 90.0) -> int:
        self.thread.join(timeout=seconds)
        assert self.code is not None, (self.board.read(), self.said)
        assert self.engine is not None
        assert living_members(self.engine.pid) == []
        return self.code

    def post_mortem(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "post-mortem.json").read_text())
        return content


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def make(scenario: str, **more: object) -> Running:
        running = Running(tmp_path, scenario, **more)  # type: ignore[arg-type]
        started.append(running)
        return running

    yield make
    for running in started:
        if running.thread.is_alive():
            running.supervisor.request_stop(signal.SIGTERM)
            running.supervisor.request_stop(signal.SIGTERM)
            running.thread.join(timeout=90)


def test_ready_only_after_a_real_completion(run: Callable[..., Running]) -> None:
    running = run("ready")
    running.wait_ready()
    status = running.board.read()
    assert status.phase == "serving"
    assert set(status.phase_seconds) >= {"starting", "serving"}
    running.supervisor.request_stop(signal.SIGTERM)
    assert running.wait_end() == 0
    assert running.state().cause == "stopped as asked"
    assert not (running.folder / "post-mortem.json").exists()


def test_a_lever_that_the_engine_leaves_off_is_said_and_in_the_state(run: Callable[..., Running]) -> None:
    running = run(
        "ready", levers_off=LeversOff({"a-lever": ["a-lever is disabled here"], "other": ["nothing of it"]})
    )
    running.wait_ready()
    assert running.state().details["levers_off"] == {}
    # In two pieces, and after readiness: some all-reduces give up only when they are first needed.
    running.supervisor._observe(b"[TP0] a-lever is dis")
    running.supervisor._observe(b"abled here, falling back\n")
    line = "[TP0] a-lever is disabled here, falling back"
    running.wait(lambda: running.state().details["levers_off"] == {"a-lever": line})
    assert f"lever a-lever is off: the engine says: {line}" in running.said
    running.supervisor.request_stop(signal.SIGTERM)
    running.wait_end()


def test_health_that_is_green_too_early_is_not_ready(run: Callable[..., Running]) -> None:
    running = run("health-early")
    running.wait(lambda: running.board.read().phase == "warming")
    time.sleep(3)
    assert not running.state().ready
    assert running.board.read().phase == "warming"


@pytest.mark.parametrize(
    ("scenario", "code", "cause"),
    [
        ("usage", ExitCode.ENGINE_FLAG, "flag"),
        ("oom", ExitCode.ENGINE_OOM, "oom-load"),
        ("killed-loading", ExitCode.ENGINE_KILLED, "killed"),
        ("segfault", ExitCode.ENGINE_DIED, "segfault"),
        ("exits-zero", ExitCode.ENGINE_DIED, "unknown"),
    ],
)
def test_an_end_has_its_cause_and_code(
    run: Callable[..., Running], scenario: str, code: ExitCode, cause: str
) -> None:
    running = run(scenario)
    assert running.wait_end() == code
    state = running.state()
    assert (state.phase, state.exit_code) == ("exited", code)
    assert running.board.read().exits == {cause: 1}
    report = running.post_mortem()
    assert report["explanation"]["cause_id"] == cause  # type: ignore[index]
    text = json.dumps(report)
    assert SECRET not in text
    assert "hf_abcdefghijklmn" not in text
    assert report["last_lines"]


def test_health_lies_after_the_scheduler_died(
    run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "LAST_WORDS_SECONDS", 2.0)
    running = run("health-lies")
    running.wait_ready()
    running.wait(lambda: running.board.read().cause is not None)
    assert "illegal memory access" in (running.board.read().cause or "")
    assert httpx.get(f"{running.url}/health").status_code == 200
    assert running.wait_end() == ExitCode.ENGINE_DIED
    assert running.board.read().exits == {"cuda-fault": 1}


@pytest.mark.parametrize("scenario", ["hang-init", "hang-loading", "hang-capture"])
def test_a_stopped_process_is_stalled_and_goes_on(run: Callable[..., Running], scenario: str) -> None:
    running = run(scenario)
    running.wait(lambda: running.engine is not None and running.engine.relay.bytes_seen > 50)
    time.sleep(1.0)
    assert running.engine is not None
    os.kill(running.engine.pid, signal.SIGSTOP)
    # Seen as stopped, not after the minutes of silence that a load may have.
    assert running.wait(lambda: running.board.read().stalled) < STOPPED_SEEN_SECONDS
    assert any("SIGSTOP" in check for check in running.board.read().stalled_checks)
    os.kill(running.engine.pid, signal.SIGCONT)
    assert running.wait(lambda: not running.board.read().stalled) < STOPPED_SEEN_SECONDS


def test_a_hang_is_ended_only_when_asked(
    run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "IDLE_AFTER_SECONDS", 3.0)
    running = run("hang-loading", stop_hung_seconds=4.0)
    running.wait(lambda: running.board.read().stalled)
    assert running.board.read().phase == "loading"
    assert running.wait_end() == ExitCode.ENGINE_HUNG
    assert running.post_mortem()["explanation"]["verdict"] == "hung"  # type: ignore[index]


def test_accepted_requests_are_answered_while_draining(run: Callable[..., Running]) -> None:
    running = run("slow")
    running.wait_ready()
    time.sleep(2.0)
    answers: list[int] = []
    body = {"model": "stand-in", "prompt": "x"}

    def ask() -> None:
        answers.append(httpx.post(f"{running.url}/v1/completions", json=body, timeout=20).status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.5)
    running.supervisor.request_stop(signal.SIGTERM)
    running.wait(lambda: running.board.read().phase == "draining")
    running.wait(lambda: not running.state().ready)  # the file follows the board by a moment
    assert httpx.post(f"{running.url}/v1/completions", json=body).status_code == 503
    asking.join(timeout=90)
    assert answers == [200]
    assert running.wait_end() == 0


def test_the_grace_time_ends(run: Callable[..., Running]) -> None:
    running = run("ignores-sigterm", drain_seconds=1.0)
    running.wait_ready()
    running.supervisor.request_stop(signal.SIGTERM)
    assert running.wait_end() == 0
    assert running.state().cause == "stopped as asked (it had not finished after 1 s, and was ended)"


def test_the_exporter_shows_the_start_and_the_end(run: Callable[..., Running]) -> None:
    """The metrics that the issue names, scraped from the exporter over HTTP."""
    running = run("hang-loading", starts=True)
    exporter = start_exporter(
        0,
        address="127.0.0.1",
        engine_url=running.url,
        plan=PlanFacts("p", "baseline", "s", "m", "h", rehearsal=True, speculative=False),
        startup=running.board.read,
    )

    def scrape() -> dict[str, float]:
        text = httpx.get(f"http://127.0.0.1:{exporter.port}/metrics", timeout=20).text
        lines = (line for line in text.splitlines() if line.startswith("deploy_kit_"))
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    try:
        running.wait(lambda: running.board.read().phase == "loading")
        running.wait(lambda: (running.board.read().progress_ratio or 0) > 0)
        found = scrape()
        assert found['deploy_kit_startup_phase{phase="loading"}'] == 1
        assert sum(v for k, v in found.items() if k.startswith("deploy_kit_startup_phase{")) == 1
        assert 0 < found["deploy_kit_startup_progress_ratio"] <= 1
        assert found['deploy_kit_startup_seconds{phase="starting"}'] > 0
        assert found['deploy_kit_startup_seconds{phase="loading"}'] > 0
        assert found["deploy_kit_startup_stalled"] == 0
        assert running.engine is not None
        os.kill(running.engine.pid, signal.SIGKILL)
        assert running.wait_end() == ExitCode.ENGINE_KILLED
        found = scrape()
        assert found['deploy_kit_startup_phase{phase="exited"}'] == 1
        assert found['deploy_kit_engine_exits_total{cause="killed"}'] == 1
    finally:
        exporter.stop()
    # The process that counted ends too: the next one goes on from there.
    again = run("killed-loading", starts=True)
    assert again.wait_end() == ExitCode.ENGINE_KILLED
    assert again.board.read().exits == {"killed": 2}


def test_the_post_mortem_holds_all_that_is_needed(run: Callable[..., Running]) -> None:
    running = run("oom")
    assert running.wait_end() == ExitCode.ENGINE_OOM
    report: dict[str, Any] = running.post_mortem()
    explanation = report["explanation"]
    assert explanation["cause_id"] == "oom-load"
    assert "GPU 2 first" in explanation["cause"]
    assert any("CUDA out of memory" in line for line in explanation["evidence"])
    assert explanation["remedy"]
    assert report["plan"]["plan_id"] == running.state().plan_id
    assert "sglang.launch_server" in report["plan"]["argv"]
    assert {"kernel", "memory_bytes", "cpus", "shm_bytes", "driver", "gpus"} <= set(report["host"])
    assert report["phase_seconds"]["loading"] > 0
    lines = [line for ring in report["last_lines"].values() for line in ring]
    assert any("Load weight begin" in line for line in lines)
    assert report["environment"] == {"HF_TOKEN": "[secret]"}
    assert SECRET not in json.dumps(report)


def test_a_phase_between_two_looks_is_counted(
    run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy_kit.runtime.supervisor.TICK_SECONDS", 3.0)
    running = run("oom")
    assert running.wait_end() == ExitCode.ENGINE_OOM
    seconds = running.post_mortem()["phase_seconds"]
    assert seconds["loading"] > 0
    assert "exited" not in seconds


def test_a_start_is_kept_and_expected_the_next_time(run: Callable[..., Running]) -> None:
    first = run("ready", starts=True)
    first.wait_ready()
    first.supervisor.request_stop(signal.SIGTERM)
    assert first.wait_end() == 0
    second = run("ready", starts=True)
    second.wait_ready()
    status = second.board.read()
    assert status.expected_seconds is not None
    assert status.expected_seconds > 0
    assert status.expected_from is not None
    assert "1 earlier start of this plan" in status.expected_from
    assert second.state().details["expected_seconds"] == status.expected_seconds


def test_a_state_folder_that_cannot_be_written_ends_nothing(run: Callable[..., Running]) -> None:
    running = run("ready", starts=True)
    running.wait_ready()
    # The start is noted once, just after readiness, and would make the folder anew.
    running.wait(lambda: any(running.folder.rglob("starts.jsonl")))
    moved = running.folder.with_name("moved")
    running.folder.rename(moved)
    try:
        running.wait(lambda: any("state file is not written" in said for said in running.said))
        assert running.engine is not None
        assert running.engine.poll() is None
    finally:
        moved.rename(running.folder)
    running.supervisor.request_stop(signal.SIGTERM)
    assert running.wait_end() == 0


def test_no_orphan_is_left(run: Callable[..., Running]) -> None:
    running = run("orphan")
    running.wait_ready()
    assert running.engine is not None
    assert len(living_members(running.engine.pid)) == 2
    os.kill(running.engine.pid, signal.SIGKILL)
    assert running.wait_end() == ExitCode.ENGINE_KILLED


def test_a_reader_that_does_not_read_holds_nothing_up(run: Callable[..., Running]) -> None:
    reading, writing = os.pipe()
    stuck = os.fdopen(writing, "wb", buffering=0)
    try:
        running = run("flood", output=stuck)
        running.wait_ready()
        assert running.engine is not None
        relay = running.engine.relay
        running.wait(lambda: relay.bytes_seen > 30_000_000)  # far beyond pipe and buffers
        assert running.board.read().phase == "serving"
        running.supervisor.request_stop(signal.SIGTERM)
        running.thread.join(timeout=90)
        assert running.code == 0
    finally:
        os.close(reading)
        stuck.close()
