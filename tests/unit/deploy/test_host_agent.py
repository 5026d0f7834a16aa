"""The host's state as a value, and its file: at any point it is the old one or the new one."""

import errno
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.deploy import host_agent
from deploy_kit.deploy.host_agent import AgentError, Host, release_id

NOW = "2026-11-30T10:00:00Z"


def entry(name: str) -> dict[str, Any]:
    return {"release": name, "plan_id": name, "image": f"image-{name}", "profile": "baseline"}


def spec(text: str = "a") -> dict[str, Any]:
    files = {"compose.yaml": f"services: {{}} # {text}\n", "settings.env": "A=1\n"}
    name = release_id("plan", "image", files)
    return {"release": name, "plan_id": "plan", "image": "image", "files": files}


def deployed(*names: str) -> host_agent.State:
    state = host_agent.empty_state()
    for name in names:
        state = host_agent.begin(state, entry(name), kind="deploy", now=NOW)
        state = host_agent.advance(state, "switching", now=NOW)
        state = host_agent.commit(state, now=NOW)
    return state


def test_a_commit_keeps_the_one_before() -> None:
    state = deployed("a", "b")
    assert state["current"]["release"] == "b"
    assert state["previous"]["release"] == "a"
    assert state["in_progress"] is None


def test_the_same_release_again_does_not_lose_the_previous_one() -> None:
    assert deployed("a", "b", "b")["previous"]["release"] == "a"


@pytest.mark.parametrize(
    ("phase", "served"), [("begun", "a"), ("switching", "b"), ("trial", "b"), ("restoring", "a")]
)
def test_what_serves_in_each_phase(phase: str, served: str) -> None:
    state = host_agent.begin(deployed("a"), entry("b"), kind="deploy", now=NOW)
    if phase != "begun":
        state = host_agent.advance(state, phase, now=NOW)
    assert host_agent.serving(state) == served


def test_a_second_change_is_refused_once_the_first_has_switched() -> None:
    state = host_agent.begin(deployed("a"), entry("b"), kind="deploy", now=NOW)
    assert host_agent.begin(state, entry("c"), kind="deploy", now=NOW)["in_progress"]["release"] == entry("c")
    with pytest.raises(AgentError, match="in progress"):
        host_agent.begin(host_agent.advance(state, "trial", now=NOW), entry("c"), kind="deploy", now=NOW)


steps = st.lists(st.sampled_from(["begin", "switch", "commit", "restore"]), max_size=30)


@given(steps)
def test_whatever_happens_one_release_serves_and_none_is_half(words: list[str]) -> None:
    state = deployed("r0")
    known = {"r0"}
    for number, word in enumerate(words, 1):
        progress = state["in_progress"]
        if word == "begin" and (progress is None or progress["phase"] == "begun"):
            known.add(f"r{number}")
            state = host_agent.begin(state, entry(f"r{number}"), kind="deploy", now=NOW)
        elif word == "switch" and progress and progress["phase"] == "begun":
            state = host_agent.advance(state, "switching", now=NOW)
        elif word == "commit" and progress and progress["phase"] == "switching":
            state = host_agent.commit(state, now=NOW)
        elif word == "restore" and progress:
            before = state["current"]
            state = host_agent.restored(state, now=NOW)
            assert state["current"] == before
        assert host_agent.serving(state) in known
        assert json.loads(json.dumps(state)) == state


def test_a_release_is_written_once_and_whole(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert host.stage(spec()) is True
    assert host.stage(spec()) is False
    assert host.facts(spec()["release"])["plan_id"] == "plan"
    assert not list(host.releases.glob(".new-*"))


def test_a_release_whose_contents_are_not_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="not what its name says"):
        Host(tmp_path).stage({**spec(), "image": "another"})
    bad = {"../compose.yaml": "x"}
    name = release_id("plan", "image", bad)
    with pytest.raises(AgentError):
        Host(tmp_path).stage({"release": name, "plan_id": "plan", "image": "image", "files": bad})


def test_a_damaged_release_is_found_and_written_anew(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.stage(spec())
    (host.releases / spec()["release"] / "settings.env").write_text("A=2\n")
    with pytest.raises(AgentError, match="was changed"):
        host.facts(spec()["release"])
    assert host.stage(spec()) is True
    host.facts(spec()["release"])


def test_a_full_disk_costs_the_reserve_not_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path)
    host.prepare()
    host.write(deployed("a"))
    real = host_agent.write_whole

    def full(path: Path, text: str) -> None:
        if host.reserve.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, text)

    monkeypatch.setattr(host_agent, "write_whole", full)
    host.write(deployed("a", "b"))
    assert host.read()["current"]["release"] == "b"
    assert not host.reserve.exists()


def test_a_disk_that_stays_full_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path)
    host.write(deployed("a"))

    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(host_agent, "write_whole", full)
    with pytest.raises(AgentError) as caught:
        host.write(deployed("a", "b"))
    assert caught.value.code == 13
    assert host.read()["current"]["release"] == "a"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}'])
def test_a_state_file_that_is_not_ours_is_not_overwritten(tmp_path: Path, text: str) -> None:
    host = Host(tmp_path)
    host.state_file.write_text(text)
    with pytest.raises(AgentError):
        host.change(lambda state: state)
    assert host.state_file.read_text() == text


def test_pruning_keeps_what_the_state_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_agent, "output", lambda *_a, **_k: (0, ""))
    host = Host(tmp_path)
    for name in ("a", "b", "c"):
        (host.releases / name).mkdir(parents=True)
    host.prune(deployed("a", "b"))
    assert {folder.name for folder in host.releases.iterdir()} == {"a", "b"}


def test_no_secret_in_the_evidence() -> None:
    assert host_agent.redact("key=abcdef and abcdef", ["abcdef"]) == "key=[removed] and [removed]"


def test_without_a_container_the_units_journal_is_the_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"docker": " \n", "journalctl": "Bind for 10.0.0.1:30000 failed: port is already allocated\n"}
    monkeypatch.setattr(host_agent, "output", lambda command, **_: (0, said[command[0]]))
    facts = {"service": "kimi-baseline", "api_key_file": str(tmp_path / "none")}
    assert Host(tmp_path).evidence(facts) == "Bind for 10.0.0.1:30000 failed: port is already allocated"
    said["docker"] = "the engine's own words"
    assert Host(tmp_path).evidence(facts) == "the engine's own words"


@pytest.mark.parametrize(
    ("units", "why"),
    [
        # systemd says 0 of the start that runs: the last one that ended counts.
        (
            [("activating", "1", 0), ("active", "0", 2), ("active", "0", 3)],
            "ended 3 times, last with exit code 1",
        ),
        ([("active", "0", 0), ("failed", "44", 0)], "ended with exit code 44"),
        ([("active", "0", 0), ("inactive", "0", 0)], "ended with exit code 0"),
    ],
)
def test_why_a_start_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, units: list[tuple[str, str, int]], why: str
) -> None:
    looks = iter([units[0], *units])  # one look before the first question
    names = ("ActiveState", "ExecMainStatus", "NRestarts")
    monkeypatch.setattr(host_agent, "unit", lambda _: dict(zip(names, map(str, next(looks)), strict=True)))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(Host, "completion", lambda *_: "its container is not running")
    assert why in str(host_agent.prove(Host(tmp_path), {}, 60))


def test_the_unit_names_the_exit_codes_of_the_documentation() -> None:
    import yaml

    from deploy_kit.exit_codes import ExitCode

    root = Path(__file__).parents[3]
    codes = yaml.safe_load((root / "ansible/roles/roll/vars/main.yml").read_text())["roll_no_restart_codes"]
    assert codes == [int(code) for code in ExitCode if 40 <= int(code) < 60]


def stand_in_docker(folder: Path, *, stop: str, version: str) -> None:
    """A STAND-IN for the docker command: shell words for what `stop` and `version` do."""
    program = folder / "docker"
    program.write_text(f'#!/bin/sh\ncase "$1" in\n  stop) {stop} ;;\n  version) {version} ;;\nesac\n')
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("stop", "version", "stopped"),
    [
        ("exit 0", "exit 1", True),
        ("sleep 0.4", "exit 0", True),  # takes its time, and dockerd lives
        ("exec sleep 60", "exit 1", False),  # its socket lets us wait, and nobody is behind it
        ("exit 1", "exit 1", False),  # it went away while we asked
        ("exit 1", "exit 0", True),  # no such container
    ],
)
def test_a_dockerd_that_is_down_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: str, version: str, stopped: bool
) -> None:
    stand_in_docker(tmp_path, stop=stop, version=version)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(host_agent, "STOP_LOOK_SECONDS", 0.1)
    began = time.monotonic()
    assert host_agent.stop_container("engine") is stopped
    assert time.monotonic() - began < 30


def test_what_a_signal_handler_ends_returns(tmp_path: Path) -> None:
    asking: list[Any] = []

    def end() -> None:
        asking[0].kill()

    threading.Timer(0.3, end).start()
    code, said = host_agent.ask(["sleep", "60"], asking)
    assert code < 0
    assert said == ""
    assert host_agent.ask(["echo", "3"], asking) == (0, "3\n")


SAID = (
    "Error response from daemon: driver failed programming external connectivity on endpoint "
    "deploy-kit-kimi-baseline-1 (4022f479): Bind for {}:{} failed: port is already allocated"
)


def docker_that_says(folder: Path, monkeypatch: pytest.MonkeyPatch, says: str, code: int = 0) -> None:
    """Put a STAND-IN for docker first on the path, which answers every command so."""
    program = folder / "docker"
    program.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_a_port_that_only_docker_holds_is_told_from_one_that_somebody_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker_that_says(tmp_path, monkeypatch, "")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        assert host_agent.stuck_port(SAID.format("127.0.0.1", port)) is None
        # Docker's own proxy, which it started for a container that does not run.
        monkeypatch.setattr(host_agent, "dockers_own_proxy", lambda number: number == port)
        assert host_agent.stuck_port(SAID.format("127.0.0.1", port)) == port
    assert host_agent.stuck_port(SAID.format("127.0.0.1", port)) == port
    assert host_agent.stuck_port(SAID.format("[::1]", port)) in (port, None)  # None: a machine without IPv6
    assert host_agent.stuck_port("Error response from daemon: no such image") is None


@pytest.mark.parametrize(("says", "code"), [("1c9ccbaeffbe", 0), ("Cannot connect to the Docker daemon", 1)])
def test_a_port_of_a_running_container_is_not_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, code: int
) -> None:
    docker_that_says(tmp_path, monkeypatch, says, code)
    assert host_agent.stuck_port(SAID.format("127.0.0.1", 1)) is None


def test_dockers_own_proxy_is_known_by_its_words(tmp_path: Path) -> None:
    def process(number: int, *words: str) -> None:
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cmdline").write_bytes("\0".join([*words, ""]).encode())

    process(1, "/sbin/init")
    process(2, "/usr/bin/python3", "docker-proxy", "-host-port", "30000")
    process(3, "/usr/sbin/docker-proxy", "-proto", "tcp", "-host-port", "9400", "-container-port", "30000")
    process(4)
    (tmp_path / "5").mkdir()  # ended
    assert not host_agent.dockers_own_proxy(30000, tmp_path)
    assert host_agent.dockers_own_proxy(9400, tmp_path)


BOUND = '{"30000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "30000"}], "9400/tcp": []}'


@pytest.mark.parametrize(
    ("says", "code", "missing"),
    [
        (f'true {BOUND} {{"30000/tcp": [{{"HostPort": "30000"}}]}}', 0, ""),
        (f"true {BOUND} {{}}", 0, "30000/tcp"),
        (f'true {BOUND} {{"30000/tcp": null}}', 0, "30000/tcp"),
        (f"false {BOUND} {{}}", 0, ""),  # ended: that is seen otherwise
        ("true {} {}", 0, ""),
        ("true null null", 0, ""),
        ("true {} ", 0, ""),
        ("Error: No such object", 1, ""),
    ],
)
def test_a_container_without_its_ports_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, code: int, missing: str
) -> None:
    docker_that_says(tmp_path, monkeypatch, says, code)
    assert host_agent.unpublished("engine") == missing
