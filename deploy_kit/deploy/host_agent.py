#!/usr/bin/env python3
"""What runs on a host of the fleet: it keeps one state file, and changes from one release to the next as a
transaction that does not need whoever asked for it.

Copied to the host by Ansible's role `engine`; Python's standard library only. A release is a folder under
`releases/` with Compose's files and `release.json`; it never changes once written. `state.json` says which
release is current, which was before it, and what is in progress. The systemd unit `deploy-kit-engine` runs
`host_agent.py run`, which serves the release that the state names. `apply` notes the target and starts
`transact` as a unit of its own, so that a playbook that is killed, or a network that goes away, changes
nothing about how it ends: the target has answered a real completion and is current, or the old release serves
again.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

SCHEMA = 1
PROJECT = "deploy-kit"
ENGINE_UNIT = "deploy-kit-engine.service"
ROLL_UNIT = "deploy-kit-roll.service"
RELEASE_LABEL = "io.deploy-kit.release"
# Freed when the disk is full, so that the state can still be written.
RESERVE_BYTES = 256 * 1024
STOP_SECONDS = 75
STOP_LOOK_SECONDS = 5.0  # how often it is asked whether dockerd lives, while it stops a container
PORT_LOOKS_SECONDS = (0.0, 5.0)  # after a start: a dockerd that has just come back still tidies up
ENGINE_PORT = 30000  # inside the container, docker/compose.yaml
# A start that ends this often within a trial is not going to succeed.
TRIAL_STARTS = 3
_SWITCHED = ("switching", "trial")

State = dict[str, Any]


class AgentError(Exception):
    """Something the caller must know: `code` is one of deploy-kit's exit codes."""

    def __init__(self, text: str, code: int = 14) -> None:
        super().__init__(text)
        self.code = code


# ------------------------------------------------------------------------------------------------ pure part


def empty_state() -> State:
    """Return the state of a host that has served nothing yet."""
    return {"schema": SCHEMA, "current": None, "previous": None, "in_progress": None, "last": None}


def serving(state: Mapping[str, Any]) -> str | None:
    """Given the state, return the release that must serve now: the target while it is on trial, else the
    current one; None when there is none."""
    progress = state.get("in_progress")
    if progress and progress["phase"] in _SWITCHED:
        return str(progress["release"]["release"])
    current = state.get("current")
    return str(current["release"]) if current else None


def begin(state: Mapping[str, Any], target: Mapping[str, Any], *, kind: str, now: str) -> State:
    """Given the state, return it with `target` noted as in progress: phase "begun", nothing switched yet.

    Raises `AgentError` when another change is past that phase."""
    progress = state.get("in_progress")
    if progress and progress["phase"] != "begun":
        raise AgentError(f"a change to {progress['release']['release']} is in progress: {progress['phase']}")
    entry = {
        "release": dict(target),
        "kind": kind,
        "phase": "begun",
        "journal": [{"at": now, "phase": "begun"}],
        "failure": None,
    }
    return {**state, "in_progress": entry}


def advance(state: Mapping[str, Any], phase: str, *, now: str, failure: str | None = None) -> State:
    """Given the state with a change in progress, return it in the next phase."""
    progress = dict(state["in_progress"])
    progress["journal"] = [*progress["journal"], {"at": now, "phase": phase}]
    return {**state, "in_progress": {**progress, "phase": phase, "failure": failure or progress["failure"]}}


def commit(state: Mapping[str, Any], *, now: str) -> State:
    """Given the state with a change in progress, return it with the target current.

    The one before becomes `previous`, unless the same release was only started again."""
    progress = state["in_progress"]
    target = {**progress["release"], "since": now}
    current = state["current"]
    same = current is not None and current["release"] == target["release"]
    last = {"release": target["release"], "kind": progress["kind"], "outcome": "committed", "at": now}
    last["journal"] = [*progress["journal"], {"at": now, "phase": "committed"}]
    previous = state["previous"] if same else current
    return {**state, "current": target, "previous": previous, "in_progress": None, "last": last}


def restored(state: Mapping[str, Any], *, now: str, outcome: str = "restored", failure: str = "") -> State:
    """Given the state with a change in progress, return it without: the current release stays.

    `outcome`: "restored" (the old release answers again), "nothing" (there was none), "down" (it does not).
    """
    progress = state["in_progress"]
    last = {
        "release": progress["release"]["release"],
        "kind": progress["kind"],
        "outcome": outcome,
        "at": now,
        "failure": failure or progress["failure"] or "no reason noted",
        "journal": [*progress["journal"], {"at": now, "phase": outcome}],
    }
    return {**state, "in_progress": None, "last": last}


def release_id(plan_id: str, image: str, files: Mapping[str, str]) -> str:
    """Given what a release consists of, return its id: the plan's id and a hash of everything."""
    text = json.dumps([plan_id, image, sorted(files.items())], sort_keys=True)
    return f"{plan_id}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def check_release(spec: Mapping[str, Any]) -> None:
    """Raise `AgentError` unless a release is whole and its id is that of its contents."""
    try:
        name, files = spec["release"], spec["files"]
        right = release_id(spec["plan_id"], spec["image"], files)
        unsafe = [one for one in files if not re.fullmatch(r"[A-Za-z0-9.][A-Za-z0-9._-]*", one)]
    except (KeyError, TypeError, AttributeError) as error:
        raise AgentError(f"a release that is not whole: {error}") from error
    if name != right or unsafe or "release.json" in files:
        raise AgentError(f"a release that is not what its name says: {name}, its contents make {right}")


def redact(text: str, secrets: Sequence[str]) -> str:
    """Given a log's text, return it without the secrets."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, "[removed]")
    return text


# --------------------------------------------------------------------------------------------- files, effects


def now() -> str:
    """Return the time, UTC, ISO 8601."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Host:
    """The folder that holds everything, and the commands that act on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state_file = root / "state.json"
        self.releases = root / "releases"
        self.reserve = root / ".reserve"

    def prepare(self) -> None:
        """Make the folders and the reserve."""
        self.releases.mkdir(parents=True, exist_ok=True)
        if not self.reserve.is_file() or self.reserve.stat().st_size < RESERVE_BYTES:
            with contextlib.suppress(OSError):
                self.reserve.write_bytes(b"\0" * RESERVE_BYTES)

    def read(self) -> State:
        """Return the state; an empty one where there is no file yet."""
        try:
            state: State = json.loads(self.state_file.read_text())
        except FileNotFoundError:
            return empty_state()
        except ValueError as error:
            raise AgentError(f"{self.state_file} is not JSON: {error}") from error
        found = state.get("schema") if isinstance(state, dict) else "none"
        if found != SCHEMA:
            raise AgentError(f"{self.state_file}: schema {found}, this agent reads {SCHEMA}")
        return state

    def write(self, state: Mapping[str, Any]) -> None:
        """Write the state: aside, flushed, renamed. A full disk costs the reserve, not the state."""
        text = json.dumps(state, indent=1, sort_keys=True) + "\n"
        try:
            write_whole(self.state_file, text)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.reserve.unlink(missing_ok=True)
            try:
                write_whole(self.state_file, text)
            except OSError as again:
                raise AgentError(f"{self.root}: the disk is full; the state is as it was", 13) from again

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock under which the state is changed."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def change(self, step: Callable[[State], State]) -> State:
        """Read, change and write the state under the lock; return it."""
        with self.locked():
            state = step(self.read())
            self.write(state)
            return state

    # ------------------------------------------------------------------------------------------- releases

    def stage(self, spec: Mapping[str, Any]) -> bool:
        """Write a release; return whether it was not there. It has its name only once it is whole."""
        check_release(spec)
        self.prepare()
        target = self.releases / str(spec["release"])
        if target.is_dir() and not self.damage(str(spec["release"])):
            return False
        aside = Path(tempfile.mkdtemp(prefix=".new-", dir=self.releases))
        try:
            facts = {key: value for key, value in spec.items() if key != "files"}
            sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in spec["files"].items()}
            for name, text in spec["files"].items():
                write_whole(aside / name, text)
            write_whole(aside / "release.json", json.dumps({**facts, "sums": sums}, indent=1) + "\n")
            aside.chmod(0o755)
            if target.exists():
                shutil.rmtree(target)
            aside.rename(target)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise AgentError(f"{self.releases}: the disk is full; nothing was changed", 13) from error
            raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return True

    def facts(self, name: str) -> dict[str, Any]:
        """Return a staged release's facts; raise when it is missing or damaged."""
        if damage := self.damage(name):
            raise AgentError(f"release {name}: {damage}")
        facts: dict[str, Any] = json.loads((self.releases / name / "release.json").read_text())
        return facts

    def damage(self, name: str) -> str | None:
        """Return what is wrong with a staged release, or None."""
        folder = self.releases / name
        try:
            sums = json.loads((folder / "release.json").read_text())["sums"]
            for file, right in sums.items():
                if hashlib.sha256((folder / file).read_bytes()).hexdigest() != right:
                    return f"{file} was changed"
        except (OSError, ValueError, KeyError) as error:
            return f"not whole: {error}"
        return None

    def prune(self, state: Mapping[str, Any]) -> None:
        """Remove releases that nothing names any more, and their images; failures do not matter."""
        kept = {entry["release"]: entry["image"] for entry in (state["current"], state["previous"]) if entry}
        if state["in_progress"]:
            kept[state["in_progress"]["release"]["release"]] = state["in_progress"]["release"]["image"]
        for folder in self.releases.iterdir():
            if folder.name in kept:
                continue
            with contextlib.suppress(OSError, ValueError, KeyError):
                image = json.loads((folder / "release.json").read_text())["image"]
                if image not in kept.values():
                    output(["docker", "image", "rm", image])
            shutil.rmtree(folder, ignore_errors=True)

    # -------------------------------------------------------------------------------------------- Compose

    def compose(self, facts: Mapping[str, Any]) -> list[str]:
        """Return the beginning of a Compose command for a release."""
        folder = self.releases / str(facts["release"])
        # The id is a hash of the files, so it cannot be in one of them: it comes through the environment.
        command = ["env", f"DEPLOY_KIT_RELEASE={facts['release']}"]
        command += ["docker", "compose", "--project-name", PROJECT, "--project-directory", str(folder)]
        command += ["--env-file", str(folder / "settings.env")]
        for file in facts["compose_files"]:
            command += ["--file", str(folder / file)]
        return command

    def key(self, facts: Mapping[str, Any]) -> str | None:
        """Return the API key that requests to the engine carry."""
        try:
            return Path(facts["api_key_file"]).read_text().strip() or None
        except OSError:
            return None

    def completion(self, facts: Mapping[str, Any], *, timeout: float = 60.0) -> str | None:
        """Ask the engine for a completion; return why it is no proof of readiness, or None when it is.

        Proof: the container that answers is this release's, the model is the planned one, tokens came."""
        template = f'{{{{index .Config.Labels "{RELEASE_LABEL}"}}}} {{{{.State.Running}}}} '
        template += "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}"
        words = inspect(facts, template).split()
        if words[:2] != [facts["release"], "true"] or len(words) < 3:
            return f"its container is not running ({' '.join(words[:2]) or 'none'})"
        headers = {"Content-Type": "application/json"}
        if key := self.key(facts):
            headers["Authorization"] = f"Bearer {key}"
        # Asked in its own network: a host whose cable is out still knows whether its engine answers. The
        # published port is proven by the gateway, before it sends a request there.
        base = f"http://{words[2]}:{ENGINE_PORT}"
        body = {
            "model": facts["model"],
            "messages": [{"role": "user", "content": "Say a few words about bridges."}],
            "max_tokens": 8,
            "temperature": 0,
        }
        try:
            models = fetch(f"{base}/v1/models", headers, timeout)
            names = [one.get("id") for one in models.get("data", [])]
            if facts["model"] not in names:
                return f"it serves {names}, the plan says {facts['model']}"
            answer = fetch(f"{base}/v1/chat/completions", headers, timeout, body)
            if int(answer["usage"]["completion_tokens"]) < 1 or not answer["choices"]:
                return "an empty completion"
        except HTTPError as error:
            return f"HTTP {error.code}"
        except (URLError, OSError) as error:
            return f"no answer: {getattr(error, 'reason', error)}"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return f"an answer that makes no sense: {error!r}"
        return None

    def evidence(self, facts: Mapping[str, Any]) -> str:
        """Return the engine's last lines, or its unit's when no container of it ever ran; without secrets."""
        lines = output(["docker", "logs", "--tail", "15", container(facts)], both=True)[1].strip()
        if not lines:
            journal = ["journalctl", "--unit", ENGINE_UNIT, "--lines", "15", "--output", "cat", "--no-pager"]
            lines = output(journal, timeout=30)[1].strip()
        return redact(lines[-3000:], [key] if (key := self.key(facts)) else [])


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader, or a crash, meets the old one or the new one."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def output(command: Sequence[str], *, both: bool = False, timeout: float | None = None) -> tuple[int, str]:
    """Run a command; return its exit code and stdout (with stderr when `both`, or when it failed)."""
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, errors="replace", check=False, timeout=timeout
        )
    except FileNotFoundError:
        return 127, f"{command[0]} is not installed"
    except subprocess.TimeoutExpired:
        return 124, f"{command[0]} did not answer in {timeout} s"
    failed = done.returncode != 0
    return done.returncode, done.stdout + (done.stderr if both or failed else "")


def fetch(url: str, headers: Mapping[str, str], timeout: float, body: Any = None) -> Any:
    """Return the JSON that a request is answered with (POST when there is a body); never through a proxy."""
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data=data, headers=dict(headers))  # noqa: S310  (this host's own engine)
    with build_opener(ProxyHandler({})).open(request, timeout=timeout) as answer:
        return json.loads(answer.read())


def container(facts: Mapping[str, Any]) -> str:
    """Return the name of a release's container."""
    return f"{PROJECT}-{facts['service']}-1"


def inspect(facts: Mapping[str, Any], template: str) -> str:
    """Return what `docker inspect` says about a release's container; "" when it is not there."""
    code, text = output(["docker", "inspect", "--format", template, container(facts)], timeout=30)
    return text.strip() if code == 0 else ""


def unit(name: str) -> dict[str, str]:
    """Return what systemd says about a unit."""
    wanted = "ActiveState,SubState,Result,ExecMainStatus,NRestarts"
    text = output(["systemctl", "show", name, "--property", wanted])[1]
    return dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)


def roll_is_running() -> bool:
    """Whether a transaction's own unit is alive."""
    return unit(ROLL_UNIT).get("ActiveState") in ("active", "activating", "reloading")


# ---------------------------------------------------------------------------------------------- the commands


def run(host: Host) -> int:
    """Serve the release that the state names, until it ends or we are told to stop. The unit's main process.

    Returns the engine's own exit code, so that systemd can tell which ones a restart can help."""
    state = host.read()
    progress = state["in_progress"]
    if progress and progress["phase"] != "begun" and not roll_is_running():
        # The machine was switched off in the middle, or the transaction killed: the old release serves.
        state = host.change(lambda old: restored(old, now=now(), failure="the host stopped in the middle"))
    name = serving(state)
    if name is None:
        print("nothing is deployed here yet", flush=True)
        return 0
    facts = host.facts(name)
    compose = host.compose(facts)
    stopping: list[int] = []
    asking: list[subprocess.Popen[str]] = []

    def stop(number: int, _frame: object) -> None:
        stopping.append(number)
        if not stop_container(container(facts)):
            for child in asking:
                child.kill()  # it waits for a dockerd that will not come before we have ended

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    wait_for_docker(stopping)
    remove_others(name)
    print(f"starting {name}: {facts['profile']} from {facts['image']}", flush=True)
    up = [*compose, "up", "--detach", "--no-build", facts["service"]]
    code, text = ask(up, asking)
    print(text, end="", flush=True)
    if code != 0 and not stopping and (stuck := stuck_port(text)):
        print(f"Docker holds port {stuck} for no container: restarting Docker once", flush=True)
        output(["systemctl", "restart", "docker.service"], timeout=180)
        wait_for_docker(stopping)
        code, text = ask(up, asking)
        print(text, end="", flush=True)
    if stopping:
        return 0
    if code != 0:
        return code
    for seconds in PORT_LOOKS_SECONDS:
        time.sleep(seconds)
        if stopping:
            return 0
        if missing := unpublished(container(facts)):
            print(
                f"Docker runs the engine without its port {missing}: it is removed and started anew",
                flush=True,
            )
            output(["docker", "rm", "--force", container(facts)], timeout=180)
            return 1
    _, text = ask(["docker", "wait", container(facts)], asking)
    if stopping:
        return 0
    try:
        ended = int(text.strip())
    except ValueError:
        print(f"Docker went away: {text.strip()}", flush=True)
        return 1
    print(f"the engine ended with exit code {ended}", flush=True)
    return ended if 0 <= ended < 128 else 1


def ask(command: Sequence[str], asking: list[subprocess.Popen[str]]) -> tuple[int, str]:
    """Run a command that a signal handler may end: it finds it in `asking`. Return its exit code and what it
    said."""
    child = subprocess.Popen(
        list(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    asking[:] = [child]
    text, _ = child.communicate()
    return child.returncode, text or ""


def stuck_port(said: str) -> int | None:
    """Given what a failed start said, return the port that Docker calls allocated for no container.

    A dockerd that was killed while it started a container holds it so until it is started once more, at times
    with a proxy of its own that listens for nobody.
    """
    found = re.search(r"Bind for (\S+):(\d+) failed: port is already allocated", said)
    if found is None:
        return None
    address, port = found[1].strip("[]"), int(found[2])
    code, running = output(["docker", "ps", "--quiet", "--filter", f"publish={port}"], timeout=30)
    if code != 0 or running.strip():
        return None
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError:
            return port if dockers_own_proxy(port) else None
    return port


def dockers_own_proxy(port: int, proc: Path = Path("/proc")) -> bool:
    """Whether a docker-proxy has this port of the host."""
    for file in proc.glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue  # it ended meanwhile
        if words[0].endswith(b"docker-proxy") and (b"-host-port", str(port).encode()) in pairwise(words):
            return True
    return False


def unpublished(name: str) -> str:
    """Return the ports that a running container was to publish and does not; "" when none is missing.

    A dockerd that was killed while it started a container can leave one that runs, healthy, and that nobody
    reaches."""
    template = "{{.State.Running}} {{json .HostConfig.PortBindings}} {{json .NetworkSettings.Ports}}"
    code, said = output(["docker", "inspect", "--format", template, name], timeout=30)
    running, _, ports = said.partition(" ")
    if code != 0 or running != "true":
        return ""
    try:
        wanted, end = json.JSONDecoder().raw_decode(ports)
        published = json.loads(ports[end:])
        return ", ".join(port for port, there in wanted.items() if there and not published.get(port))
    except (ValueError, AttributeError):
        return ""  # an answer of another Docker: no reason to stop anything


def stop_container(name: str) -> bool:
    """Stop a container; return False, at once, when dockerd is down.

    systemd starts dockerd only once we have ended, and its socket, which systemd holds meanwhile, would let
    us wait for an answer until we are killed.
    """
    # Not by Compose: it takes seconds to begin on a busy machine. The next start removes what is left.
    asked = subprocess.Popen(["docker", "stop", "--time", str(STOP_SECONDS), name])
    while True:
        try:
            return asked.wait(timeout=STOP_LOOK_SECONDS) == 0 or docker_answers()
        except subprocess.TimeoutExpired:
            if not docker_answers():
                asked.kill()
                asked.wait()
                return False


def docker_answers() -> bool:
    """Whether dockerd answers now."""
    return output(["docker", "version", "--format", "{{.Server.Version}}"], timeout=20)[0] == 0


def wait_for_docker(stopping: Sequence[int], seconds: float = 600.0) -> None:
    """Wait until Docker answers."""
    deadline = time.monotonic() + seconds
    while not docker_answers():
        if stopping or time.monotonic() > deadline:
            raise AgentError("Docker does not answer", 10)
        time.sleep(1)


def remove_others(name: str) -> None:
    """Remove containers of our project that are not this release's; they may be left of a crash."""
    command = ["docker", "ps", "--all", "--filter", f"label=com.docker.compose.project={PROJECT}", "--format"]
    text = output([*command, f'{{{{.ID}}}} {{{{.Label "{RELEASE_LABEL}"}}}}'])[1]
    for line in text.splitlines():
        found, _, label = line.partition(" ")
        if label and label != name:
            output(["docker", "rm", "--force", found])


def apply(host: Host, target: str | None, *, kind: str, ready_seconds: float) -> State:
    """Note the change to a staged release (None: the previous one), hand it to systemd, return the state."""
    state = host.read()
    if target is None:
        if state["previous"] is None:
            raise AgentError("there is no previous release to return to")
        target = str(state["previous"]["release"])
    facts = host.facts(target)
    keys = ("release", "plan_id", "image", "profile", "model", "rehearsal", "ready_seconds")
    entry = {**{key: facts.get(key) for key in keys}, "ready_seconds": ready_seconds}
    host.prepare()
    deadline = time.monotonic() + 60
    while host.read()["in_progress"] is None and roll_is_running() and time.monotonic() < deadline:
        time.sleep(0.2)  # the change before has ended and tidies up
    state = host.change(lambda old: begin(settled(old), entry, kind=kind, now=now()))
    output(["systemctl", "reset-failed", ROLL_UNIT])
    command = ["systemd-run", "--unit", ROLL_UNIT, "--collect", "--quiet", "--property=Restart=on-abnormal"]
    command += ["--property=KillMode=process", sys.executable, str(Path(__file__).resolve())]
    code, text = output([*command, "--root", str(host.root), "transact"])
    if code != 0:
        raise AgentError(f"systemd does not take the change: {text.strip()}")
    return state


def settled(state: State) -> State:
    """Return the state without a change whose transaction is gone; raise when one is running."""
    progress = state["in_progress"]
    if progress is None or progress["phase"] == "begun":
        return state
    if roll_is_running():
        raise AgentError(f"a change to {progress['release']['release']} is running on this host")
    return restored(state, now=now(), failure="its transaction was killed")


def transact(host: Host) -> int:
    """Carry a noted change through: switch, prove it with a completion, commit; or bring the old one back.

    May be killed and started again at any point; goes on with the phase that the state names."""
    state = host.read()
    progress = state["in_progress"]
    if progress is None:
        return 0
    facts = host.facts(progress["release"]["release"])
    ready_seconds = float(progress["release"]["ready_seconds"])
    failure = progress["failure"]
    if progress["phase"] == "begun":
        host.change(lambda old: advance(old, "switching", now=now()))
        progress = {"phase": "switching"}
    if progress["phase"] == "switching":
        restart_engine()
        host.change(lambda old: advance(old, "trial", now=now()))
        progress = {"phase": "trial"}
    if progress["phase"] == "trial":
        failure = prove(host, facts, ready_seconds)
        if failure is None:
            state = host.change(lambda old: commit(old, now=now()))
            host.prune(state)
            host.prepare()
            return 0
        evidence = host.evidence(facts)
        reason = f"{failure}\n{evidence}" if evidence else failure
        state = host.change(lambda old: advance(old, "restoring", now=now(), failure=reason))
    return restore(host, state, ready_seconds)


def restore(host: Host, state: State, ready_seconds: float) -> int:
    """Bring the current release back and note how that went."""
    current = state["current"]
    if current is None:
        output(["systemctl", "stop", ENGINE_UNIT])
        host.change(lambda old: restored(old, now=now(), outcome="nothing"))
        return 15
    facts = host.facts(current["release"])
    restart_engine()
    failure = prove(host, facts, max(ready_seconds, float(current.get("ready_seconds") or 0)))
    outcome = "restored" if failure is None else "down"
    reason = state["in_progress"]["failure"]
    if failure is not None:
        reason = f"{reason}\nand the old release does not answer either: {failure}"
    state = host.change(lambda old: restored(old, now=now(), outcome=outcome, failure=reason))
    host.prune(state)
    host.prepare()
    return 15


def restart_engine() -> None:
    """Have systemd stop what serves and start what the state names."""
    output(["systemctl", "reset-failed", ENGINE_UNIT])
    output(["systemctl", "restart", ENGINE_UNIT])


def prove(host: Host, facts: Mapping[str, Any], seconds: float) -> str | None:
    """Wait for a real completion; return None when it came, else why it will not come."""
    deadline = time.monotonic() + seconds
    why = "it was not asked"
    code = "0"
    before = int(unit(ENGINE_UNIT).get("NRestarts") or 0)
    while True:
        why_now = host.completion(facts)
        if why_now is None:
            return None
        why = why_now
        there = unit(ENGINE_UNIT)
        # While the next start runs, systemd says 0 of it: the code of the last one that ended counts.
        if there.get("ExecMainStatus", "0") != "0":
            code = there["ExecMainStatus"]
        if there.get("ActiveState") in ("failed", "inactive"):
            return f"the engine ended with exit code {code} ({there.get('Result')}); {why} (exit code {code})"
        if int(there.get("NRestarts") or 0) - before >= TRIAL_STARTS:
            return f"the engine ended {TRIAL_STARTS} times, last with exit code {code}; {why}"
        if time.monotonic() > deadline:
            return f"not ready in {seconds:.0f} s: {why} (exit code 15)"
        time.sleep(1)


def show(host: Host, *, ask: bool) -> dict[str, Any]:
    """Return the state, whether a transaction runs, and with `ask` whether the engine answers now."""
    state = host.read()
    answer: dict[str, Any] = {**state, "running": roll_is_running(), "serving": serving(state)}
    if ask:
        name = serving(state)
        why = "nothing is deployed" if name is None else None
        if name is not None:
            try:
                why = host.completion(host.facts(name))
            except AgentError as error:
                why = str(error)
        answer |= {"ready": why is None, "why_not": why}
    if state["in_progress"]:
        with contextlib.suppress(AgentError):
            answer["engine"] = engine_health(host.facts(state["in_progress"]["release"]["release"]))
    return answer


def engine_health(facts: Mapping[str, Any]) -> Any:
    """Return what `deploy-kit health --json` says in the container: phase and progress of a start."""
    text = output(["docker", "exec", container(facts), "deploy-kit", "health", "--json"], timeout=20)[1]
    try:
        return json.loads(text)
    except ValueError:
        return None


def wait(host: Host, seconds: float) -> dict[str, Any]:
    """Wait until no transaction runs, or so many seconds; return what `show` returns."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        state = host.read()
        if state["in_progress"] is None or (
            state["in_progress"]["phase"] != "begun" and not roll_is_running()
        ):
            break
        time.sleep(0.5)
    return show(host, ask=host.read()["in_progress"] is None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the command line; print one JSON object (but `run`), return the exit code."""
    parser = argparse.ArgumentParser(prog="host_agent.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path("/var/lib/deploy-kit"))
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="serve what the state names (the unit's main process)")
    commands.add_parser("stage", help="write a release given as JSON on stdin")
    commands.add_parser("transact", help="carry a noted change through")
    one = commands.add_parser("show", help="print the state")
    one.add_argument("--ask", action="store_true", help="ask the engine for a completion too")
    one = commands.add_parser("apply", help="change to a staged release")
    one.add_argument("release", nargs="?", help="without: the previous one")
    one.add_argument("--kind", default="deploy", choices=["deploy", "rollback", "repair"])
    one.add_argument("--ready-seconds", type=float, default=2700.0)
    one = commands.add_parser("wait", help="wait for a transaction")
    one.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args(arguments)
    host = Host(options.root)
    try:
        if options.command == "run":
            return run(host)
        if options.command == "transact":
            return transact(host)
        answer: Any
        if options.command == "stage":
            answer = {"changed": host.stage(json.load(sys.stdin))}
        elif options.command == "show":
            answer = show(host, ask=options.ask)
        elif options.command == "apply":
            answer = apply(host, options.release, kind=options.kind, ready_seconds=options.ready_seconds)
        else:
            answer = wait(host, options.seconds)
    except AgentError as error:
        print(f"{error} (exit code {error.code})", file=sys.stderr)
        return error.code
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        code = 13 if full else 14
        print(f"{error} (exit code {code})", file=sys.stderr)
        return code
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
