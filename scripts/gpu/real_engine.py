"""Starts real engines by `deploy-kit serve` on one CUDA GPU or two and measures them: profiles, the telemetry
plug-in, the break-even curve, the choice of all-reduce. Needs SGLang importable (scripts/gpu/prepare.sh packs
it) and free GPUs.

    python3 scripts/gpu/real_engine.py OUT --wave WAVE [--seconds 540]      (waves.py has the names)

What is started stands in waves.py. Step times are real, texts are not, so the accept length of EAGLE-3 is
set by SGLang's own SGLANG_SIMULATE_ACC_LEN. Everything measured goes to OUT as files; nothing is judged here
(scripts/gpu/conclude.py does that).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trace_phases
from waves import (
    BEST,
    MODEL_NAME,
    ROOT,
    VOCABULARY,
    WAVES,
    Server,
    make_configs,
    make_host,
    make_models,
)

sys.path.insert(0, str(ROOT / "benchmarks"))
import measuring_plugin

PAIRS = 10
EXPORTER_APART = 50


@dataclass
class Running:
    """A started engine, and the phases its state file went through."""

    server: Server
    process: subprocess.Popen[bytes]
    log: Path
    state_directory: Path
    started_at: float
    phases: list[dict[str, Any]] = field(default_factory=list)
    ready_seconds: float | None = None
    ended: int | None = None


def deploy_kit(*words: str) -> list[str]:
    """Return the argv of our own command with this interpreter."""
    return [sys.executable, "-m", "deploy_kit", *words]


def start(server: Server, host: Path, work: Path, out: Path, configs: Path) -> Running:
    """Start one engine in the background; its log and its plan go to `out`."""
    state = work / f"state-{server.name}"
    state.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        **(measuring_environment(server, work) if server.measuring else {}),
        "DEPLOY_KIT_CONFIGS": str(configs),
        "DEPLOY_KIT_HOST": str(host),
        "DEPLOY_KIT_MODEL": MODEL_NAME,
        "DEPLOY_KIT_STACK": "rollback",
        "DEPLOY_KIT_STATE_DIR": str(state),
        "DEPLOY_KIT_PORT": str(server.port),
        "DEPLOY_KIT_EXPORTER_PORT": str(server.port + EXPORTER_APART),
        "DEPLOY_KIT_DRAIN_SECONDS": "5",
        "PYTHONUNBUFFERED": "1",
    }
    plan_text = subprocess.run(
        deploy_kit("plan", server.profile, "--json", "--configs", str(configs), "--host", str(host),
                   "--model", MODEL_NAME, "--stack", "rollback"),
        check=True, capture_output=True, text=True, env=environment,
    ).stdout  # fmt: skip
    (out / f"plan-{server.name}.json").write_text(plan_text)
    argv = deploy_kit("serve", server.profile)
    if server.bare:
        plan = json.loads(plan_text)
        argv = [sys.executable, *plan["argv"][1:]]
        argv[argv.index("--port") + 1] = str(server.port)
        planned = plan["environment"]
        environment.update(dict(planned) if not isinstance(planned, dict) else planned)
        # No plug-in of that name exists: SGLang loads none at all.
        environment["SGLANG_PLUGINS"] = "none"
    log = out / f"log-{server.name}.txt"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            argv, env=environment, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True, cwd=ROOT
        )
    return Running(server, process, log, state, time.time())


def measuring_environment(server: Server, work: Path) -> dict[str, str]:
    """Return what makes an engine load benchmarks/measuring_plugin.py, and the files it looks at."""
    return measuring_plugin.environment(
        work, KIT_TELEMETRY_SWITCH=switch_of(server, work), KIT_TRACE_MARKS=marks_of(server, work)
    )


def marks_of(server: Server, work: Path) -> Path:
    """Return the file that marks this engine's forwards for a profiler while it exists."""
    return work / f"marks-{server.name}"


def switch_of(server: Server, work: Path) -> Path:
    """Return the file that switches this engine's telemetry off while it exists."""
    return work / f"off-{server.name}"


def wait_ready(engines: Sequence[Running], deadline: float) -> None:
    """Follow the engines until each is ready or has ended, or a wanted one has ended."""
    import httpx

    while time.time() < deadline:
        for engine in engines:
            if engine.ended is not None or engine.ready_seconds is not None:
                continue
            engine.ended = engine.process.poll()
            after = round(time.time() - engine.started_at, 1)
            state = _read_json(engine.state_directory / "state.json")
            if state is not None:
                last = engine.phases[-1]["phase"] if engine.phases else None
                if state.get("phase") != last:
                    engine.phases.append({"after_seconds": after, "phase": state.get("phase")})
                if state.get("ready_at_seconds"):
                    engine.ready_seconds = state["ready_at_seconds"] - engine.started_at
            elif engine.server.bare:
                try:
                    answer = httpx.get(f"{engine.server.url}/health_generate", timeout=5)
                    if answer.status_code == httpx.codes.OK:
                        engine.ready_seconds = after
                except httpx.HTTPError:
                    pass
            if engine.ready_seconds is not None:
                say(f"{engine.server.name}: ready after {engine.ready_seconds:.1f} s")
            elif engine.ended is not None:
                say(f"{engine.server.name}: ended with {engine.ended} after {after} s")
                print(tail(engine.log, 40), flush=True)
        if all(e.ready_seconds is not None or e.ended is not None for e in engines):
            return
        if any(e.ended is not None and e.server.wanted for e in engines):
            return
        time.sleep(0.5)
    for engine in engines:
        if engine.ready_seconds is None and engine.ended is None:
            say(f"{engine.server.name}: not ready in time")
            print(tail(engine.log, 25), flush=True)


def stop(engines: Sequence[Running]) -> None:
    """End every engine: asked first, then its whole process group."""
    for engine in engines:
        if engine.process.poll() is None:
            engine.process.send_signal(signal.SIGTERM)
    limit = time.time() + 12
    for engine in engines:
        with contextlib.suppress(subprocess.TimeoutExpired):
            engine.process.wait(timeout=max(limit - time.time(), 0.1))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(engine.process.pid, signal.SIGKILL)
        engine.ended = engine.process.wait()


def bench(
    engine: Running, out: Path, start_name: str, concurrencies: str, rounds: int, seconds: float
) -> dict[str, Any]:
    """Measure one engine by `deploy-kit bench`; return its receipt's summary as printed."""
    name = engine.server.name
    began = time.time()
    try:
        done = subprocess.run(
            deploy_kit("bench", engine.server.url, "--plan", str(out / f"plan-{name}.json"),
                       "--concurrency", concurrencies, "--rounds", str(rounds), "--requests", "3",
                       "--output-tokens", "96", "--receipts", str(out / "receipts" / name),
                       "--server-start", start_name, "--timeout", "120", "--json"),
            capture_output=True, text=True, timeout=max(seconds, 1), cwd=ROOT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        say(f"{name}: bench cut off")
        return {"cut": True}
    say(f"{name}: bench exit {done.returncode} in {time.time() - began:.1f} s")
    if done.returncode not in (0, 20):
        print(done.stderr[-1500:], flush=True)
    try:
        receipt = json.loads(done.stdout)
    except ValueError:
        return {"exit": done.returncode}
    cells = receipt.get("summary", {}).get("cells", [])
    for cell in cells:
        engine_cell = cell.get("engine", {})
        print(f"  c={cell.get('concurrency')} r={cell.get('round')} tok/s={cell['tokens_per_second']:.1f} "
              f"stream={cell.get('stream_tokens_per_second')} acc={engine_cell.get('accept_length')} "
              f"step={engine_cell.get('step_seconds')} err={cell['errors']}", flush=True)  # fmt: skip
    return {"exit": done.returncode, "cells": cells}


def burst(url: str, streams: int, tokens: int, seed: int) -> float:
    """Send `streams` requests at once, each of `tokens` new tokens; return tokens/s over all of them."""
    import httpx

    source = random.Random(seed)  # noqa: S311
    bodies = [
        {
            "input_ids": [source.randrange(300, VOCABULARY) for _ in range(32)],
            "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True},
        }
        for _ in range(streams)
    ]
    with httpx.Client(base_url=url, timeout=60) as client, ThreadPoolExecutor(streams) as pool:
        began = time.perf_counter()
        answers = list(pool.map(lambda body: client.post("/generate", json=body).json(), bodies))
        seconds = time.perf_counter() - began
    made = sum(int(answer["meta_info"]["completion_tokens"]) for answer in answers)
    if made != streams * tokens:
        raise RuntimeError(f"asked for {streams * tokens} tokens, got {made}")
    return made / seconds


def paired(one: Running, other: Running, deadline: float, streams_of: Sequence[int]) -> list[dict[str, Any]]:
    """Measure two engines in turns, the order swapped each time; return tokens/s of both."""
    samples: list[dict[str, Any]] = []
    for streams in streams_of:
        for engine in (one, other):
            burst(engine.server.url, streams, 64, 7)
        for number in range(PAIRS):
            if time.time() > deadline:
                return samples
            order = (one, other) if number % 2 == 0 else (other, one)
            speed = {e.server.name: burst(e.server.url, streams, 192, 100 + number) for e in order}
            samples.append({"streams": streams, "pair": number, "tokens_per_second": speed})
    return samples


def toggled(engine: Running, work: Path, streams: int, blocks: int, deadline: float) -> list[dict[str, Any]]:
    """Measure one engine with the plug-in on, off, off, on, the next block the other way round; return
    tokens/s of each. One process in both states: nothing but the plug-in differs."""
    switch = switch_of(engine.server, work)
    samples: list[dict[str, Any]] = []
    burst(engine.server.url, streams, 64, 7)
    try:
        for block in range(blocks):
            if time.time() > deadline:
                break
            first = block % 2 == 0
            speeds: dict[bool, list[float]] = {True: [], False: []}
            for turn, on in enumerate((first, not first, not first, first)):
                switch.unlink(missing_ok=True) if on else switch.touch()
                time.sleep(0.1)  # several looks of the plug-in at the switch
                speeds[on].append(burst(engine.server.url, streams, 192, 1000 + turn))
            samples.append({"streams": streams, "block": block, "on": speeds[True], "off": speeds[False]})
    finally:
        switch.unlink(missing_ok=True)
    return samples


def ratio_of(sample: dict[str, Any]) -> float:
    """Given a block, return the speed with the plug-in over the speed without: of equal numbers of tokens."""
    return sum(1 / speed for speed in sample["off"]) / sum(1 / speed for speed in sample["on"])


def traced(engine: Running, work: Path, streams: int) -> dict[str, Any]:
    """Serve under the engine's own torch profiler; return each phase's time in the trace (rank 0) and the
    metrics before and after."""
    import httpx

    folder = work / f"trace-{engine.server.name}-{streams}"
    marks = marks_of(engine.server, work)
    marks.touch()
    url = engine.server.url
    burst(url, streams, 16, 3)
    time.sleep(0.3)
    before = httpx.get(f"{url}/metrics", timeout=10).text
    began = time.time()
    asked = {"output_dir": str(folder), "activities": ["CPU", "GPU"], "with_stack": False}
    httpx.post(f"{url}/start_profile", json=asked, timeout=60).raise_for_status()
    burst(url, streams, 128, 5)
    httpx.post(f"{url}/stop_profile", timeout=90).raise_for_status()
    marks.unlink()
    after = httpx.get(f"{url}/metrics", timeout=10).text
    found: list[Path] = []
    while time.time() < began + 60 and not found:
        found = sorted(folder.rglob("*TP-0*.json.gz"))
        time.sleep(0.2)
    if not found:
        return {"error": "no trace was written", "files": [str(p) for p in folder.rglob("*")][:20]}
    time.sleep(0.5)
    result = {"streams": streams, "phases": trace_phases.read(found[0]), "bytes": found[0].stat().st_size}
    say(f"{engine.server.name}: traced in {time.time() - began:.1f} s, {result['bytes'] >> 20} MiB")
    return {**result, "metrics_before": deploy_kit_lines(before), "metrics_after": deploy_kit_lines(after)}


def deploy_kit_lines(text: str) -> list[str]:
    """Given a /metrics page, return the plug-in's sums and counts."""
    return [
        line
        for line in text.splitlines()
        if line.startswith(("deploy_kit_forward_seconds_sum", "deploy_kit_forward_seconds_count"))
    ]


def best_setting(receipts: Path | None) -> dict[str, str]:
    """Given a folder with a probe's receipt, return the NCCL environment that it chose for a host."""
    if receipts is None:
        return {}
    for path in sorted(receipts.glob("allreduce-*.json")):
        setting = json.loads(path.read_text())["summary"]["host_setting"]
        return {str(name): str(value) for name, value in (setting.get("environment") or {}).items()}
    return {}


def first_light(
    baseline: Running, eagle: Running, host: Path, configs: Path, out: Path, work: Path, seconds: float
) -> int:
    """Run `deploy-kit firstlight` against two running engines; its file and what it printed go to `out`.

    It is ended after `seconds` (exit code 124).
    """
    environment = {**os.environ, "DEPLOY_KIT_CONFIGS": str(configs)}
    if "FIRST_LIGHT_PYTHONPATH" in os.environ:  # the probes may want other packages than the engines
        environment["PYTHONPATH"] = os.environ["FIRST_LIGHT_PYTHONPATH"]
    done = subprocess.run(
        ["timeout", "-s", "INT", str(int(seconds)),
         *deploy_kit("firstlight", "-o", str(out / "firstlight.tar.gz"), "--work", str(work / "firstlight"),
                   "--host", str(host), "--model", MODEL_NAME, "--stack", "rollback",
                   "--server", f"baseline={baseline.server.url}", "--server", f"eagle3={eagle.server.url}",
                   "--concurrency", "1,8", "--rounds", "2", "--requests", "3", "--output-tokens", "96",
                   "--probe-seconds", "40", "--json")],
        capture_output=True, text=True, env=environment, cwd=ROOT, check=False,
    )  # fmt: skip
    (out / "firstlight.json").write_text(done.stdout)
    (out / "firstlight.log").write_text(done.stderr)
    say(f"firstlight: exit {done.returncode}")
    print(done.stderr[-1500:], flush=True)
    return done.returncode


def scrape(engine: Running, out: Path) -> None:
    """Keep the engine's metrics, and the exporter's when there is one."""
    import httpx

    for what, port in (("metrics", engine.server.port), ("exporter", engine.server.port + EXPORTER_APART)):
        if what == "exporter" and engine.server.bare:
            continue
        try:
            text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
        except httpx.HTTPError as error:
            text = f"# {type(error).__name__}\n"
        (out / f"{what}-{engine.server.name}.txt").write_text(text)


def machine_facts() -> dict[str, Any]:
    """Return what the GPU and the libraries are, read only."""
    import importlib.metadata as metadata

    import torch

    query = "name,memory.total,driver_version,clocks.sm,clocks.max.sm,power.limit,temperature.gpu"
    card = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    versions = {}
    for name in ("sglang", "torch", "triton", "sglang-kernel", "flashinfer-python", "transformers"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    return {"gpu": card, "fields": query, "cuda": torch.version.cuda, "versions": versions,
            "cpus": os.cpu_count()}  # fmt: skip


def say(text: str) -> None:
    """Print a line with the time since the start."""
    print(f"[{time.time() - BEGAN:6.1f}] {text}", flush=True)


def tail(path: Path, lines: int) -> str:
    """Return the last lines of a file, cut to width."""
    text = path.read_text(errors="replace").splitlines()[-lines:]
    return "\n".join(line[:220] for line in text)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


BEGAN = time.time()


def main() -> int:
    """Run one wave; return 0 when every wanted engine was ready and measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--wave", choices=sorted(WAVES), required=True)
    parser.add_argument("--work", type=Path, default=ROOT / "var" / "real-engine")
    parser.add_argument("--seconds", type=float, default=540, help="stop measuring after this long")
    parser.add_argument("--start-seconds", type=float, default=270)
    parser.add_argument("--probed", type=Path, help="a folder with a probe's receipt: the best NCCL setting")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8], help="of the paired runs")
    arguments = parser.parse_args()
    deadline = BEGAN + arguments.seconds
    out: Path = arguments.out / arguments.wave
    out.mkdir(parents=True, exist_ok=True)
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    facts = machine_facts()
    say(json.dumps(facts))
    import torch

    memory_gib = torch.cuda.mem_get_info()[1] / 1024**3
    make_models(work / "models")
    configs = make_configs(work, work / "models")
    wave = WAVES[arguments.wave]
    best = best_setting(arguments.probed)
    servers = [s for s in wave.servers if best or s.all_reduce != BEST]
    if len(servers) < len(wave.servers):
        say("the probe chose NCCL's default: no engines with another setting")
    hosts = {s.name: make_host(work, s, memory_gib, wave.tensor_parallel, best) for s in servers}
    with ThreadPoolExecutor(len(servers)) as pool:
        engines = list(pool.map(lambda s: start(s, hosts[s.name], work, out, configs), servers))
    result: dict[str, Any] = {"wave": arguments.wave, "machine": facts, "best_nccl": best}
    try:
        wait_ready(engines, min(deadline, time.time() + arguments.start_seconds))
        ready = {e.server.name: e for e in engines if e.ready_seconds is not None}
        memory = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
        )
        say(f"GPU memory used {memory.stdout.strip()}")
        if any(e.server.wanted and e.server.name not in ready for e in engines):
            return 1
        result["bench"] = {}
        for engine in ready.values():
            if wave.benched and not engine.server.bare and time.time() < deadline - 20:
                result["bench"][engine.server.name] = bench(
                    engine, out, f"{arguments.wave}-{engine.server.name}", wave.concurrencies, wave.rounds,
                    deadline - time.time(),
                )  # fmt: skip
                scrape(engine, out)
        result["pairs"] = {}
        for one, other in wave.paired:
            if one not in ready or other not in ready:
                continue
            samples = paired(ready[one], ready[other], deadline - 15, arguments.streams)
            result["pairs"][f"{one} : {other}"] = samples
            ratios = [s["tokens_per_second"][one] / s["tokens_per_second"][other] for s in samples]
            say(f"{one} : {other}: {len(ratios)} pairs, median ratio {statistics.median(ratios):.4f}")
            scrape(ready[one], out)
        result["traces"] = {}
        for name, streams in wave.traced:
            if name in ready and time.time() < deadline - 30:
                try:
                    result["traces"][f"{name}, {streams} streams"] = traced(ready[name], work, streams)
                except Exception as error:  # noqa: BLE001  (a failed trace must not cost the wave)
                    result["traces"][f"{name}, {streams} streams"] = {"error": repr(error)}
                    say(f"{name}: trace failed: {error!r}")
        result["toggled"] = {}
        for name, streams, blocks in wave.toggled:
            if name in ready and time.time() < deadline - 20:
                samples = toggled(ready[name], work, streams, blocks, deadline - 15)
                result["toggled"][f"{name}, {streams} streams"] = samples
                ratios = [ratio_of(sample) for sample in samples]
                say(f"{name}: {len(ratios)} blocks off/on, median ratio {statistics.median(ratios):.4f}")
        if wave.first_light is not None and all(name in ready for name in wave.first_light):
            one, other = (ready[name] for name in wave.first_light)
            if time.time() < deadline - 90:
                result["firstlight_exit"] = first_light(
                    one, other, hosts[other.server.name], configs, out, work, deadline - time.time()
                )
        return 0
    finally:
        stop(engines)
        result["engines"] = [
            {"name": e.server.name, "profile": e.server.profile, "accept_length": e.server.accept_length,
             "bare": e.server.bare, "ready_seconds": e.ready_seconds, "exit_after_stop": e.ended,
             "phases": e.phases}
            for e in engines
        ]  # fmt: skip
        (out / "result.json").write_text(json.dumps(result, indent=1))
        with tarfile.open(arguments.out / f"{arguments.wave}.tar.xz", "w:xz") as archive:
            archive.add(out, arcname=arguments.wave)
        shutil.rmtree(out)
        say("done")


if __name__ == "__main__":
    sys.exit(main())
