"""What the benchmark client costs, against its peers, on the same stand-in server: paired, in turns.

    python benchmarks/bench_client.py --tokenizer FOLDER [--sglang-python PYTHON] [--guidellm PROGRAM]

Each round runs every client once, in turn, against one stand-in server: 128 streams with four requests each,
one after the other, as fast as the stand-in writes (2 ms between a stream's tokens: more than any client
reads on two cores, so the client is what is measured). Prints
each client's tokens/s and its ratio to ours in the same round. A peer that is not there is said to be absent,
never guessed. `httpx` is what this project's client would be without its own reader.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from deploy_kit.bench.answers import Ask, body_of, path_of, read_answer
from deploy_kit.bench.selftest import self_test, standin
from deploy_kit.bench.stream import Client, parse_endpoint

STREAMS, REQUESTS, TOKENS, GAP_MS = 128, 4, 200, 2.0
TOTAL = STREAMS * REQUESTS * TOKENS
BODY = body_of("openai", "stand-in", Ask(("Say word.",), TOKENS))


def ours(url: str) -> float:
    """Tokens/s of this project's client, answers parsed."""

    async def run() -> float:
        client = Client(parse_endpoint(url), timeout_seconds=120)

        async def stream() -> None:
            for _ in range(REQUESTS):
                answer = read_answer("openai", await client.post(path_of("openai"), BODY), Ask(("",), TOKENS))
                assert answer.error is None, answer.error

        began = time.perf_counter()
        await asyncio.gather(*(stream() for _ in range(STREAMS)))
        elapsed = time.perf_counter() - began
        client.close()
        return TOTAL / elapsed

    return asyncio.run(run())


def with_httpx(url: str) -> float:
    """Tokens/s of httpx's streaming on the same requests, events parsed as they come."""

    async def one(client: httpx.AsyncClient) -> int:
        tokens = 0
        headers = {"content-type": "application/json"}
        async with client.stream("POST", url + path_of("openai"), content=BODY, headers=headers) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    tokens = json.loads(line[6:])["usage"]["completion_tokens"]
        return tokens

    async def run() -> float:
        limits = httpx.Limits(max_connections=STREAMS)
        async with httpx.AsyncClient(timeout=120, limits=limits) as client:

            async def stream() -> None:
                for _ in range(REQUESTS):
                    assert await one(client) == TOKENS

            began = time.perf_counter()
            await asyncio.gather(*(stream() for _ in range(STREAMS)))
            return TOTAL / (time.perf_counter() - began)

    return asyncio.run(run())


def sglang_client(python: str, tokenizer: str) -> Callable[[str], float]:
    """Tokens/s that `sglang.bench_serving` reports on the same stand-in."""

    tokenizer = str(Path(tokenizer).absolute())

    def run(url: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            # It imports `datasets` for data sets that are not used here: an empty stand-in does.
            Path(folder, "datasets.py").write_text("load_dataset = None\n")
            command = [
                str(Path(python).absolute()), "-m", "sglang.bench_serving",
                "--backend", "sglang-oai-chat", "--host", "127.0.0.1", "--port", url.rpartition(":")[2],
                "--dataset-name", "random-ids", "--random-input-len", "16",
                "--random-output-len", str(TOKENS), "--random-range-ratio", "1.0",
                "--num-prompts", str(STREAMS * REQUESTS), "--max-concurrency", str(STREAMS),
                "--warmup-requests", "1",
                "--tokenizer", tokenizer, "--model", tokenizer, "--served-model-name", "stand-in",
            ]  # fmt: skip
            environment = {**os.environ, "PYTHONPATH": folder, "HF_HUB_OFFLINE": "1"}
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, cwd=folder, check=False
            )
        duration = re.search(r"Benchmark duration \(s\):\s+([\d.]+)", done.stdout)
        if not duration:
            raise SystemExit(f"sglang.bench_serving failed:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
        return TOTAL / float(duration[1])

    return run


def guidellm_client(program: str, tokenizer: str) -> Callable[[str], float]:
    """Tokens/s of guidellm (its command line since 0.8) on the same stand-in: tokens over the duration that
    its report gives, from the first request's start to the last one's end."""

    tokenizer = str(Path(tokenizer).absolute())

    def run(url: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder, "out.json")
            backend = f"kind=openai_http,target={url},model=stand-in,validate_backend=false,http2=false"
            command = [
                program, "run", "--disable-console", "--backend", backend,
                "--profile", f"kind=concurrent,streams={STREAMS}",
                "--constraint", f"kind=max_requests,count={STREAMS * REQUESTS}",
                "--tokenizer", f"kind=hf_auto,model={tokenizer}",
                "--data", f"kind=synthetic_text,prompt_tokens=16,output_tokens={TOKENS}",
                "--output", f"kind=json,path={output}",
            ]  # fmt: skip
            environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, check=False, timeout=600
            )
            if not output.is_file():
                raise SystemExit(f"guidellm failed:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
            (result,) = json.loads(output.read_text())["benchmarks"]
        answers = result["requests"]["successful"]
        assert [answer["output_tokens"] for answer in answers] == [TOKENS] * (STREAMS * REQUESTS), len(
            answers
        )
        return TOTAL / float(result["duration"])

    return run


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sglang-python", help="the Python of an environment with sglang")
    parser.add_argument("--tokenizer", help="a tokenizer folder, for both peers")
    parser.add_argument("--guidellm", help="the guidellm program of an environment that has it")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    clients: dict[str, Callable[[str], float]] = {"ours": ours, "httpx": with_httpx}
    if options.sglang_python and options.tokenizer:
        clients["sglang.bench_serving"] = sglang_client(options.sglang_python, options.tokenizer)
    else:
        sys.stderr.write("sglang.bench_serving: absent (no --sglang-python and --tokenizer)\n")
    if options.guidellm and options.tokenizer:
        clients["guidellm"] = guidellm_client(options.guidellm, options.tokenizer)
    else:
        sys.stderr.write("guidellm: absent (no --guidellm and --tokenizer)\n")
    speeds: dict[str, list[float]] = {name: [] for name in clients}
    with standin("--gap-ms", str(GAP_MS), "--first-ms", "5") as url:
        ours(url)
        for number in range(options.rounds):
            for name, client in clients.items():
                speeds[name].append(client(url))
            shown = ", ".join(f"{name} {values[-1]:.0f}" for name, values in speeds.items())
            print(f"round {number + 1}: {shown} tok/s (load {os.getloadavg()[0]:.1f})", flush=True)
    print(
        f"{STREAMS} streams x {REQUESTS} requests of {TOKENS} tokens, "
        f"median of {options.rounds} rounds in turns"
    )
    for name, values in speeds.items():
        ratios = [mine / theirs for mine, theirs in zip(speeds["ours"], values, strict=True)]
        print(
            f"{name:22} {statistics.median(values):8.0f} tok/s   ours / it: {statistics.median(ratios):.2f} "
            f"(from {min(ratios):.2f} to {max(ratios):.2f})"
        )
    test = self_test()
    print(
        f"at {test.streams} streams, 20 ms a token: added to the median gap "
        f"{test.added_seconds * 1000:+.3f} ms, event delay p50 {test.delay_p50_seconds * 1000:.2f} ms, "
        f"processor {test.client_cpu_ratio * 100:.0f} %"
    )


if __name__ == "__main__":
    main()
