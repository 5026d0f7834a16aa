"""Starts real engines by `deploy-kit serve` on one CUDA GPU and measures them: profiles, the telemetry
plug-in, the break-even curve. Needs SGLang importable (scripts/gpu/prepare.sh packs it) and one free GPU.

    python3 scripts/gpu/real_engine.py OUT --wave profiles|curve [--seconds 540]

The target has a real model's width and depth (hidden 7168, 61 layers), dummy weights: step times are real,
texts are not, so the accept length of EAGLE-3 is set by SGLang's own SGLANG_SIMULATE_ACC_LEN. Everything
measured goes to OUT as files; nothing is judged here (scripts/gpu/conclude.py does that).
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

ROOT = Path(__file__).resolve().parents[2]
HOST_NAME = "h200-single"
MODEL_NAME = "dummy-wide"
VOCABULARY = 32000
HIDDEN = 7168
LAYERS = 61
HEADS = 56
KV_HEADS = 8
# Narrow feed-forwards, so that five servers fit one card; attention is full width. 17.9 GB in bfloat16.
TARGET_INTERMEDIATE = 1024
DRAFTER_INTERMEDIATE = 18432
CONCURRENCIES = "1,8,32"
PAIRS = 10


@dataclass(frozen=True)
class Server:
    """One engine to start; `bare`: the plan's own argv without our plug-in, to measure what that costs."""

    name: str
    profile: str
    port: int
    accept_length: float | None = None
    bare: bool = False
    wanted: bool = True  # without it the wave makes no sense

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"


WAVES = {
    "profiles": (
        Server("baseline", "baseline", 31000),
        Server("eagle3-acc2.0", "eagle3", 31001, accept_length=2.0),
        Server("baseline-bare", "baseline", 31002, bare=True, wanted=False),
        Server("eagle3-acc2.0-bare", "eagle3", 31003, accept_length=2.0, bare=True, wanted=False),
        Server("ngram", "ngram", 31004, wanted=False),
    ),
    "curve": (
        Server("baseline", "baseline", 31000),
        Server("eagle3-acc1.0", "eagle3", 31001, accept_length=1.0),
        Server("eagle3-acc1.5", "eagle3", 31002, accept_length=1.5),
        Server("eagle3-acc2.5", "eagle3", 31003, accept_length=2.5),
        Server("eagle3-acc3.0", "eagle3", 31004, accept_length=3.0),
    ),
    "cost": (
        Server("baseline-a", "baseline", 31000),
        Server("baseline-a-bare", "baseline", 31001, bare=True),
        Server("baseline-b", "baseline", 31002),
        Server("baseline-b-bare", "baseline", 31003, bare=True),
    ),
}
# Which engines are measured in turns; the last of "cost" has the plug-in in both: what two starts differ by.
PAIRED = {
    "profiles": (("baseline", "baseline-bare"), ("eagle3-acc2.0", "eagle3-acc2.0-bare")),
    "curve": (),
    "cost": (
        ("baseline-a", "baseline-a-bare"),
        ("baseline-b", "baseline-b-bare"),
        ("baseline-a", "baseline-b"),
        ("baseline-a-bare", "baseline-b-bare"),
    ),
}


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


def make_models(folder: Path) -> None:
    """Write the target's and the drafter's folder: configuration, tokenizer, a token of weights."""
    common = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    target = {
        **common,
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": LAYERS,
        "intermediate_size": TARGET_INTERMEDIATE,
    }
    drafter = {
        **common,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "intermediate_size": DRAFTER_INTERMEDIATE,
        "draft_vocab_size": VOCABULARY,
        "target_hidden_size": HIDDEN,
        "norm_output": True,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58], "use_aux_hidden_state": True},
    }
    for name, config in (("target", target), ("drafter", drafter)):
        where = folder / name
        where.mkdir(parents=True, exist_ok=True)
        (where / "config.json").write_text(json.dumps(config, indent=2))
        _write_placeholder_weights(where / "model.safetensors")
        (where / "generation_config.json").write_text('{"temperature": 0.0, "do_sample": false}')
    make_tokenizer(folder / "target")


def _write_placeholder_weights(path: Path) -> None:
    """One float: `--load-format dummy` fills the weights, but a model folder without weights is refused."""
    header = json.dumps({"placeholder": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))


def make_tokenizer(folder: Path) -> None:
    """Write a byte-level BPE tokenizer trained on the benchmark's prompts, filled up to the vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = ROOT / "deploy_kit" / "bench" / "data" / "prose-and-code.txt"
    tokenizer.train_from_iterator([texts.read_text(encoding="utf-8")], trainer)
    content = json.loads(tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    for number in range(len(vocabulary), VOCABULARY):
        vocabulary[f"\u0120w{number}"] = number  # never encoded, always decodable
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
                    "model_max_length": 4096, "chat_template": "{{ messages[-1]['content'] }}"})
    )  # fmt: skip


def make_configs(work: Path, models: Path) -> Path:
    """Write a configurations' folder: the project's own, plus this host and this model; return it."""
    folder = work / "configs"
    shutil.copytree(ROOT / "configs", folder, dirs_exist_ok=True)
    layer = HIDDEN * HEADS * 128 * 2 + HIDDEN * KV_HEADS * 128 * 2 + 3 * HIDDEN * TARGET_INTERMEDIATE
    weights = 2 * (LAYERS * layer + 2 * VOCABULARY * HIDDEN)
    (folder / "models" / f"{MODEL_NAME}.toml").write_text(
        f'name = "{MODEL_NAME}"\nserved_name = "{MODEL_NAME}"\n'
        'description = "Llama-like, a real model\'s width and depth, dummy weights"\n'
        f'architecture = "LlamaForCausalLM"\npath = "{models / "target"}"\nlayers = {LAYERS}\n'
        f"hidden_size = {HIDDEN}\nattention_heads = {HEADS}\nrouted_experts = 0\n"
        f"vocabulary_size = {VOCABULARY}\nelement_bytes = 2\nallreduces_per_forward = {2 * LAYERS}\n"
        f'shards = 1\nweights_bytes = {weights}\n\n[flags]\nload-format = "dummy"\ncontext-length = 4096\n'
        "max-total-tokens = 16384\nmax-running-requests = 32\nchunked-prefill-size = 2048\n\n"
        f'[drafters.eagle3]\npath = "{models / "drafter"}"\narchitecture = "LlamaForCausalLMEagle3"\n'
        'attention_backend = "triton"\n'
    )
    return folder


def make_host(work: Path, server: Server, memory_gib: float) -> Path:
    """Write the host's file for one server; the simulated accept length is part of the plan."""
    environment = {"SGLANG_ENABLE_METRICS_DEVICE_TIMER": "1", "HF_HUB_OFFLINE": "1"}
    if server.accept_length is not None:
        environment["SGLANG_SIMULATE_ACC_LEN"] = str(server.accept_length)
        environment["SGLANG_SIMULATE_ACC_TOKEN_MODE"] = "real-draft-token"  # noqa: S105
    path = work / f"host-{server.name}.toml"
    path.write_text(
        f'name = "{HOST_NAME}"\ndescription = "One NVIDIA H200 in a virtual machine"\naccelerator = "cuda"\n'
        f'gpus = 1\ngpu_name = "NVIDIA H200"\ncapability = "9.0"\ngpu_memory_gib = {memory_gib:.1f}\n'
        "tensor_parallel = 1\n\n[flags]\n"
        'attention-backend = "triton"\nsampling-backend = "pytorch"\ngrammar-backend = "none"\n'
        'cuda-graph-backend-prefill = "disabled"\ncuda-graph-max-bs-decode = 32\nsleep-on-idle = true\n'
        "mem-fraction-static = 0.9\nenforce-disable-flashinfer-allreduce-fusion = true\n\n[environment]\n"
        + "".join(f'{name} = "{value}"\n' for name, value in environment.items())
    )
    return path


def deploy_kit(*words: str) -> list[str]:
    """Return the argv of our own command with this interpreter."""
    return [sys.executable, "-m", "deploy_kit", *words]


def start(server: Server, work: Path, out: Path, configs: Path, memory_gib: float) -> Running:
    """Start one engine in the background; its log and its plan go to `out`."""
    state = work / f"state-{server.name}"
    state.mkdir(parents=True, exist_ok=True)
    host = make_host(work, server, memory_gib)
    environment = {
        **os.environ,
        "DEPLOY_KIT_CONFIGS": str(configs),
        "DEPLOY_KIT_HOST": str(host),
        "DEPLOY_KIT_MODEL": MODEL_NAME,
        "DEPLOY_KIT_STACK": "rollback",
        "DEPLOY_KIT_STATE_DIR": str(state),
        "DEPLOY_KIT_PORT": str(server.port),
        "DEPLOY_KIT_EXPORTER_PORT": str(server.port + 100),
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


def bench(engine: Running, out: Path, start_name: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure one engine by `deploy-kit bench`; return its receipt's summary as printed."""
    name = engine.server.name
    began = time.time()
    try:
        done = subprocess.run(
            deploy_kit("bench", engine.server.url, "--plan", str(out / f"plan-{name}.json"),
                       "--concurrency", CONCURRENCIES, "--rounds", str(rounds), "--requests", "3",
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


def scrape(engine: Running, out: Path) -> None:
    """Keep the engine's metrics, and the exporter's when there is one."""
    import httpx

    for what, port in (("metrics", engine.server.port), ("exporter", engine.server.port + 100)):
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
    parser.add_argument("--rounds", type=int, default=3)
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
    engines = [start(s, work, out, configs, memory_gib) for s in WAVES[arguments.wave]]
    result: dict[str, Any] = {"wave": arguments.wave, "machine": facts}
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
            if arguments.wave != "cost" and not engine.server.bare and time.time() < deadline - 20:
                result["bench"][engine.server.name] = bench(
                    engine, out, f"{arguments.wave}-{engine.server.name}", arguments.rounds,
                    deadline - time.time(),
                )  # fmt: skip
                scrape(engine, out)
        result["pairs"] = {}
        for one, other in PAIRED[arguments.wave]:
            if one not in ready or other not in ready:
                continue
            samples = paired(ready[one], ready[other], deadline - 15, arguments.streams)
            result["pairs"][f"{one} : {other}"] = samples
            ratios = [s["tokens_per_second"][one] / s["tokens_per_second"][other] for s in samples]
            say(f"{one} : {other}: {len(ratios)} pairs, median ratio {statistics.median(ratios):.4f}")
            scrape(ready[one], out)
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
