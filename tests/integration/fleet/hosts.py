"""Three boxes and a gateway as systemd containers, for rolling a real playbook over them.

Each box has its own systemd, sshd and dockerd; the gateway's machine has smg and a registry. They are
privileged, because a dockerd in a container must be: these test machines only. Boxes run a stand-in engine
(stand_in/engine.py), unless a test gives one the real rehearsal image. Everything is named
`deploy-kit-fleet-*` and removed by `stop`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import ubuntu_root
import yaml

from deploy_kit.deploy.images import apt_configuration, debian_sources

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CACHE = ROOT / ".cache/fleet"
NAME = "deploy-kit-fleet"
BOXES = ("box-1", "box-2", "box-3")
GATEWAY = "gateway-1"
SMALL = "box-3"
SMALL_DISKS = {"/var/lib/docker": "1500m", "/var/lib/deploy-kit": "4m"}
KEY = "fleet-key-0123456789abcdef"
MODEL = "rehearsal-tiny"
REGISTRY = f"{NAME}-{GATEWAY}:5000"
PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "openssh-server", "python3", "python3-venv", "ca-certificates",
    "iproute2", "iptables", "docker.io", "docker-cli", "docker-compose", "docker-registry", "procps",
)  # fmt: skip
# The role container_engine's choice for Debian 12: these come from the next release, runc does not.
_PINS = (
    "Package: *\\nPin: release n=trixie\\nPin-Priority: -10\\n\\n"
    "Package: docker.io docker-cli docker-compose\\nPin: release n=trixie\\nPin-Priority: 990\\n"
)
_REGISTRY_SETTINGS = """\
version: 0.1
storage: {filesystem: {rootdirectory: /var/lib/docker-registry}}
http: {addr: ":5000"}
"""
_APT = "/etc/apt/preferences.d"


def run(*command: str, check: bool = True, timeout: float = 300, text_input: str | None = None) -> str:
    """Run a command and return its stdout; its output is in the error when it fails."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=timeout,
        input=text_input,
    )
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command[:8])}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def docker_answers() -> bool:
    """Whether a Docker daemon is there, on which privileged containers may be started."""
    try:
        return subprocess.run(["docker", "version"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def has_image(name: str) -> bool:
    """Whether an image is there."""
    done = subprocess.run(["docker", "image", "inspect", name], capture_output=True, check=False)
    return done.returncode == 0


# --------------------------------------------------------------------------------------------------- images


def ubuntu_image() -> str:
    """Return the same for Ubuntu 24.04, with the packages that the role container_engine installs there."""
    packages = [one for one in PACKAGES if not one.startswith("docker")]
    packages += ["apt", "docker.io", "docker-compose-v2"]
    tag = f"{NAME}-root:noble-{hashlib.sha256(repr(packages).encode()).hexdigest()[:12]}"
    if not has_image(tag) and ubuntu_root.make_root(tag, packages) is None:
        pytest.skip("no archive of Ubuntu answers beside Debian's, or no package of its key")
    return tag


def root_image() -> str:
    """Return the image of a Debian root file system with systemd and Docker, made when it is not there."""
    tag = f"{NAME}-root:{hashlib.sha256(repr((PACKAGES, _PINS)).encode()).hexdigest()[:12]}"
    if has_image(tag):
        return tag
    sources = debian_sources("bookworm") + debian_sources("trixie")
    if not debian_sources("trixie"):
        # This machine never installed Docker by our role: the same archive has the next release too.
        sources += "".join(
            line.replace(" bookworm ", " trixie ") + "\n"
            for line in debian_sources("bookworm").splitlines()
            if " bookworm " in line
        )
    settings = apt_configuration(run("apt-config", "dump"))
    with tempfile.TemporaryDirectory(prefix="deploy-kit-fleet-") as folder:
        archive = Path(folder) / "root.tar"
        run(
            "mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}",
            *(f"--aptopt={line.removesuffix(';')}" for line in settings.splitlines()),
            '--aptopt=Apt::Install-Recommends "false"',
            *(f"--dpkgopt=path-exclude={path}" for path in ("/usr/share/man/*", "/usr/share/locale/*")),
            f"--setup-hook=mkdir -p $1{_APT}; printf '{_PINS}' > $1{_APT}/docker",
            "bookworm", str(archive), "-",
            text_input=sources, timeout=900,
        )  # fmt: skip
        run("docker", "import", str(archive), tag, timeout=300)
    return tag


def build(target: str, settings: Mapping[str, Any], *, root: str = "") -> str:
    """Build one target of host.Dockerfile on a root file system (Debian's unless told); return its tag, which
    is a hash of what went in."""
    scripts = ("engine.py", "grafana.py")
    recipe = "".join(
        path.read_text() for path in (HERE / "host.Dockerfile", *(HERE / "stand_in" / one for one in scripts))
    )
    base = root or root_image()
    text = json.dumps([recipe, base, target, dict(settings)], sort_keys=True)
    tag = f"{NAME}-{target}:{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if has_image(tag):
        return tag
    with tempfile.TemporaryDirectory(prefix="deploy-kit-fleet-") as folder:
        context = Path(folder)
        (context / "stand_in").mkdir()
        for script in scripts:
            shutil.copy(HERE / "stand_in" / script, context / "stand_in")
        (context / "settings.json").write_text(json.dumps(dict(settings)))
        run(
            "docker", "buildx", "build", "--load", "--quiet", "--network", "none",
            "--file", str(HERE / "host.Dockerfile"), "--target", target,
            "--build-arg", f"BASE={base}", "--tag", tag, folder,
        )  # fmt: skip
    return tag


def gateway_wheels() -> Path:
    """Return a folder with what the gateway's lock names, for a machine without an index."""
    lock = ROOT / "ansible/roles/gateway/files/requirements.txt"
    folder = CACHE / f"wheels-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if not (folder / ".complete").exists():
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "--only-binary",
        ]
        run(*pip, ":all:", "--dest", str(folder), "--requirement", str(lock), timeout=600)
        (folder / ".complete").touch()
    return folder


# ---------------------------------------------------------------------------------------------------- hosts


@dataclass
class Fleet:
    """The running machines. `address` by name; `registry` is where this machine pushes to."""

    folder: Path
    address: dict[str, str] = field(default_factory=dict)
    registry: str = ""
    # What inventories say besides: the gateway's machine watches the fleet; variables of single hosts; boxes
    # left out.
    watched: bool = False
    own: dict[str, dict[str, Any]] = field(default_factory=dict)
    absent: tuple[str, ...] = ()

    def start(self) -> None:
        """Start all machines and wait until each has systemd, SSH and Docker."""
        self.stop()
        image = build("host", {})
        images = dict.fromkeys((GATEWAY, *BOXES), image)
        if on_ubuntu := os.environ.get("FLEET_UBUNTU"):
            images[on_ubuntu] = build("host", {}, root=ubuntu_image())
        run("docker", "network", "create", NAME)
        self.folder.mkdir(parents=True, exist_ok=True)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "id"))
        for name in (GATEWAY, *BOXES):
            # What systemd in a container wants; Docker's folders are volumes, because overlayfs wants one
            # (Ubuntu's Docker 29 in containerd's folder).
            systemd = ["--privileged", "--cgroupns=private", "--tmpfs", "/run", "--tmpfs", "/run/lock"]
            extra = ["--publish", "127.0.0.1::5000"] if name == GATEWAY else []
            volume = [f"--volume={NAME}-{name}-{one}:/var/lib/{one}" for one in ("docker", "containerd")]
            if name == SMALL:  # disks that a test can fill; in memory, so not for a reboot
                volume = [f"--tmpfs={path}:size={size},exec,dev,suid" for path, size in SMALL_DISKS.items()]
            run(
                "docker", "run", "--detach", "--name", f"{NAME}-{name}", "--hostname", name,
                "--network", NAME, *systemd, *volume, *extra, images[name],
            )  # fmt: skip
        known = []
        for name in (GATEWAY, *BOXES):
            self.wait_for_systemd(name)
            self.put(name, "/root/.ssh/authorized_keys", (self.folder / "id.pub").read_text(), mode="600")
            daemon = {"insecure-registries": [REGISTRY], "mtu": 1400}
            self.put(name, "/etc/docker/daemon.json", json.dumps(daemon))
            self.on(name, "systemctl restart docker.service || true")
            template = f'{{{{(index .NetworkSettings.Networks "{NAME}").IPAddress}}}}'
            self.address[name] = run("docker", "inspect", "--format", template, f"{NAME}-{name}").strip()
            key = self.on(name, "cat /etc/ssh/ssh_host_ed25519_key.pub").split()
            known.append(f"{self.address[name]} {key[0]} {key[1]}\n")
        (self.folder / "known_hosts").write_text("".join(known))
        # Debian's own settings ask for a password.
        self.put(GATEWAY, "/etc/docker/registry/config.yml", _REGISTRY_SETTINGS)
        self.on(
            GATEWAY, "systemctl unmask docker-registry.service && systemctl start docker-registry.service"
        )
        run("docker", "cp", f"{gateway_wheels()}/.", f"{NAME}-{GATEWAY}:/wheels")
        published = run("docker", "port", f"{NAME}-{GATEWAY}", "5000/tcp").split()[0]
        self.registry = published
        (self.folder / "api_key").write_text(KEY + "\n")

    def takes_over(self) -> bool:
        """Take over the machines that an earlier run left with this folder; return whether they are there."""
        if not (self.folder / "known_hosts").exists():
            return False
        for name in (GATEWAY, *BOXES):
            template = f'{{{{.State.Running}}}} {{{{(index .NetworkSettings.Networks "{NAME}").IPAddress}}}}'
            said = run("docker", "inspect", "--format", template, f"{NAME}-{name}", check=False).split()
            if said[:1] != ["true"]:
                return False
            self.address[name] = said[1]
        self.registry = run("docker", "port", f"{NAME}-{GATEWAY}", "5000/tcp").split()[0]
        return True

    def stop(self) -> None:
        """Remove every machine, network and volume of ours; images stay, they are the cache."""
        listing = ["--all", "--quiet", "--filter", f"name=^{NAME}-"]
        for one in run("docker", "ps", *listing).split():
            run("docker", "rm", "--force", "--volumes", one, check=False)
        for one in run("docker", "volume", "ls", "--quiet", "--filter", f"name={NAME}-").split():
            run("docker", "volume", "rm", "--force", one, check=False)
        run("docker", "network", "rm", NAME, check=False)

    def wait_for_systemd(self, name: str, *, seconds: float = 120) -> None:
        """Wait until a machine's boot is over."""
        deadline = time.monotonic() + seconds
        while True:
            said = self.on(name, "systemctl is-system-running", check=False).strip()
            if said in ("running", "degraded"):
                return
            assert time.monotonic() < deadline, f"{name}: {said}"
            time.sleep(0.5)

    def on(self, name: str, script: str, *, check: bool = True, timeout: float = 120) -> str:
        """Run a shell script on a machine (through Docker, so that it works without its network)."""
        return run("docker", "exec", f"{NAME}-{name}", "sh", "-c", script, check=check, timeout=timeout)

    def put(self, name: str, path: str, text: str, *, mode: str = "644") -> None:
        """Write a file on a machine."""
        script = f"mkdir -p $(dirname {path}); cat > {path}; chmod {mode} {path}"
        run("docker", "exec", "--interactive", f"{NAME}-{name}", "sh", "-c", script, text_input=text)

    def publish(self, image: str) -> str:
        """Push an image to the registry; return the reference by digest that boxes use."""
        name = image.partition(":")[0]
        pushed = f"{self.registry}/{name}:{image.partition(':')[2]}"
        run("docker", "tag", image, pushed)
        out = run("docker", "push", pushed, timeout=600)
        run("docker", "rmi", pushed, check=False)
        digest = next(word for word in out.split() if word.startswith("sha256:"))
        return f"{REGISTRY}/{name}@{digest}"

    def stand_in(self, version: str, **settings: Any) -> str:
        """Build and push a stand-in engine; return its reference by digest."""
        return self.publish(build("stand-in", {"version": version, **settings}))

    # ------------------------------------------------------------------------------------------ deploying

    def inventory(self, image: str, **variables: Any) -> Path:
        """Write an inventory whose boxes serve `image`; return its path."""
        common = (
            f"-o UserKnownHostsFile={self.folder / 'known_hosts'} -o IdentitiesOnly=yes"
            f" -o ControlPath={self.folder}/%h -o ConnectTimeout=5"
            " -o ServerAliveInterval=5 -o ServerAliveCountMax=3"
        )
        everything = {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.folder / "id"),
            "ansible_ssh_args": "-o ControlMaster=auto -o ControlPersist=600s",
            "ansible_ssh_common_args": common,
            "ansible_python_interpreter": "/usr/bin/python3",
            "engine_image": image,
            "engine_profile": "baseline",
            "engine_rehearsal": True,
            "roll_api_key_source": str(self.folder / "api_key"),
            "roll_ready_seconds": 60,
            "roll_drain_seconds": 60,
            "roll_free_gigabytes": 1,
            "gateway_policy": "round_robin",
            "gateway_health_interval_seconds": 1,
            "gateway_health_timeout_seconds": 20,  # the machine that plays all four may be very busy
            "gateway_pip_arguments": ["--no-index", "--find-links", "/wheels"],
            **variables,
        }
        hosts = {
            name: {"ansible_host": address, **self.own.get(name, {})}
            for name, address in self.address.items()
        }
        groups = {"gateway": [GATEWAY], "engines": [name for name in BOXES if name not in self.absent]}
        if self.watched:
            groups["monitoring"] = [GATEWAY]
        tree = {
            "all": {
                "vars": everything,
                "children": {
                    group: {"hosts": {name: hosts[name] for name in names}} for group, names in groups.items()
                },
            }
        }
        path = self.folder / "inventory.yml"
        path.write_text(yaml.safe_dump(tree))
        return path

    def command(self, name: str, inventory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `deploy-kit deploy|rollback|status … --json` over an inventory."""
        return subprocess.run(
            [sys.executable, "-m", "deploy_kit", name, "--inventory", str(inventory), *arguments, "--json"],
            capture_output=True, text=True, check=False, cwd=ROOT, timeout=900, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def deploy(self, image: str, *arguments: str, command: str = "deploy", **variables: Any) -> Any:
        """Deploy (or roll back) and return the answer; fail with what it said."""
        done = self.command(command, self.inventory(image, **variables), *arguments)
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)

    def playbook(self, name: str, inventory: Path, *arguments: str) -> subprocess.Popen[str]:
        """Start a playbook by itself, in a process group of its own, to be killed."""
        program = str(Path(sys.executable).parent / "ansible-playbook")
        return subprocess.Popen(
            [program, "-i", str(inventory), f"ansible/{name}", *arguments],
            cwd=ROOT, text=True, stdout=(self.folder / "playbook.log").open("w"), stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible/ansible.cfg"), "LC_ALL": "C.UTF-8"},
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------- reading

    def state(self, name: str) -> Any:
        """Return a box's state file."""
        return json.loads(self.on(name, "cat /var/lib/deploy-kit/state.json"))

    def served_by(self, name: str) -> str | None:
        """Ask a box itself, past the gateway; return what its engine answered, or None."""
        try:
            return ask(f"http://{self.address[name]}:30000", tokens=1).content
        except (httpx.HTTPError, AssertionError):
            return None

    def workers(self) -> dict[str, str]:
        """Return the gateway's workers by box: status."""
        answer = self.on(
            GATEWAY,
            "python3 - <<'EOF'\n"
            "import urllib.request as r\n"
            "key = open('/var/lib/deploy-kit-gateway/secrets/admin_key').read().strip()\n"
            "q = r.Request('http://127.0.0.1:30080/workers', headers={'Authorization': 'Bearer ' + key})\n"
            "print(r.urlopen(q, timeout=10).read().decode())\nEOF",
        )
        by_address = {address: name for name, address in self.address.items()}
        listing = json.loads(answer)["workers"]
        return {by_address[one["url"].split("/")[2].split(":")[0]]: one["status"] for one in listing}

    @property
    def entrance(self) -> str:
        """The gateway's address for clients."""
        return f"http://{self.address[GATEWAY]}:30080"


# --------------------------------------------------------------------------------------------------- client


# Nothing here speaks TLS; reading the machine's certificates would cost more than a request.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass(frozen=True)
class Answer:
    """One completion."""

    content: str
    tokens: int


def ask(base: str, *, tokens: int = 8, stream: bool = False, timeout: float = 60) -> Answer:
    """Ask for a completion; any answer but a whole one raises."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"{time.time()} bridges"}],
        "max_tokens": tokens,
        "stream": stream,
    }
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(timeout=timeout, trust_env=False, headers=headers, verify=_NO_TLS) as client:
        if not stream:
            answer = client.post(f"{base}/v1/chat/completions", json=body)
            assert answer.status_code == httpx.codes.OK, f"{answer.status_code}: {answer.text[:300]}"
            whole = answer.json()
            return Answer(
                str(whole["choices"][0]["message"]["content"]), int(whole["usage"]["completion_tokens"])
            )
        with client.stream("POST", f"{base}/v1/chat/completions", json=body) as answer:
            text = "".join(answer.iter_text())
            assert answer.status_code == httpx.codes.OK, f"{answer.status_code}: {text[:300]}"
    assert "data: [DONE]" in text, f"a stream that ends early: {text[-200:]}"
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    said = "".join(json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines)
    return Answer(said, len(lines))


class Client:
    """A context in which requests go through the gateway; `answers` and `failures` afterwards."""

    def __init__(self, base: str, *, threads: int = 3, tokens: int = 15) -> None:
        self.base, self.tokens = base, tokens
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._loop, args=(number,)) for number in range(threads)]

    def _loop(self, number: int) -> None:
        while not self._stop.is_set():
            began = time.time()
            try:
                answer = ask(self.base, tokens=self.tokens, stream=number % 2 == 1)
                self.answers[answer.content.strip(".")] += 1
            except (httpx.HTTPError, AssertionError) as error:
                self.failures.append(f"{began:.1f} +{time.time() - began:.1f} s: {error!r}"[:400])
            time.sleep(0.02)

    def summary(self) -> str:
        """Say how many requests were sent and how many failed."""
        return f"{sum(self.answers.values()) + len(self.failures)} requests, {len(self.failures)} failed"

    def __enter__(self) -> Client:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=90)


def serving_versions(fleet: Fleet, names: Sequence[str] = BOXES) -> list[str | None]:
    """Return what each box's engine says when asked past the gateway: its version, or None."""
    said = [fleet.served_by(name) for name in names]
    return [None if one is None else one.split()[1] for one in said]
