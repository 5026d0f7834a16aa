"""What a roll shows: which step a task is, what became of it, how far an engine's start is."""

import io
import json

from rich.console import Console

from deploy_kit.deploy.fleet import describe_hosts
from deploy_kit.deploy.fleet_progress import FleetProgress, HostSteps, engine_words
from deploy_kit.deploy.playbook import PlaybookRun


def event(kind: str, task: str, **result: object) -> dict[str, object]:
    return {"event": kind, "event_data": {"host": "box-1", "task": f"roll : {task}", "res": result}}


def test_a_step_that_changed_or_failed_stays_so() -> None:
    one = HostSteps()
    for word in ("running", "ok", "changed", "ok", "failed", "changed"):
        one.mark("drain", word)
    assert one.steps == {"drain": "failed"}


def test_a_look_at_a_starting_engine_is_words_and_a_ratio() -> None:
    seen = {
        "in_progress": {"phase": "trial"},
        "engine": {
            "state": {"phase": "loading", "details": {"progress_ratio": 0.5, "progress_text": "32/64 shards"}}
        },
    }
    assert engine_words({"stdout": json.dumps(seen)}) == ("trial, loading, 32/64 shards", 0.5)
    assert engine_words({"stdout": "no JSON"}) == ("", None)
    assert engine_words({"stdout": "[]"}) == ("", None)


def test_the_table_has_a_row_a_host_and_a_bar() -> None:
    progress, run = FleetProgress(), PlaybookRun()
    seen = {
        "engine": {"state": {"phase": "loading", "details": {"progress_ratio": 0.5, "progress_text": "1/2"}}}
    }
    progress.show(run, event("runner_on_ok", "Gateway, drain", changed=True))
    progress.show(run, event("runner_on_start", "Wait until the new plan answers a completion"))
    progress.show(
        run, event("runner_retry", "Wait until the new plan answers a completion", stdout=json.dumps(seen))
    )
    console = Console(width=120, record=True, force_terminal=False, file=io.StringIO())
    console.print(progress.render())
    text = console.export_text()
    assert "box-1" in text
    assert "1/2" in text
    assert progress.hosts["box-1"].steps == {"drain": "changed", "ready": "running"}


def test_a_hosts_status_names_what_is_wrong() -> None:
    lines = describe_hosts(
        {
            "box-2": {"ready": False, "error": "unreachable"},
            "box-1": {
                "ready": True,
                "current": {"profile": "eagle3", "plan_id": "p", "since": "s"},
                "last": {"release": "r", "outcome": "restored", "failure": "no kernel\nlines"},
                "gateway": {"gateway-1": "ready"},
            },
        }
    )
    assert lines[0].startswith("box-1        ready; eagle3, plan p, since s; gateway gateway-1: ready")
    assert "restored (no kernel)" in lines[1]
    assert "unreachable" in lines[2]
