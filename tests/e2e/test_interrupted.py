"""`deploy-kit up` killed in the middle of a step, then run again: the next run completes what was begun."""

import os
import signal
import subprocess
import sys
import time

import pytest

from .conftest import ROOT, deploy_kit

pytestmark = [pytest.mark.docker, pytest.mark.engine, pytest.mark.slow]

# Steps that are said when they begin. The engine's start is the one with most to lose.
STEPS = ["Build the image", "Start the engine", "Start the monitoring"]


def _kill_up_during(step: str, *, after_seconds: float = 1.0) -> str:
    """Start `deploy-kit up`, kill all of it a moment after `step` begins; return what it had said."""
    process = subprocess.Popen(
        [sys.executable, "-m", "deploy_kit", "up"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    said: list[str] = []
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        if step in line:
            break
    time.sleep(after_seconds)
    os.killpg(process.pid, signal.SIGKILL)
    process.stderr.close()
    process.wait(timeout=30)
    return "".join(said)


@pytest.mark.timeout(900)
@pytest.mark.skipif(not os.environ.get("KIT_SLOW"), reason="three deployments a step: KIT_SLOW=1 runs it")
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_it_is_completed_by_the_next_run(step: str) -> None:
    deploy_kit("down", "--keep-docker")

    said = _kill_up_during(step)

    assert step in said, f"the step never began:\n{said}"
    answer = deploy_kit("up")
    assert int(answer["report"]["completion_tokens"]) > 0
    assert deploy_kit("up")["changed"] == 0
    leftover = [path for path in (ROOT / "var").rglob("*") if path.name.endswith((".tmp", ".part"))]
    assert leftover == []
