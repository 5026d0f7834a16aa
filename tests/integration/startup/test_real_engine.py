"""Faults of the real SGLang on its CPU back end, under `deploy-kit serve`; inside the engine's environment.

Each start costs 15 to 60 s, so there are few; the stand-in (test_supervisor.py) has the others.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("torch", "sglang", "deploy_kit_rehearsal")),
        reason="runs inside the engine's environment",
    ),
]
ROOT = Path(__file__).parents[3]
START_SECONDS = 240.0


class Serve:
    """`deploy-kit serve` with configurations and models of its own."""

    def __init__(self, folder: Path, models: Path) -> None:
        self.folder, self.models = folder, folder / "models"
        shutil.copytree(models, self.models)
        self.configs = folder / "configs"
        shutil.copytree(ROOT / "configs", self.configs)
        self.model_file = self.configs / "models" / "rehearsal-tiny.toml"
        self.edit("/opt/rehearsal/models", str(self.models))
        self.state_folder = folder / "state"
        self.process: subprocess.Popen[bytes] | None = None

    def edit(self, old: str, new: str) -> None:
        text = self.model_file.read_text()
        assert old in text
        self.model_file.write_text(text.replace(old, new))

    def start(self, profile: str) -> None:
        with socket.socket() as a, socket.socket() as b:
            a.bind(("127.0.0.1", 0))
            b.bind(("127.0.0.1", 0))
            self.port, exporter = a.getsockname()[1], b.getsockname()[1]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DEPLOY_KIT_CONFIGS": str(self.configs),
            "DEPLOY_KIT_HOST": "rehearsal",
            "DEPLOY_KIT_STATE_DIR": str(self.state_folder),
            "DEPLOY_KIT_PORT": str(self.port),
            "DEPLOY_KIT_EXPORTER_PORT": str(exporter),
            "SGLANG_PLUGINS": "deploy_kit_rehearsal",
        }
        self.log = (self.folder / "log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "deploy_kit", "serve", profile, "--allow-missing-telemetry"],
            env=environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    def state(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads((self.state_folder / "state.json").read_text())
        except (OSError, ValueError):
            return {}
        return state

    def tail(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    def wait(self, condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process is not None
            assert self.process.poll() is None, self.tail()
            assert time.monotonic() < deadline, self.tail()
            time.sleep(0.1)

    def end(self, seconds: float = START_SECONDS) -> int:
        assert self.process is not None
        code = self.process.wait(timeout=seconds)
        group = self.state().get("engine_pid")
        if group is not None:
            from deploy_kit.runtime.child import living_members

            assert living_members(int(group)) == []
        return code

    def cause_id(self) -> str:
        content = json.loads((self.state_folder / "post-mortem.json").read_text())
        return str(content["explanation"]["cause_id"])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from deploy_kit_rehearsal.builder import build_models

    folder = tmp_path_factory.mktemp("models") / "models"
    build_models(folder)
    return folder


@pytest.fixture
def serve(tmp_path: Path, built: Path) -> Iterator[Serve]:
    running = Serve(tmp_path, built)
    yield running
    if running.process is not None and running.process.poll() is None:
        running.process.kill()
        running.process.wait()


def test_a_wrong_flag(serve: Serve) -> None:
    serve.edit("context-length = 2048", "context-length = 2048\nno-such-flag-of-sglang = 1")
    serve.start("baseline")
    assert serve.end() == 41
    assert serve.cause_id() == "flag"


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


def test_ready_stopped_killed(serve: Serve) -> None:
    """One start for three: the time to readiness, SIGSTOP and SIGCONT, SIGKILL of the scheduler."""
    from deploy_kit.runtime.process_facts import look_at_group

    serve.start("baseline")
    serve.wait(lambda: serve.state().get("phase") == "serving")
    assert "fired up and ready" in (serve.folder / "log").read_text(errors="replace")
    group = int(serve.state()["engine_pid"])
    schedulers = look_at_group(group).schedulers
    assert len(schedulers) == 1
    os.kill(next(iter(schedulers)), signal.SIGSTOP)
    serve.wait(lambda: bool(serve.state()["details"]["stalled"]), 6.0)
    os.kill(next(iter(schedulers)), signal.SIGCONT)
    serve.wait(lambda: not serve.state()["details"]["stalled"], 6.0)
    os.kill(next(iter(schedulers)), signal.SIGKILL)
    deadline = time.monotonic() + 5
    while serve.state().get("details", {}).get("cause") is None and serve.state().get("cause") is None:
        assert time.monotonic() < deadline, serve.tail()
        time.sleep(0.1)
    assert serve.end() == 36
    assert serve.cause_id() == "killed"


def test_stopped_while_it_loads(serve: Serve) -> None:
    serve.start("baseline")
    serve.wait(lambda: serve.state().get("engine_pid") is not None)
    time.sleep(3)
    assert serve.process is not None
    serve.process.send_signal(signal.SIGTERM)
    assert serve.end(70) == 0
    assert serve.state()["cause"].startswith("stopped as asked")
