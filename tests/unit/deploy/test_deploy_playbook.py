"""Ansible's events become steps, changes, a report, or one error with its code."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.deploy.playbook import PlaybookRun, failure, failure_text
from deploy_kit.exit_codes import ExitCode


def event(kind: str, **data: Any) -> dict[str, Any]:
    return {"event": kind, "event_data": data}


def test_a_run_that_changes_something() -> None:
    run = PlaybookRun()
    run.take(event("playbook_on_task_start", task="engine : Start the engine"))
    assert run.step == "Start the engine"
    run.take(event("runner_on_ok", task="engine : Start the engine", host="h", res={"changed": True}))
    run.take(
        event("runner_on_ok", task="Say", task_action="ansible.builtin.debug", res={"msg": "REHEARSAL: so"})
    )
    run.take(
        event(
            "playbook_on_stats",
            ok={"h": 3},
            changed={"h": 1},
            artifact_data={"deploy_kit": {"h": {"profile": "eagle3"}}},
        )
    )
    assert run.changed == 1
    assert run.changed_tasks == ["Start the engine"]
    assert run.remarks == ["REHEARSAL: so"]
    assert run.reports == {"h": {"profile": "eagle3"}}


def failed(message: str, **result: Any) -> PlaybookRun:
    run = PlaybookRun()
    run.take(
        event("runner_on_failed", task="engine : Refuse", host="localhost", res={"msg": message, **result})
    )
    return run


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("Port 1 is taken. (exit code 12)", ExitCode.PORT_TAKEN),
        ("no GPU (exit code 11)", ExitCode.NO_GPU),
        ("it ended (exit code 42)\nmore", ExitCode.ENGINE_WEIGHTS),
        ("strange (exit code 99)", ExitCode.DEPLOY_FAILED),
        ("no code at all", ExitCode.DEPLOY_FAILED),
    ],
)
def test_a_step_names_the_exit_code(message: str, code: ExitCode) -> None:
    error = failure(failed(message))
    assert error.exit_code == code
    assert "Refuse" in error.summary
    assert "exit code" not in (error.found or "")


def test_docker_s_own_words_are_explained() -> None:
    said = "Error response from daemon: Bind for 127.0.0.1:30000 failed: port is already allocated"
    error = failure(failed(said))
    assert "port" in error.summary.lower()
    assert error.remedy


def test_a_failure_that_was_ignored_is_none() -> None:
    run = PlaybookRun()
    run.take(event("runner_on_failed", task="t", ignore_errors=True, res={"msg": "x"}))
    assert run.failed_step is None


def test_a_command_s_last_lines_are_shown_once() -> None:
    text = failure_text({"msg": "non-zero return code", "stderr": "\n".join(f"line {n}" for n in range(40))})
    assert "line 39" in text
    assert "line 20" not in text
    assert failure_text({"msg": "\x1b[2Kline"}) == "line"
    assert failure_text({}) == "no word why"


def test_the_code_of_our_own_command_is_passed_on() -> None:
    command = ["python", "-m", "deploy_kit.deploy.images", "build"]
    error = failure(failed("non-zero return code", rc=13, cmd=command, stderr="the disk is full"))
    assert error.exit_code == ExitCode.DISK_FULL
    assert failure(failed("non-zero return code", rc=13, cmd=["x"])).exit_code == ExitCode.DEPLOY_FAILED


@given(
    st.dictionaries(
        st.sampled_from(["task", "host", "res", "ok", "changed", "artifact_data", "ignore_errors"]),
        st.one_of(st.none(), st.text(max_size=5).map(lambda s: {s: {}}), st.just({})),
    ),
    st.sampled_from(["runner_on_ok", "runner_on_failed", "playbook_on_task_start", "verbose", ""]),
)
def test_no_event_is_too_odd(data: dict[str, Any], kind: str) -> None:
    PlaybookRun().take({"event": kind, "event_data": data})
