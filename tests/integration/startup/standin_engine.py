"""A STAND-IN for the engine: prints an engine's lines and answers its endpoints, and fails in the way asked.

Not SGLang: for faults that the real one on a CPU cannot have, or that would cost a minute each.
Usage: standin_engine.py PORT SCENARIO
"""

# ruff: noqa: E501  (the lines of logs are data)
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, SCENARIO = int(sys.argv[1]), sys.argv[2]
STATE = {"up": False, "draining": False, "slow": 0.0, "completions": True, "open": 0}
QUIET_PHASES = {"hang-loading": "loading", "hang-init": "init", "hang-capture": "capture"}


def say(text: str) -> None:
    os.write(1, (time.strftime("[%Y-%m-%d %H:%M:%S] ") + text + "\n").encode())


def bare(text: str) -> None:
    os.write(1, (text + "\n").encode())


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.reply(200, {"data": [{"id": "stand-in"}]})
        elif self.path == "/metrics":
            self.reply(404, {})
        else:
            self.reply(200 if STATE["up"] or SCENARIO == "health-early" else 503, {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if STATE["draining"]:
            self.reply(503, {"error": "shutting down"})
            return
        STATE["open"] += 1
        time.sleep(STATE["slow"])
        if not STATE["completions"]:
            time.sleep(3600)
        self.reply(200, {"choices": [{"text": "x"}], "usage": {"completion_tokens": 4}})
        STATE["open"] -= 1


def stop(_signum: int, _frame: object) -> None:
    if SCENARIO == "ignores-sigterm":
        return
    say("SIGTERM received. signum=15 frame=None. Draining requests and shutting down...")
    STATE["draining"] = True

    def end() -> None:
        while STATE["open"]:
            time.sleep(0.05)
        say("Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].")
        os._exit(0)

    threading.Thread(target=end).start()


def main() -> None:
    if SCENARIO == "usage":
        bare("usage: launch_server.py [-h]")
        bare("launch_server.py: error: unrecognized arguments: --no-such-flag")
        sys.exit(2)
    say(f"server_args=ServerArgs(model_path='/m', tp_size=1, port={PORT}, watchdog_timeout=300)")
    if SCENARIO == "orphan":
        # A grandchild that ignores SIGTERM must not outlive us.
        subprocess.Popen(
            [sys.executable, "-c", "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
        )
    say("Init torch distributed begin.")
    wait_at("init")
    say("Init torch distributed ends. mem usage=1.20 GB")
    say("Load weight begin. avail mem=93.80 GB")
    for done in (0, 1, 2, 3):
        os.write(
            1,
            f"\rMulti-thread loading shards: {25 * done:3.0f}% Completed | {done}/4 [00:01<00:01,  1.00s/it]".encode(),
        )
        time.sleep(0.05)
    if SCENARIO == "killed-loading":
        os.kill(os.getpid(), signal.SIGKILL)
    if SCENARIO == "oom":
        bare("")
        say("Scheduler hit an exception: Traceback (most recent call last):")
        bare('  File "/sglang/srt/model_loader/loader.py", line 1, in load_model')
        bare(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 252.00 MiB. GPU 2 has a total capacity of 94.97 GiB of which 98.00 MiB is free."
        )
        say("Received sigquit from a child process. It usually means the child failed.")
        os.kill(os.getpid(), signal.SIGKILL)
    wait_at("loading")
    bare("")
    say("Load weight end. elapsed=0.31 s, type=StandIn, avail mem=21.89 GB, mem usage=0.01 GB.")
    say("Capture decode CUDA graph begin. backend=full, bs=[1, 2], avail mem=10.77 GB")
    wait_at("capture")
    say("max_total_num_tokens=8192, chunked_prefill_size=4096")
    signal.signal(signal.SIGTERM, stop)
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    say("INFO:     Application startup complete.")
    say(f"INFO:     Uvicorn running on http://127.0.0.1:{PORT} (Press CTRL+C to quit)")
    if SCENARIO == "health-early":
        STATE["completions"] = False
        time.sleep(3600)
    STATE["up"] = True
    say("The server is fired up and ready to roll!")
    time.sleep(0 if SCENARIO == "flood" else 1.5)
    if SCENARIO == "health-lies":
        say("Scheduler hit an exception: Traceback (most recent call last):")
        bare('  File "/sglang/srt/managers/scheduler.py", line 1, in event_loop_overlap')
        bare("torch.AcceleratorError: CUDA error: an illegal memory access was encountered")
        STATE["completions"] = False
    if SCENARIO == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if SCENARIO == "exits-zero":
        os._exit(0)
    if SCENARIO == "slow":
        STATE["slow"] = 3.0
    if SCENARIO == "flood":
        line = (
            b"[2026-03-02 10:20:03 TP0] Decode batch, #running-req: 3, #token: 11179, token usage: 0.08, gen throughput (token/s): 163.11\n"
            * 512
        )
        for _ in range(int(os.environ.get("STANDIN_FLOOD_BLOCKS", "512"))):
            os.write(1, line)
        say("flood ended")
    while True:
        time.sleep(0.2)


def wait_at(place: str) -> None:
    if QUIET_PHASES.get(SCENARIO) == place:
        time.sleep(3600)


main()
