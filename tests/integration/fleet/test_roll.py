"""A fleet is deployed, deployed again, upgraded under load, refuses a broken image, and rolls back.

Three systemd containers as boxes, each with its own dockerd, and a gateway with smg and a registry
(hosts.py). The engines are stand-ins that answer OpenAI's API. The tests build on each other, in order.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .hosts import BOXES, GATEWAY, KEY, NAME, Client, Fleet, run, serving_versions

STARTED = "docker inspect -f '{{.State.StartedAt}}' deploy-kit-kimi-baseline-1"

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]


def test_before_the_first_deployment_there_is_nothing_to_return_to(fleet: Fleet, one: str) -> None:
    done = fleet.command("rollback", fleet.inventory(one))
    assert done.returncode == 14, done.stdout + done.stderr
    assert "nothing to return to" in json.loads(done.stdout)["found"]


def test_a_first_deployment_serves_on_every_box(fleet: Fleet, one: str) -> None:
    answer = fleet.deploy(one)
    assert set(answer["reports"]) == set(BOXES)
    assert serving_versions(fleet) == ["one"] * 3
    assert fleet.workers() == dict.fromkeys(BOXES, "ready")
    for box in BOXES:
        state = fleet.state(box)
        assert state["current"]["image"] == one
        assert state["in_progress"] is None
        assert fleet.on(box, "systemctl is-enabled deploy-kit-engine").strip() == "enabled"


def test_the_same_again_changes_nothing(fleet: Fleet, one: str) -> None:
    started = [
        fleet.on(box, "docker inspect -f '{{.State.StartedAt}}' deploy-kit-kimi-baseline-1") for box in BOXES
    ]
    answer = fleet.deploy(one)
    assert answer["changed"] == 0, answer["changed_steps"]
    again = [
        fleet.on(box, "docker inspect -f '{{.State.StartedAt}}' deploy-kit-kimi-baseline-1") for box in BOXES
    ]
    assert again == started


def test_an_upgrade_fails_no_request(fleet: Fleet, two: str) -> None:
    with Client(fleet.entrance) as client:
        fleet.deploy(two)
    assert not client.failures, client.failures[:3]
    assert sum(client.answers.values()) > 50
    assert {text.split()[1] for text in client.answers} == {"one", "two"}
    print(f"\nupgraded under load: {client.summary()}")
    assert serving_versions(fleet) == ["two"] * 3
    assert fleet.workers() == dict.fromkeys(BOXES, "ready")


def test_a_broken_image_is_taken_back_and_stops_the_roll(fleet: Fleet) -> None:
    before = [fleet.state(box)["current"] for box in BOXES]
    with Client(fleet.entrance) as client:
        done = fleet.command(
            "deploy", fleet.inventory(fleet.stand_in("broken", behaviour="exits", exit_code=41))
        )
    assert done.returncode == 41, done.stdout + done.stderr
    assert "unrecognized arguments" in json.loads(done.stdout)["found"]
    assert not client.failures, client.failures[:3]
    assert [fleet.state(box)["current"] for box in BOXES] == before
    assert fleet.state("box-1")["last"]["outcome"] == "restored"
    assert serving_versions(fleet) == ["two"] * 3
    assert fleet.workers() == dict.fromkeys(BOXES, "ready")


def test_an_image_that_refuses_the_flags_touches_no_engine(fleet: Fleet) -> None:
    started = fleet.on("box-1", STARTED)
    done = fleet.command("deploy", fleet.inventory(fleet.stand_in("unfit", behaviour="refuses")))
    assert done.returncode != 0
    assert fleet.on("box-1", STARTED) == started
    assert fleet.workers() == dict.fromkeys(BOXES, "ready")


def test_one_command_returns_to_the_previous_plan(fleet: Fleet, two: str) -> None:
    before = [fleet.state(box) for box in BOXES]
    shown = fleet.deploy(two, "--dry-run", command="rollback")
    assert shown["changed"] == 0, shown["changed_steps"]
    for box, state in zip(BOXES, before, strict=True):
        way = f"{box}: {state['current']['release']} → {state['previous']['release']}"
        assert any(remark.startswith(way) for remark in shown["remarks"]), shown["remarks"]
    assert [fleet.state(box) for box in BOXES] == before
    with Client(fleet.entrance) as client:
        fleet.deploy(two, command="rollback")
    assert not client.failures, client.failures[:3]
    assert serving_versions(fleet) == ["one"] * 3
    assert fleet.state("box-1")["previous"]["image"] == two
    print(f"\nrolled back under load: {client.summary()}")


def test_the_key_is_in_no_file_log_or_inspection(fleet: Fleet) -> None:
    for box in (*BOXES, GATEWAY):
        found = fleet.on(
            box, f"grep -rl --exclude-dir=secrets -e {KEY} /var/lib/deploy-kit* /etc/systemd /var/log || true"
        )
        assert found == "", box
        assert KEY not in fleet.on(box, "journalctl --no-pager")
        assert KEY not in fleet.on(
            box, "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'"
        )
    for box in BOXES:
        assert KEY not in fleet.on(box, "docker inspect $(docker ps -aq)")
        assert KEY not in fleet.on(box, "docker logs deploy-kit-kimi-baseline-1 2>&1")
    assert fleet.on("box-1", "stat -c '%a %u' /var/lib/deploy-kit/secrets/api_key").strip() == "440 10001"


def test_a_status_of_the_whole_fleet(fleet: Fleet, one: str) -> None:
    done = fleet.command("status", fleet.inventory(one))
    answer = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {name: box["ready"] for name, box in answer["hosts"].items()} == dict.fromkeys(BOXES, True)


def test_nothing_of_ours_is_left_running_on_this_machine(fleet: Fleet) -> None:
    names = run("docker", "ps", "--format", "{{.Names}}").split()
    assert {name for name in names if name.startswith(NAME)} == {f"{NAME}-{one}" for one in (GATEWAY, *BOXES)}
    assert Path("/var/lib/deploy-kit/state.json").exists() is False
