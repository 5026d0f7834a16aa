"""Starts the real SGLang server on its CPU backend for one test, and asks it questions."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What the rehearsal needs of SGLang, whatever the profile (docs/rehearsal.md says why).
ENGINE_ARGV = (
    "--device", "cpu",
    "--attention-backend", "intel_amx",
    "--sleep-on-idle",
    "--disable-cuda-graph",
    "--enable-metrics",
    "--context-length", "2048",
    "--max-total-tokens", "8192",
    "--max-running-requests", "8",
)  # fmt: skip
ENGINE_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "SGLANG_PLUGINS": "deploy_kit_rehearsal",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
# The gauge of accept length is a mean over so many verifies.
DECODE_LOG_INTERVAL = 16
READY_LIMIT_SECONDS = 400.0  # 15 on a quiet machine of two cores


@dataclass
class Server:
    url: str
    log: Path
    ready_seconds: float

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return str(answer.read().decode())

    def post(self, path: str, body: dict[str, Any]) -> bytes:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return bytes(answer.read())

    def generate(self, text: str, count: int) -> dict[str, Any]:
        """`count` greedy tokens after `text`, with SGLang's own meta_info."""
        body = {"text": text, "sampling_params": {"max_new_tokens": count, "temperature": 0}}
        return dict(json.loads(self.post("/generate", body)))

    def chat(self, content: str, count: int) -> dict[str, Any]:
        """A chat completion of `count` tokens; no temperature is given: the model's default is greedy."""
        body = {"model": "any", "messages": [{"role": "user", "content": content}], "max_tokens": count}
        return dict(json.loads(self.post("/v1/chat/completions", body)))

    def chat_streamed(self, content: str, count: int) -> tuple[str, int, int]:
        """The same, streamed: its text, the number of pieces it came in, and the completion tokens of the
        usage."""
        body = {
            "model": "any",
            "messages": [{"role": "user", "content": content}],
            "max_tokens": count,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        pieces, tokens = [], 0
        for line in self.post("/v1/chat/completions", body).decode().splitlines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            pieces += [choice["delta"].get("content") or "" for choice in event["choices"]]
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        return "".join(pieces), len([piece for piece in pieces if piece]), tokens

    def metric(self, name: str) -> float:
        """The sum of a metric's samples (one tensor-parallel rank reports)."""
        found = re.findall(rf"^sglang:{name}\{{[^}}]*\}} (\S+)$", self.get("/metrics"), re.MULTILINE)
        if not found:
            raise AssertionError(f"/metrics has no sglang:{name}")
        return sum(map(float, found))


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Ready is a real answer (its one token comes from the prefill, so it costs no verify), not a status
    alone."""
    deadline = time.monotonic() + READY_LIMIT_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"the server exited with {process.returncode}:\n{log.read_text()[-4000:]}")
        with contextlib.suppress(OSError, urllib.error.URLError):
            urllib.request.urlopen(url + "/ready", timeout=5).close()
            Server(url, log, 0.0).generate("ready?", 1)
            return
        time.sleep(0.2)
    raise AssertionError(f"not ready within {READY_LIMIT_SECONDS} s:\n{log.read_text()[-4000:]}")


@contextlib.contextmanager
def serving(model: Path, folder: Path, *argv: str, **environment: str) -> Iterator[Server]:
    """Serve `model` with further arguments while the block runs; then end it and see that it ended well."""
    port = free_port()
    log = folder / "server.log"
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), *ENGINE_ARGV,
        "--decode-log-interval", str(DECODE_LOG_INTERVAL),
        "--host", "127.0.0.1", "--port", str(port), *argv,
    ]  # fmt: skip
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ENGINE_ENVIRONMENT, **environment},
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, url, log)
        ready = time.monotonic() - started
        print(f"ready after {ready:.1f} s: {' '.join(argv) or 'baseline'}")
        yield Server(url, log, ready)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0, log.read_text()[-4000:]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
