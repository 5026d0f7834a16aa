"""Faults of the real SGLang on its CPU back end, under `deploy-kit serve`; inside the engine's environment.

Each start costs 10 to 40 s, so starts are shared; test_real_engine_slow.py has the rest, test_supervisor.py
faults that a stand-in shows as well, test_container_faults.py those that need a container around it.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import httpx
import pytest

from deploy_kit.runtime.process_facts import look_at_group

if TYPE_CHECKING:
    from real_engine import Serve

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),  # a start takes 15 s, and minutes where ten others want the same two cores
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("torch", "sglang", "deploy_kit_rehearsal")),
        reason="runs inside the engine's environment",
    ),
]
# What must be known, is known within this time (seconds).
KNOWN_SECONDS = 5.0


def stop_and_continue(serve: Serve, pid: int) -> tuple[float, float]:
    """SIGSTOP, then SIGCONT; return the seconds until "stalled" and until it is no longer."""
    os.kill(pid, signal.SIGSTOP)
    stalled = serve.wait(lambda: bool(serve.details().get("stalled")), 30.0)
    assert any("SIGSTOP" in check for check in serve.details()["stalled_checks"])
    os.kill(pid, signal.SIGCONT)
    return stalled, serve.wait(lambda: not serve.details().get("stalled"), 30.0)


# -------------------------------------------------------------------- refused before the engine is started


def test_the_port_is_taken(serve: Serve) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        serve.start("baseline", port=taken.getsockname()[1])
        assert serve.end() == 12
    assert serve.state() == {}  # no engine was started
    assert f"port {serve.port}" in serve.tail()


def test_the_drafter_is_missing(serve: Serve) -> None:
    (serve.models / "drafters" / "accept-2.75").rename(serve.models / "moved")
    serve.start("eagle3")
    assert serve.end() == 43
    assert "the drafter is not there" in serve.tail()
    assert serve.state() == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything: this needs another user")
def test_the_model_cannot_be_read(serve: Serve) -> None:
    target = serve.models / "target"
    for path, mode in ((target, 0o000), (serve.models, 0o000), (next(target.glob("*.safetensors")), 0o000)):
        before = path.stat().st_mode
        path.chmod(mode)
        try:
            serve.start("baseline")
            assert serve.end() == 42
        finally:
            path.chmod(before)
        assert "Traceback" not in serve.tail()
        assert "may not" in serve.tail() or "cannot be read" in serve.tail()


# -------------------------------------------------------------------- refused by the engine


def test_a_wrong_flag(serve: Serve) -> None:
    serve.edit("context-length = 2048", "context-length = 2048\nno-such-flag-of-sglang = 1")
    serve.start("baseline")
    assert serve.end() == 41
    assert serve.cause_id() == "flag"
    assert "no-such-flag-of-sglang" in json.dumps(serve.post_mortem()["explanation"])


def test_truncated_weights(serve: Serve) -> None:
    file = next((serve.models / "target").glob("*.safetensors"))
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    serve.start("baseline")
    assert serve.end() == 42
    assert serve.cause_id() == "weights-incomplete"


def test_a_drafter_of_another_hidden_size(serve: Serve) -> None:
    file = serve.models / "drafters" / "accept-2.75" / "config.json"
    config = json.loads(file.read_text())
    config["hidden_size"] *= 2
    file.write_text(json.dumps(config))
    serve.start("eagle3")
    assert serve.end() == 43
    assert serve.cause_id() == "drafter-mismatch"


def test_the_port_is_taken_while_it_loads(serve: Serve) -> None:
    """The race that no check before the start can see."""
    serve.hold("loading")
    serve.start("baseline")
    serve.wait_held("loading")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", serve.port))
        taken.listen()
        serve.release("loading")
        assert serve.end() == 35
    assert serve.cause_id() == "port-taken"
    assert serve.state()["phase"] == "exited"


# -------------------------------------------------------------------- killed


@pytest.mark.parametrize("phase", ["starting", "loading", "warming"])
def test_the_launcher_is_killed(serve: Serve, phase: str) -> None:
    place = {"starting": "starting", "loading": "loading", "warming": "batch"}[phase]
    serve.hold(place)
    serve.start("baseline")
    serve.wait_held(place)
    serve.wait_phase(phase, 20.0)
    os.kill(serve.group, signal.SIGKILL)
    assert serve.wait_cause(20.0) < KNOWN_SECONDS
    assert serve.end() == 36
    assert serve.cause_id() == "killed"
    assert f"in phase {phase}" in serve.state()["cause"]
    assert serve.state()["phase"] == "exited"


def test_a_scheduler_is_killed_while_nobody_reads_the_log(serve: Serve) -> None:
    """Our output is a full pipe that nobody reads; the engine still starts, and its end is still judged."""
    reading, writing = os.pipe()
    try:
        flags = fcntl.fcntl(writing, fcntl.F_GETFL)
        fcntl.fcntl(writing, fcntl.F_SETFL, flags | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while True:
                os.write(writing, b"x" * 4096)
        fcntl.fcntl(writing, fcntl.F_SETFL, flags)
        serve.start("baseline", output=writing)
        serve.wait_phase("serving")
        os.kill(serve.scheduler(), signal.SIGKILL)
        assert serve.wait_cause(20.0) < KNOWN_SECONDS
        assert serve.end() == 36
    finally:
        os.close(writing)
        os.close(reading)
    assert serve.cause_id() == "killed"


# -------------------------------------------------------------------- stopped


def test_it_is_asked_to_stop_while_it_loads(serve: Serve) -> None:
    serve.hold("loading")
    serve.start("baseline")
    serve.wait_held("loading")
    assert serve.process is not None
    started = time.monotonic()
    serve.process.send_signal(signal.SIGTERM)
    assert serve.end() == 0
    assert time.monotonic() - started < 30
    assert serve.state()["cause"] == "stopped as asked"
    assert not (serve.state_folder / "post-mortem.json").exists()


def test_one_life(serve: Serve) -> None:
    """SIGSTOP and SIGCONT in each phase, readiness soon after the engine's own, SIGTERM under load."""
    for place in ("starting", "loading", "allocating", "batch"):
        serve.hold(place)
    serve.start("baseline")
    for phase, place in (
        ("starting", "starting"),
        ("loading", "loading"),
        ("allocating", "allocating"),
        ("warming", "batch"),
    ):
        pid = serve.wait_held(place)
        serve.wait_phase(phase, 20.0)
        stalled, going_on = stop_and_continue(serve, pid)
        assert stalled < KNOWN_SECONDS, phase
        assert going_on < KNOWN_SECONDS, phase
        assert serve.state()["ready_at_seconds"] is None
        serve.release(place)
    serve.wait(lambda: b"The server is fired up and ready to roll" in serve.log_bytes())
    lag = serve.wait_phase("serving")
    print(f"ready {lag:.2f} s after the engine's own word")
    assert lag < KNOWN_SECONDS  # 2 s on a quiet machine: test_real_engine_slow.py
    stalled, going_on = stop_and_continue(serve, serve.scheduler())
    assert stalled < KNOWN_SECONDS
    assert going_on < KNOWN_SECONDS
    starts = (serve.state_folder / "starts.jsonl").read_text().splitlines()
    assert len(starts) == 1
    assert json.loads(starts[0])["phase_seconds"]["loading"] > 0
    stop_under_load(serve)


def stop_under_load(serve: Serve) -> None:
    """SIGTERM with requests in flight: each is answered whole, or refused; nothing hangs."""
    url = f"http://127.0.0.1:{serve.port}/v1/completions"
    outcomes: list[str] = []

    def ask(tokens: int) -> None:
        body = {"model": "rehearsal-tiny", "prompt": "Ada builds", "max_tokens": tokens, "temperature": 0}
        try:
            answer = httpx.post(url, json=body, timeout=60)
        except httpx.ConnectError:
            outcomes.append("refused")
        except httpx.HTTPError as error:
            outcomes.append(f"broken: {type(error).__name__}")
        else:
            usage = answer.json().get("usage", {}) if answer.status_code == 200 else {}
            whole = usage.get("completion_tokens") == tokens
            outcomes.append("answered" if whole else f"status {answer.status_code}")

    accepted = [threading.Thread(target=ask, args=(300,)) for _ in range(6)]
    for thread in accepted:
        thread.start()
    time.sleep(1.0)
    assert serve.process is not None
    started = time.monotonic()
    serve.process.send_signal(signal.SIGTERM)
    serve.wait(lambda: serve.state().get("phase") == "draining", 20.0)
    late = threading.Thread(target=ask, args=(4,))
    late.start()
    assert serve.end(90) == 0
    drained = time.monotonic() - started
    for thread in (*accepted, late):
        thread.join(timeout=10)
    print(f"drained in {drained:.1f} s: {outcomes}")
    assert outcomes.count("answered") >= 6, outcomes
    assert all(one in ("answered", "refused") or one.startswith("status 5") for one in outcomes), outcomes
    assert serve.state()["cause"] == "stopped as asked"
    assert drained < 60


def test_nothing_of_the_engine_is_left_when_serve_itself_is_killed(serve: Serve) -> None:
    serve.hold("starting")
    serve.start("baseline")
    serve.wait_held("starting")
    group = serve.group
    assert serve.process is not None
    serve.process.kill()
    serve.process.wait()
    deadline = time.monotonic() + KNOWN_SECONDS
    while look_at_group(group).processes:
        assert time.monotonic() < deadline
        time.sleep(0.1)
