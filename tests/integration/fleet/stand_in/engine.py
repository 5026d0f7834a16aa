#!/usr/bin/python3
"""A stand-in for the engine: it speaks enough of the OpenAI API and of `deploy-kit serve` to be rolled.

It computes nothing. `/etc/stand-in.json` in its image says how it behaves: {"version": text it answers with,
"behaviour": "serves" | "never-ready" | "exits" | "refuses", "exit_code": number, "ready_seconds": number}.
Called as `deploy-kit serve PROFILE` (through the image's entrypoint) and `deploy-kit health [--json]`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

SETTINGS: dict[str, Any] = {"version": "1", "behaviour": "serves", "exit_code": 41, "ready_seconds": 0.5}
MODEL = os.environ.get("STAND_IN_MODEL", "rehearsal-tiny")
PORT = int(os.environ.get("DEPLOY_KIT_PORT", "30000"))
EXPORTER_PORT = int(os.environ.get("DEPLOY_KIT_EXPORTER_PORT", "9400"))
SECONDS_A_TOKEN = 0.02
started = time.monotonic()
running = [0]  # requests, in a list of one so that handlers may count it
draining = threading.Event()
lock = threading.Lock()


def ready() -> bool:
    """Whether it answers completions."""
    return SETTINGS["behaviour"] == "serves" and time.monotonic() - started >= float(
        SETTINGS["ready_seconds"]
    )


def api_key() -> str | None:
    """The key that requests must carry; None when there is no file."""
    path = Path(os.environ.get("DEPLOY_KIT_API_KEY_FILE", "/run/secrets/api_key"))
    return path.read_text().strip() if path.is_file() else None


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing: the log is for lines that matter."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in ("/health", "/ready", "/health_generate"):
            return self.answer(200 if ready() else 503, {"ready": ready()})
        if path == "/metrics":
            text = (
                f'sglang:num_running_reqs{{model_name="{MODEL}",tp_rank="0"}} {running[0]}\n'
                f'sglang:num_queue_reqs{{model_name="{MODEL}",tp_rank="0"}} 0\n'
            )
            return self.send(200, text.encode(), "text/plain; version=0.0.4")
        if not self.allowed():
            return self.answer(401, {"error": "no key"})
        if path == "/v1/models":
            return self.answer(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        if path in ("/model_info", "/get_model_info"):
            return self.answer(200, {"model_path": MODEL, "served_model_name": MODEL, "is_generation": True})
        if path in ("/server_info", "/get_server_info"):
            return self.answer(200, {"model_path": MODEL, "served_model_name": MODEL, "version": "stand-in"})
        return self.answer(404, {"error": "not found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if not self.allowed():
            return self.answer(401, {"error": "no key"})
        if not ready():
            return self.answer(503, {"error": "not ready"})
        with lock:
            running[0] += 1
        try:
            self.generate(body)
        finally:
            with lock:
                running[0] -= 1

    def generate(self, body: dict[str, Any]) -> None:
        """Take the time that so many tokens would take, then answer which version this is."""
        tokens = int(body.get("max_tokens") or body.get("sampling_params", {}).get("max_new_tokens") or 16)
        text = f"stand-in {SETTINGS['version']} on {os.environ.get('STAND_IN_HOST', 'a host')}"
        usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
        if body.get("stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for number in range(tokens):
                time.sleep(SECONDS_A_TOKEN)
                delta = {"content": text if number == 0 else "."}
                line = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": MODEL,
                        "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}  # fmt: skip
                self.wfile.write(f"data: {json.dumps(line)}\n\n".encode())
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")
            self.close_connection = True
            return
        time.sleep(tokens * SECONDS_A_TOKEN)
        if self.path == "/generate":
            self.answer(200, {"text": text, "meta_info": {"completion_tokens": tokens}})
            return
        message = {"role": "assistant", "content": text}
        self.answer(200, {
            "id": "1", "object": "chat.completion", "created": 1, "model": MODEL, "usage": usage,
            "choices": [{"index": 0, "message": message, "text": text, "finish_reason": "length"}],
        })  # fmt: skip

    def allowed(self) -> bool:
        """Whether the request carries the key."""
        key = api_key()
        return key is None or self.headers.get("Authorization") == f"Bearer {key}"

    def answer(self, status: int, body: dict[str, Any]) -> None:
        """Send JSON."""
        self.send(status, json.dumps(body).encode(), "application/json")

    def send(self, status: int, data: bytes, kind: str) -> None:
        """Send a whole answer."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Exporter(BaseHTTPRequestHandler):
    """The port where `deploy-kit serve` exports: a few of its names, for a Prometheus to read."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""

    def do_GET(self) -> None:
        data = f"deploy_kit_up 1\ndeploy_kit_engine_ready {int(ready())}\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    """Threads end with the process; the backlog holds a burst."""

    daemon_threads = True
    request_queue_size = 128


def serve(profile: str) -> int:
    """Serve until SIGTERM, then finish what is running."""
    if "--check" in sys.argv:
        print(
            "stand-in: it would serve"
            if SETTINGS["behaviour"] != "refuses"
            else "unknown flag --no-such-flag"
        )
        return 0 if SETTINGS["behaviour"] != "refuses" else 41
    print(f"stand-in engine {SETTINGS['version']}, profile {profile}: {SETTINGS['behaviour']}", flush=True)
    if SETTINGS["behaviour"] == "exits":
        print("error: unrecognized arguments: --no-such-flag", flush=True)
        return int(SETTINGS["exit_code"])
    server = Server(("0.0.0.0", PORT), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    exporter = Server(("0.0.0.0", EXPORTER_PORT), Exporter)
    threading.Thread(target=exporter.serve_forever, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: draining.set())
    signal.signal(signal.SIGINT, lambda *_: draining.set())
    draining.wait()
    server.shutdown()
    deadline = time.monotonic() + 30
    while running[0] and time.monotonic() < deadline:
        time.sleep(0.05)
    return 0


def health(as_json: bool) -> int:
    """Ask the server in this container."""
    try:
        with urlopen(f"http://127.0.0.1:{PORT}/health", timeout=3) as answer:
            good = answer.status == 200
    except OSError:
        good = False
    if as_json:
        details = {} if good else {"progress_ratio": 0.25, "progress_text": "1/4 shards"}
        state = {"phase": "serving" if good else "loading", "plan_id": None, "details": details}
        print(json.dumps({"ready": good, "state": state}))
    return 0 if good else 15


def main() -> int:
    """Take the command line of `deploy-kit`."""
    settings = Path("/etc/stand-in.json")
    if settings.is_file():
        SETTINGS.update(json.loads(settings.read_text()))
    if sys.argv[1:2] == ["health"]:
        return health("--json" in sys.argv)
    return serve((sys.argv[2:] or ["baseline"])[0])


if __name__ == "__main__":
    sys.exit(main())
