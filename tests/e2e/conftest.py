"""The deployment under test: this checkout's, on this machine's Docker."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docker/rehearsal/src"))

from deploy_kit_rehearsal import expect  # noqa: E402  (found by the line above)

PORTS = {"eagle3": 30000, "baseline": 30001, "ngram": 30002}
SERVICES = {"eagle3": "kimi-eagle", "baseline": "kimi-baseline", "ngram": "kimi-ngram"}


def run(*command: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout's root and return what it printed."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )


def deploy_kit(*arguments: str) -> Any:
    """Run `deploy-kit … --json`; return its answer, or fail with what it said."""
    done = run(sys.executable, "-m", "deploy_kit", *arguments, "--json")
    assert done.returncode == 0, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout)


@pytest.fixture(scope="session", autouse=True)
def _docker() -> None:
    try:
        answered = run("docker", "version").returncode == 0
    except FileNotFoundError:
        answered = False
    if not answered:
        pytest.skip("no container engine answers: `make up` starts one")


@dataclass(frozen=True)
class Deployment:
    """One profile that is up."""

    profile: str
    container: str
    url: str
    key: str
    answer: dict[str, Any]


def _is_up(deployment: Deployment) -> bool:
    state = run("docker", "inspect", "--format", "{{.State.Health.Status}}", deployment.container)
    return state.stdout.strip() == "healthy"


@pytest.fixture(scope="session")
def bring_up() -> Callable[[str], Deployment]:
    """Return a function that brings a profile up, unless it is the one that is up, and says where it is."""
    current: list[Deployment] = []

    def up(profile: str) -> Deployment:
        if current and current[-1].profile == profile and _is_up(current[-1]):
            return current[-1]
        answer = deploy_kit("up", "--profile", profile)
        report = answer["report"]
        deployment = Deployment(
            profile=profile,
            container=f"deploy-kit-{SERVICES[profile]}-1",
            url=report["url"].removesuffix("/v1"),
            key=Path(report["api_key_file"]).read_text().strip(),
            answer=answer,
        )
        current.append(deployment)
        return deployment

    return up


@pytest.fixture(scope="session")
def bench(
    bring_up: Callable[[str], Deployment], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Return a function that measures a profile once with `deploy-kit bench`, into the folder that the
    engines see, and returns the receipt's file."""
    measured: dict[str, Path] = {}

    def measure(profile: str) -> Path:
        if profile not in measured:
            deployment = bring_up(profile)
            report = deployment.answer["report"]
            plan = tmp_path_factory.mktemp("plan") / "plan.json"
            plan.write_text(json.dumps(deploy_kit("plan", profile, "--host", "rehearsal")))
            # One to eight streams: the plan's limit, so that whatever runs later lies between them.
            load = ("--concurrency", "1,2,4,8", "--rounds", "1", "--requests", "1", "--output-tokens", "96")
            answer = deploy_kit(
                "bench", deployment.url, "--plan", str(plan), *load,
                "--api-key-file", report["api_key_file"], "--receipts", report["receipts"],
            )  # fmt: skip
            measured[profile] = Path(answer["file"])
        return measured[profile]

    return measure


@pytest.fixture
def speech_of(tmp_path: Path) -> Callable[[Deployment], expect.Speech]:
    """Return a function that says what a deployment's target speaks, from the container itself."""

    def load(deployment: Deployment) -> expect.Speech:
        folder = tmp_path / "target"
        folder.mkdir()
        return expect.load_speech(copy_out(deployment, "target", folder))

    return load


def copy_out(deployment: Deployment, model: str, into: Path) -> Path:
    """Copy the manifest of one of the rehearsal's models out of a container into a folder, and return it."""
    done = run("docker", "exec", deployment.container, "cat", f"/opt/rehearsal/models/{model}/rehearsal.json")
    assert done.returncode == 0, done.stderr
    (into / "rehearsal.json").write_text(done.stdout)
    return into
