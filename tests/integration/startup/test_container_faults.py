"""Faults that need a container around the engine: a memory limit, `docker stop` during a load and under load.

They run where there is Docker and the image `deploy-kit/rehearsal-test:local` (`scripts/test.sh engine`
builds it). The kit inside is this checkout's, mounted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

IMAGE = os.environ.get("KIT_ENGINE_IMAGE", "deploy-kit/rehearsal-test:local")
START_SECONDS = 240.0
ROOT = Path(__file__).parents[3]


def docker(*arguments: str, check: bool = True, seconds: float = 120.0) -> str:
    """Run docker; return what it says."""
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=seconds, check=False
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout.strip()


def image_is_here() -> bool:
    if shutil.which("docker") is None:
        return False
    try:
        return bool(docker("image", "ls", "--quiet", IMAGE, check=False, seconds=20))
    except subprocess.TimeoutExpired:
        return False


pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("KIT_SLOW") or not image_is_here(),
        reason=f"needs KIT_SLOW=1, Docker and the image {IMAGE}",
    ),
]


KEY = "a-key-of-this-test"


class Container:
    """One engine in a container of its own."""

    def __init__(self, folder: Path) -> None:
        self.name = f"kit-fault-{uuid.uuid4().hex[:10]}"
        self.state_folder = folder / "state"
        self.state_folder.mkdir()
        self.state_folder.chmod(0o777)
        # An engine that listens beyond loopback needs a key; the container's user must be able to read it.
        self.key_file = folder / "key"
        self.key_file.write_text(KEY)
        self.key_file.chmod(0o644)

    def start(self, *options: str, profile: str = "baseline") -> None:
        """Start serving detached, with Docker's own options before the image."""
        environment = {
            "DEPLOY_KIT_STATE_DIR": "/state",
            "DEPLOY_KIT_ADDRESS": "0.0.0.0",
            "DEPLOY_KIT_API_KEY_FILE": "/key",
            "DEPLOY_KIT_ALLOW_MISSING_TELEMETRY": "1",
            "PYTHONPATH": "/src",
        }
        variables = [word for pair in environment.items() for word in ("--env", "=".join(pair))]
        docker(
            "run", "--detach", "--init", "--name", self.name, "--tmpfs", "/tmp:exec,mode=1777",
            "--volume", f"{self.state_folder}:/state", "--volume", f"{self.key_file}:/key:ro",
            "--volume", f"{ROOT}:/src:ro",
            "--publish", "127.0.0.1::30000", *variables, *options,
            "--entrypoint", "python", IMAGE, "-m", "deploy_kit", "serve", profile,
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Return the state file's content; empty while there is none."""
        try:
            state: dict[str, Any] = json.loads((self.state_folder / "state.json").read_text())
        except (OSError, ValueError):
            return {}
        return state

    def wait(self, condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Wait for a condition."""
        started = time.monotonic()
        while not condition():
            assert time.monotonic() - started < seconds, (self.state(), self.logs())
            time.sleep(0.1)

    def logs(self) -> str:
        """Return the end of the log."""
        return docker("logs", "--tail", "40", self.name, check=False)

    def running(self) -> bool:
        """Whether the container still runs."""
        return docker("inspect", "--format", "{{.State.Running}}", self.name) == "true"

    def exit_code(self, seconds: float) -> int:
        """Wait for the container's end; return its exit code."""
        return int(docker("wait", self.name, seconds=seconds))

    def url(self) -> str:
        """The engine's address on this machine."""
        return "http://" + docker("port", self.name, "30000/tcp").splitlines()[0]


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    running = Container(tmp_path)
    yield running
    docker("rm", "--force", running.name, check=False)


def test_the_memory_limit_is_hit(container: Container) -> None:
    container.start("--memory", "700m", "--memory-swap", "700m")
    code = container.exit_code(START_SECONDS)
    state = container.state()
    assert code == 36, (state, container.logs())
    assert state["phase"] == "exited"
    assert state["details"]["cause_id"] in ("killed-by-kernel", "host-memory"), state
    report = json.loads((container.state_folder / "post-mortem.json").read_text())
    assert report["host"]["memory_limit_bytes"] == 700 * 1024**2


def test_docker_stop_while_it_loads(container: Container) -> None:
    container.start()
    container.wait(lambda: container.state().get("engine_pid") is not None)
    time.sleep(3)
    started = time.monotonic()
    docker("stop", "--time", "75", container.name)
    assert time.monotonic() - started < 40
    assert container.exit_code(10) == 0
    assert container.state()["cause"] == "stopped as asked"


def test_docker_stop_under_load(container: Container) -> None:
    container.start()
    container.wait(lambda: container.state().get("phase") == "serving")
    url = f"{container.url()}/v1/completions"
    outcomes: list[str] = []

    def ask(tokens: int) -> None:
        body = {"model": "rehearsal-tiny", "prompt": "Ada builds", "max_tokens": tokens, "temperature": 0}
        request = urllib.request.Request(
            url,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=70) as answer:
                tokens_back = json.load(answer)["usage"]["completion_tokens"]
                outcomes.append("answered" if tokens_back == tokens else f"{tokens_back} tokens")
        except urllib.error.HTTPError as error:
            outcomes.append(f"status {error.code}")
        except OSError as error:
            outcomes.append(f"refused or broken: {error}")

    threads = [threading.Thread(target=ask, args=(300,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    started = time.monotonic()
    docker("stop", "--time", "75", container.name)
    stopped = time.monotonic() - started
    for thread in threads:
        thread.join(timeout=10)
    print(f"docker stop took {stopped:.1f} s: {outcomes}")
    assert outcomes == ["answered"] * 6
    assert stopped < 70  # within the grace time: Docker did not have to kill
    assert container.exit_code(10) == 0
    assert container.state()["cause"] == "stopped as asked"
