"""What the telemetry plug-in costs: Python time per forward, alone, and a real server's throughput in pairs.

    python benchmarks/telemetry_cost.py isolated
    docker run --rm --network none --tmpfs /tmp:exec,mode=1777 --volume "$PWD/benchmarks:/benchmarks:ro" \\
        --volume "$PWD/var/telemetry-cost:/record" --user 0 --entrypoint python \\
        deploy-kit/rehearsal:0.5.23-cpu /benchmarks/telemetry_cost.py paired --record /record/blocks.jsonl

`isolated` needs prometheus-client only. `paired` needs the rehearsal engine's environment (SGLang on CPU)
with deploy_kit installed: it starts two servers, one with the plug-in and one without, and sends the same
long requests to one of them at a time. A block is on, off, off, on (the next one the other way round), so
that a load on the machine that grows or falls steadily hits both alike. Two ratios come of each block:

- throughput with the plug-in / without it, by the wall clock: what is promised, and what other programs
  disturb;
- CPU seconds a token without the plug-in / with it, of all the server's processes: other programs' turns on
  the cores do not count in it (they still cost cache). It is the stricter figure: waiting is not in it.

The interval is the exact one of a median from order statistics, 95 %. `--record FILE` adds the blocks to a
file and sums up all that is in it, so that several short runs make one measurement.
Targets: at most 20 us a forward; median of the paired ratios at least 0.99.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import math
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
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import measuring_plugin

TOKENS = 1200  # long answers: a prefill and a request's overhead in HTTP must not be what is compared
TARGET_RATIO = 0.99
WINDOW_SECONDS, SETTLE_SECONDS = 0.5, 0.06  # of `toggled`: a window, and what the switch takes to be seen
MODELS = "/opt/rehearsal/models"  # in the rehearsal image
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
        from deploy_kit.telemetry.instruments import Flusher, Instruments

        labels = {"model_name": "m", "engine_type": "unified", "tp_rank": "0", "pp_rank": "0"}
        instruments = Instruments(labels, registry=CollectorRegistry())
        session = plugin.Session(instruments, timer="wall")
        Flusher(instruments, session.failed).start()  # its work counts: the CPU time is the process's

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


@dataclass(frozen=True)
class Spent:
    """Tokens, and the wall and CPU seconds that they took."""

    tokens: int
    seconds: float
    cpu_seconds: float

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.tokens + other.tokens, self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds
        )


class Server:
    """One rehearsal engine, with or without the plug-in."""

    def __init__(
        self,
        model: str,
        drafter: str,
        *,
        telemetry: bool,
        folder: Path,
        switch: Path | None = None,
        times: Path | None = None,
    ) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = int(taken.getsockname()[1])
        plugins = "deploy_kit_rehearsal" + (",deploy_kit_telemetry" if telemetry else "")
        self.log = folder / f"server-{'on' if telemetry else 'off'}.log"
        environment = {**os.environ, **ENGINE_ENVIRONMENT, "SGLANG_PLUGINS": plugins}
        if switch is not None:
            environment |= measuring_plugin.environment(folder, KIT_TELEMETRY_SWITCH=switch)
            environment["SGLANG_PLUGINS"] += ",deploy_kit_measuring"
        if times is not None:
            environment["KIT_HOOK_TIMES"] = str(times)
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

    def request(self, tokens: int, *, stream: bool = False) -> urllib.request.Request:
        """Return the request for an answer of so many tokens."""
        body = {
            "text": "Ada builds",
            "stream": stream,
            "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True},
        }
        return urllib.request.Request(
            f"http://127.0.0.1:{self.port}/generate",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )

    def generate(self, tokens: int) -> int:
        """Return the number of tokens that one request gave."""
        with urllib.request.urlopen(self.request(tokens), timeout=300) as answer:
            return int(json.load(answer)["meta_info"]["completion_tokens"])

    def stream(self, tokens: int) -> Iterator[tuple[float, int]]:
        """Yield (when, tokens so far) for each piece of one streamed answer."""
        with urllib.request.urlopen(self.request(tokens, stream=True), timeout=300) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    now = time.perf_counter()
                    yield now, int(json.loads(line[6:])["meta_info"]["completion_tokens"])

    def metrics(self) -> str:
        """Return the metrics text."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    def cpu_seconds(self) -> float:
        """Return the CPU time that the server's processes have used (they share its session)."""
        ticks = 0
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self.process.pid:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def measure(self, concurrency: int, tokens_each: int = TOKENS) -> Spent:
        """Serve `concurrency` requests at once; return what it took."""
        cpu, began = self.cpu_seconds(), time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
            tokens = sum(pool.map(self.generate, [tokens_each] * concurrency))
        return Spent(tokens, time.perf_counter() - began, self.cpu_seconds() - cpu)

    def stop(self) -> None:
        """End the server and its processes."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def paired(model: str, drafter: str, blocks: int, concurrency: int, record: Path | None) -> dict[str, Any]:
    """Return each block's two ratios, and both medians with their intervals."""
    measured = (
        [json.loads(line) for line in record.read_text().splitlines()] if record and record.exists() else []
    )
    with tempfile.TemporaryDirectory() as folder:
        servers = {on: Server(model, drafter, telemetry=on, folder=Path(folder)) for on in (True, False)}
        try:
            for server in servers.values():
                server.wait()
                server.measure(concurrency)  # a warm-up, not counted
            for block in range(blocks):
                first = bool((len(measured) + block) % 2)
                spent = {True: Spent(0, 0.0, 0.0), False: Spent(0, 0.0, 0.0)}
                load = os.getloadavg()[0]
                for on in (first, not first, not first, first):
                    spent[on] += servers[on].measure(concurrency)
                result = ratios(spent[True], spent[False], load)
                print(f"block {block + 1} of {blocks}: {result}", file=sys.stderr, flush=True)
                measured.append(result)
                if record:
                    with record.open("a") as lines:
                        lines.write(json.dumps(result) + "\n")
            if "deploy_kit_spec_accept_length_count" not in servers[True].metrics():
                raise SystemExit("the server that should have the plug-in has not: nothing was compared")
            if "deploy_kit_" in servers[False].metrics():
                raise SystemExit("the server that should not have the plug-in has it: nothing was compared")
        finally:
            for server in servers.values():
                server.stop()
    return {
        "blocks": measured,
        "throughput": summary([one["throughput_ratio"] for one in measured]),
        "cpu": summary([one["cpu_ratio"] for one in measured]),
        "concurrency": concurrency,
        "tokens_a_request": TOKENS,
    }


def toggled(model: str, drafter: str, blocks: int, concurrency: int, record: Path | None) -> dict[str, Any]:
    """Switch one server's plug-in off and on every half second while it generates; return each pair of
    neighbouring windows' ratio of tokens/s.

    What two starts differ by is not in it, nor what the machine does over seconds; the call of a hook that
    returns at once is in both.
    """
    pairs: list[float] = []
    totals = {True: [0.0, 0.0], False: [0.0, 0.0]}
    with tempfile.TemporaryDirectory() as folder:
        switch = Path(folder) / "off"
        server = Server(model, drafter, telemetry=True, folder=Path(folder), switch=switch)
        try:
            server.wait()
            server.measure(concurrency)
            time.sleep(0.5)  # a page is a little behind
            counted = verifies(server)
            switch.touch()
            time.sleep(0.3)
            server.measure(concurrency, 60)
            time.sleep(0.3)
            if verifies(server) != counted or not counted:
                raise SystemExit("the switch does not switch the plug-in off: nothing was compared")
            for block in range(blocks):
                windows = switched_run(server, switch, concurrency, on=block % 2 == 0)
                for on, tokens, seconds in windows:
                    totals[on][0] += tokens
                    totals[on][1] += seconds
                found = neighbours(windows)
                pairs += found
                result = {"pairs": len(found), "median": round(statistics.median(found), 4)}
                print(f"block {block + 1} of {blocks}: {result}", file=sys.stderr, flush=True)
                if record:
                    with record.open("a") as lines:
                        lines.write(json.dumps({"toggled": [round(one, 4) for one in found]}) + "\n")
        finally:
            server.stop()
    return {
        "throughput": summary(pairs),
        "on_tokens_per_second": round(totals[True][0] / totals[True][1], 2),
        "off_tokens_per_second": round(totals[False][0] / totals[False][1], 2),
        "concurrency": concurrency,
        "window_seconds": WINDOW_SECONDS,
    }


def switched_run(
    server: Server, switch: Path, concurrency: int, *, on: bool
) -> list[tuple[bool, float, float]]:
    """Stream `concurrency` long answers while the switch flips, `on` first; return (on, tokens, seconds) of
    the windows in which all of them were under way."""
    arrivals: list[tuple[float, int]] = []
    spans: list[tuple[float, float]] = []

    def one(_number: int) -> None:
        first, last, before = 0.0, 0.0, 0
        for now, tokens in server.stream(TOKENS):
            first, last = first or now, now
            arrivals.append((now, tokens - before))
            before = tokens
        spans.append((first, last))

    flips: list[tuple[float, bool]] = []
    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        running = [pool.submit(one, number) for number in range(concurrency)]
        while not all(job.done() for job in running):
            switch.unlink(missing_ok=True) if on else switch.touch()
            flips.append((time.perf_counter(), on))
            on = not on
            time.sleep(WINDOW_SECONDS)
        for job in running:
            job.result()
    switch.unlink(missing_ok=True)
    begin, end = max(first for first, _last in spans), min(last for _first, last in spans)
    windows = []
    for (flipped, state), (following, _state) in pairwise(flips):
        start = flipped + SETTLE_SECONDS
        if start < begin or following > end:
            continue
        inside = [tokens for at, tokens in arrivals if start <= at < following]
        windows.append((state, float(sum(inside)), following - start))
    return windows


def neighbours(windows: list[tuple[bool, float, float]]) -> list[float]:
    """Given windows in order, on and off in turns, return on's tokens/s over off's of each pair."""
    ratios = []
    for one, other in zip(windows[::2], windows[1::2], strict=False):
        on, off = (one, other) if one[0] else (other, one)
        if on[0] and not off[0] and on[1] and off[1]:
            ratios.append((on[1] / on[2]) / (off[1] / off[2]))
    return ratios


def share(model: str, drafter: str, blocks: int, concurrency: int) -> dict[str, Any]:
    """Return which share of the scheduler's CPU time our hooks take while it serves, and microseconds a call.

    Counted inside the engine, in CPU time of its own thread: what other programs do meanwhile is not in it.
    """
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        server = Server(
            model, drafter, telemetry=True, folder=Path(folder), switch=Path(folder) / "off", times=times
        )
        try:
            server.wait()
            server.measure(concurrency)
            shares, calls = [], {}
            for block in range(blocks):
                time.sleep(0.5)
                before = json.loads(times.read_text())
                tokens = server.measure(concurrency).tokens
                time.sleep(0.5)
                after = json.loads(times.read_text())
                cpu = after["process_cpu_seconds"] - before["process_cpu_seconds"]
                spent = {
                    name: (after["hooks"][name][0] - calls_before, after["hooks"][name][1] - seconds_before)
                    for name, (calls_before, seconds_before) in before["hooks"].items()
                }
                shares.append(sum(seconds for _calls, seconds in spent.values()) / cpu)
                calls = {name: round(s / max(c, 1) * 1e6, 2) for name, (c, s) in spent.items()}
                print(f"block {block + 1} of {blocks}: {shares[-1]:.5f} of {cpu:.1f} CPU s, {tokens} tokens, "
                      f"us a call {calls}", file=sys.stderr, flush=True)  # fmt: skip
        finally:
            server.stop()
    return {
        "share_of_scheduler_cpu": {"median": statistics.median(shares), "most": max(shares)},
        "us_a_call": calls,
        "blocks": [round(one, 5) for one in shares],
        "concurrency": concurrency,
    }


def verifies(server: Server) -> float:
    """Return how many verifies the plug-in has counted."""
    name = "deploy_kit_spec_accept_length_count"
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in server.metrics().splitlines() if line.startswith(name)
    )


def ratios(on: Spent, off: Spent, load: float) -> dict[str, float]:
    """Given what both servers spent in one block, return the ratios; 1 means: costs nothing."""
    return {
        "throughput_ratio": round((on.tokens / on.seconds) / (off.tokens / off.seconds), 4),
        "cpu_ratio": round((off.cpu_seconds / off.tokens) / (on.cpu_seconds / on.tokens), 4),
        "on_tokens_per_second": round(on.tokens / on.seconds, 1),
        "off_tokens_per_second": round(off.tokens / off.seconds, 1),
        "on_cpu_ms_per_token": round(on.cpu_seconds / on.tokens * 1e3, 3),
        "off_cpu_ms_per_token": round(off.cpu_seconds / off.tokens * 1e3, 3),
        "load_before": round(load, 1),
    }


def summary(values: list[float]) -> dict[str, Any]:
    """Given the blocks' ratios, return their median, its 95 % interval and what that says of the target.

    The interval is from order statistics, without any assumption on how the ratios are spread. Below six
    blocks there is none.
    """
    ordered, count = sorted(values), len(values)
    below, rank = 0.0, 0
    while rank < count // 2 and below + math.comb(count, rank) / 2**count <= 0.025:
        below += math.comb(count, rank) / 2**count
        rank += 1
    interval = [ordered[rank - 1], ordered[count - rank]] if rank else None
    if interval is None:
        says = "too few blocks"
    elif interval[0] >= TARGET_RATIO:
        says = f"at least {TARGET_RATIO}"
    else:
        says = f"below {TARGET_RATIO}" if interval[1] < TARGET_RATIO else "inconclusive"
    return {
        "median": round(statistics.median(ordered), 4),
        "interval_95": interval,
        "blocks": count,
        "says": says,
    }


def main() -> None:
    """Run what was asked for, and print it as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("isolated")
    for name, does in (("paired", "summed up with"), ("toggled", "kept in"), ("share", "(not used)")):
        pair = commands.add_parser(name)
        pair.add_argument("--model", default=f"{MODELS}/target")
        pair.add_argument("--drafter", default=f"{MODELS}/drafters/accept-2.75")
        pair.add_argument("--blocks", type=int, default=8)
        pair.add_argument("--record", type=Path, help=f"a file that blocks are added to, and {does}")
        pair.add_argument("--concurrency", type=int, default=2)
    asked = parser.parse_args()
    if asked.what == "isolated":
        result: dict[str, Any] = isolated()
    elif asked.what == "share":
        result = share(asked.model, asked.drafter, asked.blocks, asked.concurrency)
    else:
        measure = paired if asked.what == "paired" else toggled
        result = measure(asked.model, asked.drafter, asked.blocks, asked.concurrency, asked.record)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
