"""Starting the real SGLang (CPU back end) under `deploy-kit serve`, held where a test wants it.

A tiny model loads in milliseconds, so a plug-in of SGLang's own kind (written here, for tests) can hold the
engine before it goes on: in `starting`, `loading`, `allocating`, or before a batch.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from deploy_kit.runtime.child import living_members
from deploy_kit.runtime.process_facts import look_at_group

ROOT = Path(__file__).parents[3]
START_SECONDS = 240.0
READY_LINE = b"The server is fired up and ready to roll"
HOLD_PLUGIN = '''
"""Holds the engine at a named place while a file `hold-NAME` is there. For tests."""
import os
import time
from pathlib import Path

PLACES = {
    "starting": "sglang.srt.model_executor.model_runner.ModelRunner.init_torch_distributed",
    "loading": "sglang.srt.model_executor.model_runner.set_cuda_arch",
    "allocating": "sglang.srt.model_executor.model_runner.ModelRunner.init_attention_backends",
    "batch": "sglang.srt.managers.scheduler.Scheduler.run_batch",
}


def make(name):
    folder = Path(os.environ["KIT_HOLD_FOLDER"])

    def hold(*_args, **_keywords):
        if (folder / f"hold-{name}").exists():
            (folder / f"at-{name}").write_text(str(os.getpid()))
            while (folder / f"hold-{name}").exists():
                time.sleep(0.05)

    return hold


def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for name, target in PLACES.items():
        HookRegistry.register(target, make(name), HookType.BEFORE)
'''


class Serve:
    """`deploy-kit serve` with configurations, models and a state folder of its own."""

    def __init__(self, folder: Path, models: Path) -> None:
        self.folder, self.models = folder, folder / "models"
        shutil.copytree(models, self.models)
        self.configs = folder / "configs"
        shutil.copytree(ROOT / "configs", self.configs)
        self.model_file = self.configs / "models" / "rehearsal-tiny.toml"
        self.edit("/opt/rehearsal/models", str(self.models))
        with (self.configs / "hosts" / "rehearsal.toml").open("a") as host:  # its last table is [environment]
            host.write('SGLANG_PLUGINS = "deploy_kit_telemetry,deploy_kit_rehearsal,kit_hold"\n')
        self.state_folder = folder / "state"
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.plugins = folder / "plugins"
        facts = self.plugins / "kit_hold-0.dist-info"
        facts.mkdir(parents=True)
        (self.plugins / "kit_hold.py").write_text(HOLD_PLUGIN)
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: kit-hold\nVersion: 0\n")
        (facts / "entry_points.txt").write_text("[sglang.srt.plugins]\nkit_hold = kit_hold:register\n")

    def edit(self, old: str, new: str) -> None:
        """Change the model's configuration."""
        text = self.model_file.read_text()
        assert old in text
        self.model_file.write_text(text.replace(old, new))

    def start(
        self,
        profile: str,
        *,
        output: IO[bytes] | int | None = None,
        port: int | None = None,
        wrapper: tuple[str, ...] = (),
    ) -> None:
        """Start serving, on a free port unless told; `output`: a file to write to instead of the log."""
        with socket.socket() as a, socket.socket() as b:
            a.bind(("127.0.0.1", 0))
            b.bind(("127.0.0.1", 0))
            self.port, exporter = port or a.getsockname()[1], b.getsockname()[1]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(self.plugins))),
            "DEPLOY_KIT_CONFIGS": str(self.configs),
            "DEPLOY_KIT_HOST": "rehearsal",
            "DEPLOY_KIT_STATE_DIR": str(self.state_folder),
            "DEPLOY_KIT_STARTS": str(self.state_folder),  # not the image's, which every test would share
            "DEPLOY_KIT_PORT": str(self.port),
            "DEPLOY_KIT_EXPORTER_PORT": str(exporter),
            "KIT_HOLD_FOLDER": str(self.folder),
        }
        self.exporter_port = exporter
        log = (self.folder / "log").open("wb")
        argv = (sys.executable, "-m", "deploy_kit", "serve", profile, "--allow-missing-telemetry")
        self.process = subprocess.Popen(
            [*wrapper, *argv],
            env=environment,
            stdout=output if output is not None else log,
            stderr=subprocess.STDOUT,
        )
        log.close()

    # ---------------------------------------------------------------- holding

    def hold(self, place: str) -> None:
        """Let the engine stop at `place` when it comes there."""
        (self.folder / f"hold-{place}").touch()

    def wait_held(self, place: str) -> int:
        """Wait until the engine stands at `place`; return the id of the process that does."""
        marker = self.folder / f"at-{place}"
        self.wait(lambda: marker.exists() and marker.read_text() != "")
        return int(marker.read_text())

    def release(self, place: str) -> None:
        """Let the engine go on."""
        (self.folder / f"hold-{place}").unlink()
        (self.folder / f"at-{place}").unlink(missing_ok=True)

    # ---------------------------------------------------------------- looking

    def state(self) -> dict[str, Any]:
        """Return the state file's content; empty while there is none."""
        try:
            state: dict[str, Any] = json.loads((self.state_folder / "state.json").read_text())
        except (OSError, ValueError):
            return {}
        return state

    def details(self) -> dict[str, Any]:
        """Return the state's details."""
        details: dict[str, Any] = self.state().get("details", {})
        return details

    @property
    def group(self) -> int:
        """The engine's process group."""
        return int(self.state()["engine_pid"])

    def scheduler(self) -> int:
        """Return the process id of the one scheduler."""
        (pid,) = look_at_group(self.group).schedulers
        return int(pid)

    def log_bytes(self) -> bytes:
        """Return the log so far."""
        with suppress(OSError):
            return (self.folder / "log").read_bytes()
        return b""

    def tail(self) -> str:
        """Return the end of the log, for a failing test."""
        return self.log_bytes()[-3000:].decode(errors="replace")

    def wait(self, condition: Callable[[], bool], seconds: float = START_SECONDS) -> float:
        """Wait for a condition while serve runs; return how long it took."""
        started = time.monotonic()
        while not condition():
            assert self.process is not None
            assert self.process.poll() is None, self.tail()
            assert time.monotonic() - started < seconds, (self.state(), self.tail())
            time.sleep(0.05)
        return time.monotonic() - started

    def wait_phase(self, phase: str, seconds: float = START_SECONDS) -> float:
        """Wait until the state file names a phase."""
        return self.wait(lambda: self.state().get("phase") == phase, seconds)

    def wait_cause(self, seconds: float) -> float:
        """Wait, even past serve's end, until the state names a cause; return how long it took."""
        started = time.monotonic()
        while not (self.state().get("cause") or self.details().get("cause")):
            assert time.monotonic() - started < seconds, (self.state(), self.tail())
            time.sleep(0.05)
        return time.monotonic() - started

    def end(self, seconds: float = START_SECONDS) -> int:
        """Wait for serve's end; return its exit code. No process of the engine may be left."""
        assert self.process is not None
        try:
            code = self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"serve hangs: {self.state()}\n{self.tail()}") from None
        pid = self.state().get("engine_pid")
        if pid is not None:
            assert living_members(int(pid)) == []
        return code

    def cause_id(self) -> str:
        """Return the cause's id in the post-mortem file."""
        return str(self.post_mortem()["explanation"]["cause_id"])

    def post_mortem(self) -> dict[str, Any]:
        """Return the post-mortem file."""
        content: dict[str, Any] = json.loads((self.state_folder / "post-mortem.json").read_text())
        return content

    def close(self) -> None:
        """End whatever still runs."""
        for marker in self.folder.glob("hold-*"):
            marker.unlink()
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
