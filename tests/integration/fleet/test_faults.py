"""What goes wrong in the middle of a roll, on real hosts: killed, cut off, full, rebooted, never ready.

Slow: run it with scripts/fleet-faults.sh. Seeds of the kills: FLEET_SEEDS, "1-20" by default.
The tests build on each other: each leaves a fleet that serves one version everywhere.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .hosts import BOXES, GATEWAY, NAME, ROOT, SMALL, Client, Fleet, run, serving_versions

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        "FLEET_FAULTS" not in os.environ, reason="takes an hour: scripts/fleet-faults.sh runs it"
    ),
]


def seeds() -> list[int]:
    first, _, last = os.environ.get("FLEET_SEEDS", "1-20").partition("-")
    return list(range(int(first), int(last or first) + 1))


def wait_for(what: Callable[[], bool], *, seconds: float = 120, why: str = "") -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, why or "not in time"
        time.sleep(1)


def settled(fleet: Fleet, name: str) -> bool:
    """Whether a box is done with any change by itself, and answers."""
    state = fleet.state(name)
    progress = state["in_progress"]
    return (progress is None or progress["phase"] == "begun") and fleet.served_by(name) is not None


@pytest.fixture(scope="module", autouse=True)
def _deployed(fleet: Fleet, one: str) -> None:
    if not (os.environ.get("FLEET_KEEP") and serving_versions(fleet) == ["one"] * 3):
        fleet.deploy(one)
    assert serving_versions(fleet) == ["one"] * 3


# Tasks as the log counts them: of a run over gateway and box, and of the box's own play.
STEPS = {"run": 60, "box": 34}
BOX_PLAY = "PLAY [Roll the boxes]"


def target_name(image: str, two: str) -> str:
    return "two" if image == two else "one"


def note(text: str) -> None:
    """Print a line of the receipt, and append it to the file that FLEET_NOTES names."""
    print(f"\n{text}")
    if file := os.environ.get("FLEET_NOTES"):
        with Path(file).open("a") as handle:
            handle.write(text + "\n")


def kill_at_step(
    fleet: Fleet, process: subprocess.Popen[str], of: str, step: int, extra_seconds: float
) -> tuple[int, str]:
    """Kill a playbook with SIGKILL some time after a step began; return the step it was at, and its name."""
    log = fleet.folder / "playbook.log"

    def steps() -> int:
        text = log.read_text()
        return (text if of == "run" else text.partition(BOX_PLAY)[2]).count("\nTASK [")

    while process.poll() is None and steps() < step:
        time.sleep(0.2)
    time.sleep(extra_seconds)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    names = re.findall(r"^TASK \[(.+)\] \*", log.read_text(), re.MULTILINE)
    return len(names), names[-1].rpartition(" : ")[2] if names else "before the first"


# So many kills in a row on one box, each run going on where the one before was killed; then one must repair.
KILLS_IN_A_ROW = 7
COURSES = [seeds()[start : start + KILLS_IN_A_ROW] for start in range(0, len(seeds()), KILLS_IN_A_ROW)]


@pytest.mark.parametrize("course", COURSES, ids=lambda course: f"seeds-{course[0]}-{course[-1]}")
def test_a_killed_playbook_leaves_one_plan_serving_everywhere(
    fleet: Fleet, one: str, two: str, course: list[int]
) -> None:
    # A box at a time, so that a kill is anywhere in its change; the other two keep serving.
    box = BOXES[course[0] // KILLS_IN_A_ROW % 3]
    others = {name: fleet.state(name)["current"] for name in BOXES if name != box}
    target = two
    with Client(fleet.entrance, threads=2) as client:
        for seed in course:
            chance = random.Random(seed)
            before = fleet.state(box)["current"]["image"]
            target = one if before == two else two
            # A third anywhere in a run over gateway and box, the others in the box's own play.
            of = "run" if chance.random() < 1 / 3 else "box"
            limit = f"{GATEWAY},{box}" if of == "run" else box
            step, extra = chance.randint(1, STEPS[of]), chance.uniform(0, 1.5)
            process = fleet.playbook("deploy.yml", fleet.inventory(target), "--limit", limit)
            reached, where = kill_at_step(fleet, process, of, step, extra)
            wait_for(lambda: settled(fleet, box), why=f"{box} does not settle: {fleet.state(box)}")
            image = fleet.state(box)["current"]["image"]
            serves = fleet.served_by(box)
            # Old or new, and what the state says is what answers.
            assert image in (before, target)
            assert serves is not None
            assert serves.split()[1] == ("one" if image == one else "two")
            assert {name: fleet.state(name)["current"] for name in others} == others
            done = "the end" if process.returncode == 0 else f"step {reached} ({where})"
            aim = target_name(target, two)
            note(f"seed {seed}: {box} to {aim}, killed at {done}: serves {serves.split()[1]}")
        # The next run repairs and completes.
        fleet.deploy(target, "--limit", f"{GATEWAY},{box}")
        wait_for(lambda: fleet.workers() == dict.fromkeys(BOXES, "ready"), why=str(fleet.workers()))
    assert serving_versions(fleet, [box]) == [target_name(target, two)]
    assert fleet.state(box)["in_progress"] is None
    note(f"seeds {course[0]}-{course[-1]}: repaired; {client.summary()}")
    assert not client.failures, client.failures[:3]


AGENT = "python3 /usr/local/lib/deploy-kit/host_agent.py"
# What is killed with SIGKILL in the middle of a box's own change.
VICTIMS = {
    "transaction": "systemctl kill --signal=KILL deploy-kit-roll.service",
    "engine's unit": "systemctl kill --signal=KILL --kill-who=main deploy-kit-engine.service",
    "container": "docker kill --signal=KILL deploy-kit-kimi-baseline-1",
    "dockerd": "systemctl kill --signal=KILL docker.service",
}


@pytest.mark.parametrize("seed", seeds())
def test_a_change_killed_on_the_box_ends_old_or_new(fleet: Fleet, one: str, two: str, seed: int) -> None:
    chance = random.Random(1000 + seed)
    box = "box-1"
    if fleet.state(box)["previous"] is None:
        fleet.deploy(two, "--limit", f"{GATEWAY},{box}")
    victim = chance.choice(sorted(VICTIMS))
    delay = chance.uniform(0, 4)
    before = fleet.state(box)
    fleet.on(box, f"{AGENT} apply --kind rollback --ready-seconds 60")
    time.sleep(delay)
    phase = (fleet.state(box)["in_progress"] or {"phase": "committed"})["phase"]
    fleet.on(box, VICTIMS[victim], check=False)
    wait_for(
        lambda: fleet.state(box)["in_progress"] is None and fleet.served_by(box) is not None, seconds=180
    )
    state = fleet.state(box)
    image, serves = state["current"]["image"], serving_versions(fleet, [box])
    assert image in (before["current"]["image"], before["previous"]["image"])
    assert serves == ["one" if image == one else "two"]
    outcome = state["last"]["outcome"]
    when = f"{victim} killed on the box after {delay:.1f} s in {phase}"
    note(f"seed {seed}: {when}: {outcome}, {serves[0]} serves")


def test_after_the_kills_all_boxes_serve_the_same(fleet: Fleet, one: str) -> None:
    fleet.deploy(one)
    assert serving_versions(fleet) == ["one"] * 3


def test_an_engine_that_never_gets_ready_is_taken_back(fleet: Fleet) -> None:
    with Client(fleet.entrance) as client:
        image = fleet.stand_in("mute", behaviour="never-ready")
        done = fleet.command("deploy", fleet.inventory(image, roll_ready_seconds=15))
    assert done.returncode == 15, done.stdout + done.stderr
    assert "not ready in 15 s" in json.loads(done.stdout)["found"]
    assert fleet.state("box-1")["last"]["outcome"] == "restored"
    assert serving_versions(fleet) == ["one"] * 3
    assert fleet.workers() == dict.fromkeys(BOXES, "ready")
    note(f"never ready: {client.summary()}")
    assert not client.failures, client.failures[:3]


def in_phase(fleet: Fleet, box: str, *phases: str) -> Callable[[], bool]:
    def there() -> bool:
        progress: Any = fleet.state(box)["in_progress"]
        return progress is not None and progress["phase"] in phases

    return there


def test_a_host_that_is_cut_off_in_the_middle_ends_by_itself(fleet: Fleet, two: str) -> None:
    with Client(fleet.entrance) as client:
        process = fleet.playbook("deploy.yml", fleet.inventory(two))
        wait_for(in_phase(fleet, "box-2", "switching", "trial"))
        fleet.on("box-2", "iptables -I INPUT -i eth0 -j DROP; iptables -I OUTPUT -o eth0 -j DROP")
        assert process.wait(timeout=300) != 0
        wait_for(lambda: fleet.state("box-2")["in_progress"] is None, why=str(fleet.state("box-2")))
        assert fleet.state("box-2")["current"]["image"] == two
        assert serving_versions(fleet, ["box-1", "box-3"]) == ["two", "one"]
        fleet.on("box-2", "iptables -D INPUT -i eth0 -j DROP; iptables -D OUTPUT -o eth0 -j DROP")
        fleet.deploy(two)
    note(f"cut off: {client.summary()}")
    assert not client.failures, client.failures[:3]
    assert serving_versions(fleet) == ["two"] * 3
    assert fleet.workers() == dict.fromkeys(BOXES, "ready")


def test_a_dockerd_killed_in_the_middle_comes_back(fleet: Fleet, one: str) -> None:
    with Client(fleet.entrance) as client:
        process = fleet.playbook("deploy.yml", fleet.inventory(one))
        wait_for(in_phase(fleet, "box-2", "switching", "trial"))
        fleet.on("box-2", "systemctl kill --signal=KILL docker.service")
        process.wait(timeout=400)
        wait_for(lambda: settled(fleet, "box-2"), seconds=180)
        serves = serving_versions(fleet, ["box-2"])
        assert serves == ["one"] if process.returncode == 0 else serves in (["one"], ["two"])
        fleet.deploy(one)
    note(f"dockerd killed: {client.summary()}")
    assert not client.failures, client.failures[:3]
    assert serving_versions(fleet) == ["one"] * 3
    assert fleet.workers() == dict.fromkeys(BOXES, "ready")


# Kills dockerd so many seconds after it began to publish the port of an engine that starts.
KILL_WHILE_IT_PUBLISHES = """
has() { pgrep -f '[d]ocker-proxy.*host-port 30000' >/dev/null; }
systemctl reset-failed deploy-kit-engine.service docker.service
systemctl restart deploy-kit-engine.service &
while has; do sleep 0.005; done
until has; do sleep 0.005; done
sleep SECONDS
systemctl kill --signal=KILL docker.service
wait
"""


def test_a_dockerd_killed_while_it_publishes_the_port_is_restarted_once(fleet: Fleet, one: str) -> None:
    mended = 0
    for seconds in ("0.03", "0.06", "0.1", "0.15", "0.2"):
        began = fleet.on("box-2", "date +%s").strip()
        fleet.on("box-2", KILL_WHILE_IT_PUBLISHES.replace("SECONDS", seconds))
        wait_for(
            lambda: fleet.served_by("box-2") is not None, why=f"killed {seconds} s after: it never serves"
        )
        said = fleet.on("box-2", f"journalctl -u deploy-kit-engine --since @{began} -o cat")
        assert said.count("restarting Docker once") == said.count("port is already allocated"), said
        mended += "restarting Docker once" in said
    note(
        f"dockerd killed while it publishes the port: {mended} of 5 times Docker held it, restarted once each"
    )
    assert mended > 0
    assert serving_versions(fleet) == ["one"] * 3
    wait_for(lambda: fleet.workers() == dict.fromkeys(BOXES, "ready"))


@pytest.mark.parametrize("disk", ["/var/lib/docker", "/var/lib/deploy-kit"])
def test_a_full_disk_is_refused_before_anything_stops(fleet: Fleet, one: str, two: str, disk: str) -> None:
    started = fleet.on(SMALL, "docker inspect -f '{{.State.StartedAt}}' deploy-kit-kimi-baseline-1")
    fleet.on(SMALL, f"dd if=/dev/zero of={disk}/filler bs=64k 2>/dev/null; true")
    # A version whose image is not there yet; without the check of free space, so that the disk says no.
    newer = fleet.stand_in(f"three-{Path(disk).name}")
    done = fleet.command(
        "deploy", fleet.inventory(newer, roll_free_gigabytes=0), "--limit", f"{GATEWAY},{SMALL}"
    )
    assert done.returncode in (13, 14), done.stdout
    assert "no space left" in done.stdout.lower() or "full" in done.stdout.lower(), done.stdout
    again = fleet.on(SMALL, "docker inspect -f '{{.State.StartedAt}}' deploy-kit-kimi-baseline-1")
    assert again == started
    assert serving_versions(fleet, [SMALL]) == ["one"]
    assert fleet.workers()[SMALL] == "ready"
    fleet.on(SMALL, f"rm {disk}/filler")
    fleet.deploy(one, "--limit", f"{GATEWAY},{SMALL}")
    assert serving_versions(fleet) == ["one"] * 3


def test_little_free_space_is_refused_by_the_check(fleet: Fleet, two: str) -> None:
    newer = fleet.stand_in("four")
    done = fleet.command(
        "deploy", fleet.inventory(newer, roll_free_gigabytes=100000), "--limit", f"{GATEWAY},{SMALL}"
    )
    assert done.returncode == 13, done.stdout
    assert serving_versions(fleet) == ["one"] * 3


def reboot(fleet: Fleet, box: str) -> None:
    """Restart a machine, hard."""
    run("docker", "restart", "--time", "0", f"{NAME}-{box}")
    fleet.wait_for_systemd(box)
    wait_for(lambda: fleet.served_by(box) is not None, why=fleet.on(box, "journalctl -u 'deploy-kit*' -n 40"))


def test_a_reboot_brings_the_engine_back(fleet: Fleet) -> None:
    with Client(fleet.entrance) as client:
        reboot(fleet, "box-2")
        wait_for(lambda: fleet.workers().get("box-2") == "ready")
    assert serving_versions(fleet) == ["one"] * 3
    # Requests that ran on the box when its power went are lost with it; the others are sent again.
    note(f"reboot: {client.summary()}")
    assert len(client.failures) <= 3, client.failures


def test_a_reboot_in_the_middle_of_a_change_brings_the_old_plan_back(fleet: Fleet, one: str) -> None:
    slow = fleet.stand_in("slow", ready_seconds=30)
    with Client(fleet.entrance) as client:
        process = fleet.playbook("deploy.yml", fleet.inventory(slow), "--limit", f"{GATEWAY},box-2")
        wait_for(in_phase(fleet, "box-2", "trial"))
        reboot(fleet, "box-2")
        assert process.wait(timeout=300) != 0
        state = fleet.state("box-2")
        assert state["current"]["image"] == one
        assert state["last"]["outcome"] == "restored"
        fleet.deploy(one, "--limit", f"{GATEWAY},box-2")
    note(f"reboot in the middle: {client.summary()}")
    assert not client.failures, client.failures[:3]
    assert serving_versions(fleet) == ["one"] * 3
    assert fleet.workers() == dict.fromkeys(BOXES, "ready")


def test_an_interrupted_command_leaves_a_box_that_ends_its_change(fleet: Fleet, one: str, two: str) -> None:
    with Client(fleet.entrance) as client:
        # What a background shell starts inherits that it ignores Ctrl-C.
        command = ["env", "--default-signal=INT", sys.executable, "-m", "deploy_kit", "deploy"]
        command += ["--inventory", str(fleet.inventory(two))]
        process = subprocess.Popen(
            [*command, "--limit", f"{GATEWAY},box-1", "--json"], cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        wait_for(in_phase(fleet, "box-1", "switching", "trial"), seconds=400)
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert out == ""
        assert "ends it by itself" in said
        assert "Traceback" not in said
        wait_for(lambda: settled(fleet, "box-1"), seconds=180)
        assert serving_versions(fleet, ["box-1"]) == ["two"]
        fleet.deploy(one, "--limit", f"{GATEWAY},box-1")
    note(f"Ctrl-C: {client.summary()}")
    assert not client.failures, client.failures[:3]
    assert serving_versions(fleet) == ["one"] * 3


def test_a_gateway_that_restarts_knows_its_workers(fleet: Fleet) -> None:
    def knows_them() -> bool:
        # It refuses connections for the seconds in which it starts.
        listens = "bash -c 'exec 3<>/dev/tcp/127.0.0.1/30080' 2>/dev/null && echo yes || echo no"
        return fleet.on(GATEWAY, listens).strip() == "yes" and fleet.workers() == dict.fromkeys(
            BOXES, "ready"
        )

    fleet.on(GATEWAY, "systemctl restart deploy-kit-gateway.service")
    wait_for(knows_them)
