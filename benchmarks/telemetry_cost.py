"""What the telemetry plug-in costs: Python time per forward, alone, and a real server's throughput in pairs.

    python benchmarks/telemetry_cost.py isolated
    python benchmarks/telemetry_cost.py paired --model DIR/target --drafter DIR/drafters/accept-2.75

`isolated` needs prometheus-client only. `paired` needs the rehearsal engine's environment (SGLang on CPU)
with deploy_kit installed: it starts two servers, one with the plug-in and one without, and sends the same
requests to both in turn, swapping the order in each pair, so that other load on the machine hits both alike.
Targets: at most 20 us a forward; median of the paired ratios at least 0.99.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TOKENS = 400
LARGEST_SPREAD = 0.04  # between the quartiles of the ratios; the target is 0.99
ENGINE_ARGV = (
    "--device", "cpu", "--attention-backend", "intel_amx", "--sleep-on-idle", "--disable-cuda-graph",
    "--enable-metrics", "--context-length", "2048", "--max-total-tokens", "8192",
    "--max-running-requests", "8", "--served-model-name", "rehearsal-tiny",
    "--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3",
    "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4",
)  # fmt: skip
ENGINE_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip


def isolated(rounds: int = 4000) -> dict[str, float]:
    """Time the hooks alone, in prometheus_client's multiprocess mode, as in the engine.

    One round is one EAGLE-3 cycle on the eager path, the costliest: 3 draft steps, verify, draft extend, and
    the accepted lengths of `batch` requests. Returns microseconds per forward by batch size, the wrapped
    function's own time taken off.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # before prometheus_client is imported
        from prometheus_client import CollectorRegistry

        from deploy_kit.telemetry import plugin
        from deploy_kit.telemetry.instruments import Instruments

        labels = {"model_name": "m", "engine_type": "unified", "tp_rank": "0", "pp_rank": "0"}
        session = plugin.Session(Instruments(labels, registry=CollectorRegistry()), timer="wall")

        def forward(_runner: object, _batch: object) -> None:
            return None

        def batch_of(mode: str) -> Any:
            return SimpleNamespace(forward_mode=SimpleNamespace(name=mode))

        target, drafter = SimpleNamespace(is_draft_worker=False), SimpleNamespace(is_draft_worker=True)
        cycle = [(drafter, batch_of("DECODE"))] * 3
        cycle += [(target, batch_of("TARGET_VERIFY")), (drafter, batch_of("DRAFT_EXTEND_V2"))]

        def run(batch: int) -> float:
            request = SimpleNamespace(is_retracted=False, finished=lambda: False)
            verified = SimpleNamespace(num_correct_drafts_per_req_cpu=[index % 4 for index in range(batch)])
            requests = SimpleNamespace(reqs=[request] * batch)
            began = time.process_time()  # CPU time: another program's turn on the core is not our cost
            for _ in range(rounds):
                for runner, forward_batch in cycle:
                    plugin.around_forward(forward, runner, forward_batch)
                plugin.on_verified(None, None, verified, requests)
            return (time.process_time() - began) / (rounds * len(cycle)) * 1e6

        plugin._session = None
        empty = min(run(1) for _ in range(3))
        plugin._session = session
        result = {f"batch_{batch}_us_per_forward": round(min(run(batch) for _ in range(5)) - empty, 2)
                  for batch in (1, 8, 32)}  # fmt: skip
        if session.exceptions:
            raise SystemExit(f"{session.exceptions} exceptions in the hooks: nothing was measured")
        return result


class Server:
    """One rehearsal engine, with or without the plug-in."""

    def __init__(self, model: str, drafter: str, *, telemetry: bool, folder: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = int(taken.getsockname()[1])
        plugins = "deploy_kit_rehearsal" + (",deploy_kit_telemetry" if telemetry else "")
        self.log = folder / f"server-{'on' if telemetry else 'off'}.log"
        environment = {**os.environ, **ENGINE_ENVIRONMENT, "SGLANG_PLUGINS": plugins}
        command = [
            sys.executable, "-m", "sglang.launch_server", "--model-path", model,
            "--speculative-draft-model-path", drafter, *ENGINE_ARGV,
            "--host", "127.0.0.1", "--port", str(self.port),
        ]  # fmt: skip
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def wait(self, limit_seconds: float = 400.0) -> None:
        """Return when a completion comes back."""
        deadline = time.monotonic() + limit_seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                self.generate(2)
                return
            except (OSError, urllib.error.URLError, ValueError):
                time.sleep(0.5)
        raise SystemExit(f"a server did not start; its log ends:\n{self.log.read_text()[-2000:]}")

    def generate(self, tokens: int) -> int:
        """Return the number of tokens that one request gave."""
        body = {
            "text": "Ada builds",
            "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True},
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/generate",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            return int(json.load(answer)["meta_info"]["completion_tokens"])

    def metrics(self) -> str:
        """Return the metrics text."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    def throughput(self, concurrency: int) -> float:
        """Return generated tokens per second of `concurrency` requests at once."""
        began = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
            tokens = sum(pool.map(self.generate, [TOKENS] * concurrency))
        return tokens / (time.perf_counter() - began)

    def stop(self) -> None:
        """End the server and its processes."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def paired(model: str, drafter: str, pairs: int, concurrency: int) -> dict[str, Any]:
    """Return the throughput of each pair with and without the plug-in, their ratios, and the median ratio."""
    with tempfile.TemporaryDirectory() as folder:
        servers = {on: Server(model, drafter, telemetry=on, folder=Path(folder)) for on in (True, False)}
        try:
            for server in servers.values():
                server.wait()
                server.throughput(concurrency)  # a warm-up, not counted
            measured = []
            for pair in range(pairs):
                order = (True, False) if pair % 2 else (False, True)
                speed = {on: servers[on].throughput(concurrency) for on in order}
                measured.append({"on": round(speed[True], 2), "off": round(speed[False], 2),
                                 "ratio": round(speed[True] / speed[False], 4)})  # fmt: skip
                print(f"pair {pair + 1} of {pairs}: {measured[-1]}", file=sys.stderr, flush=True)
            if "deploy_kit_spec_accept_length_count" not in servers[True].metrics():
                raise SystemExit("the server that should have the plug-in has not: nothing was compared")
            if "deploy_kit_" in servers[False].metrics():
                raise SystemExit("the server that should not have the plug-in has it: nothing was compared")
        finally:
            for server in servers.values():
                server.stop()
    ratios = [one["ratio"] for one in measured]
    low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    return {
        "pairs": measured,
        "median_ratio": round(median, 4),
        "quartiles": [round(low, 4), round(high, 4)],
        # On a busy machine the pairs scatter by more than the effect that is looked for.
        "conclusive": high - low <= LARGEST_SPREAD,
        "concurrency": concurrency,
        "tokens_a_request": TOKENS,
    }


def main() -> None:
    """Run what was asked for, and print it as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("isolated")
    pair = commands.add_parser("paired")
    pair.add_argument("--model", required=True)
    pair.add_argument("--drafter", required=True)
    pair.add_argument("--pairs", type=int, default=8)
    pair.add_argument("--concurrency", type=int, default=2)
    asked = parser.parse_args()
    if asked.what == "isolated":
        result: dict[str, Any] = isolated()
    else:
        result = paired(asked.model, asked.drafter, asked.pairs, asked.concurrency)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
