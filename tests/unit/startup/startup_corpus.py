"""A seeded generator of start-up logs with known answers: three generations of SGLang's wording, any number of
ranks, benign noise, carriers (Compose, Kubernetes), and faults (startup_faults*.py) at the places where they
happen.
"""

# ruff: noqa: E501  (the lines of logs are data, and long)
from __future__ import annotations

import random
from dataclasses import dataclass, field

from startup_fault import SIGQUIT_OLD, Fault
from startup_faults import FAULTS as FIRST_FAULTS
from startup_faults_more import FAULTS as MORE_FAULTS

FAULTS: tuple[Fault, ...] = (*FIRST_FAULTS, *MORE_FAULTS)


@dataclass
class Log:
    """A generated log: its lines, and the phase after each of them."""

    name: str
    verdict: str
    causes: tuple[str, ...]
    lines: list[bytes] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    crash_line: int | None = None

    @property
    def data(self) -> bytes:
        return b"".join(self.lines)


NOISE: tuple[str, ...] = (
    "[{DATE}{RANK}] Ignore import error when loading sglang.srt.models.foo: cannot import name 'Exception' from 'x' (/a/b.py)",
    "[{DATE}{RANK}] Ignore import error when loading sglang.srt.models.glm: '_OpNamespace' 'sgl_kernel' object has no attribute 'fused'",
    "/usr/lib/python3/x.py:53: UserWarning: failed to import Error handler; NVIDIA GeForce with CUDA capability sm_120 is not compatible with the current PyTorch installation.",
    '  warnings.warn(f"Exception: no kernel image is available, out of memory, crashed")',
    "[{DATE}{RANK}] Performance might be sub-optimal! Config file not found at /cfg/E=384,N=128.json. Fallback triton version 3.6",
    "[{DATE}{RANK}] FlashInfer workspace error budget: 0 errors, 0 crashed, fatal=no",
    "[{DATE}] Endpoint '/get_model_info' is deprecated and will be removed in a future version. Error if used.",
    "[{DATE}] Special token warning: tokenizer error_token 'Killed' not in vocabulary",
    "[transformers] The following generation flags are not valid and may be ignored: ['temperature'].",
    "[Gloo] Rank 0 is connected to 0 peer ranks. Expected number of connected peer ranks is : 0",
    "box:211:409 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "box:211:409 [1] NCCL INFO NCCL_ALGO set by environment to Ring; no P2P error",
    "W0302 10:15:01.112 torch/distributed/run.py] Setting OMP_NUM_THREADS, a crash could follow a timeout",
    "[{DATE}{RANK}] Setup Custom allreduce failed with CUDART error: peer access is not supported between these two devices. To silence this warning, specify --disable-custom-all-reduce explicitly.",
    "  0%|          | 0/3 [00:00<?, ?it/s]",
    "The tokenizer class you load from this checkpoint is not the same type; it may result in unexpected tokenization errors.",
    "\x1b[33mWARNING\x1b[0m: exception=None sigquit=None traceback=off",
    "[{DATE}{RANK}] debug: Traceback printing is enabled (most recent call first)",
    "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to error",
)
BENIGN_BLOCKS: tuple[tuple[str, ...], ...] = (
    (
        "Exception ignored in: <function Pool.__del__ at 0x7f>",
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3.12/multiprocessing/pool.py", line 271, in __del__',
        "    self._change_notifier.put(None)",
        "AttributeError: 'Pool' object has no attribute '_change_notifier'",
    ),
    (
        "--- Logging error ---",
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3.12/logging/__init__.py", line 1163, in emit',
        "    stream.write(msg)",
        "ValueError: I/O operation on closed file.",
    ),
)
SERVING_NOISE: tuple[tuple[str, ...], ...] = (
    ("[{DATE} TP0] Prefill batch, #new-seq: 1, #new-token: 8192, #cached-token: 0, token usage: 0.10, #running-req: 0, #queue-req: 3",),
    ("[{DATE} TP0] Decode batch, #running-req: 3, #token: 11179, token usage: 0.08, accept len: 2.90, accept rate: 0.63, cuda graph: True, gen throughput (token/s): 163.11, #queue-req: 0",),
    ('[{DATE}] INFO:     127.0.0.1:40052 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request',),
    ('[{DATE}] INFO:     127.0.0.1:40052 - "GET /metrics HTTP/1.1" 200 OK',),
    ("[{DATE}] ERROR:    Exception in ASGI application", "Traceback (most recent call last):", '  File "/x/uvicorn/protocols/http/httptools_impl.py", line 409, in run_asgi', "    result = await app()", "RuntimeError: CUDA out of memory is what the user wrote"),
    ("[{DATE} TP0] KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.7 -> 0.9",),
    ("[{DATE}] Receive: obj=GenerateReqInput(text='The server crashed: SIGQUIT received, Scheduler hit an exception: Traceback')",),
)  # fmt: skip


class _Writer:
    def __init__(self, log: Log, rng: random.Random, tp: int, carrier: str) -> None:
        self.log, self.rng, self.tp, self.carrier = log, rng, tp, carrier
        self.seconds = 0
        self.phase = "starting"

    def date(self) -> str:
        return f"2026-03-02 {10 + self.seconds // 3600:02d}:{self.seconds // 60 % 60:02d}:{self.seconds % 60:02d}"

    def put(self, text: str, *, tag: str = "", ending: str = "\n") -> None:
        text = text.replace("{DATE}", self.date())
        text = text.replace(" {TAG}", tag and f" {tag}").replace(
            "{RANK}", f" TP{self.rng.randrange(self.tp)}" if self.tp > 1 else ""
        )
        data = text.encode()
        if self.carrier == "compose":
            data = b"kimi-eagle-1  | " + data
        elif self.carrier == "k8s":
            data = b"2026-03-02T10:15:01.123456789Z stderr F " + data
        self.log.lines.append(data + ending.encode())
        self.log.phases.append(self.phase)

    def noise(self, count: int) -> None:
        for _ in range(count):
            if self.rng.random() < 0.06 and self.phase in ("starting", "loading", "capturing"):
                for line in self.rng.choice(BENIGN_BLOCKS):
                    self.put(line)
            else:
                line = self.rng.choice(NOISE)
                self.put(line)

    def every_rank(self, text: str, phase: str | None, *, share: float = 1.0) -> None:
        """All ranks (or some) print a line, in any order; the first one sets the phase."""
        if phase is not None:
            self.phase = phase
        ranks = [rank for rank in range(self.tp) if rank == 0 or self.rng.random() < share]
        self.rng.shuffle(ranks)
        for rank in ranks:
            tag = f" TP{rank}" if self.tp > 1 else ""
            self.put(f"[{{DATE}}{tag}] {text}")
            if self.rng.random() < 0.15:
                self.noise(1)


STEPS = (
    "none",
    "start",
    "early",
    "init",
    "loading",
    "loaded",
    "draft",
    "allocating",
    "capturing",
    "warming",
    "ready",
    "serving",
)


def generate(seed: int, fault: Fault | None = None, *, stop_at: str | None = None) -> Log:
    """Given a seed, return a log: with `fault`, one that ends by it; else one that goes up to `stop_at`."""
    rng = random.Random(seed)
    tp = rng.choice((1, 2, 4, 8))
    generation = rng.choice(("0.5.9", "0.5.17", "0.5.23"))
    eagle = rng.random() < 0.6 or (fault is not None and ("draft" in fault.name or fault.at == "draft"))
    carrier = rng.choice(("", "", "compose", "k8s"))
    last = fault.at if fault is not None else (stop_at or "serving")
    log = Log(
        name=f"{seed}-{fault.name if fault else last}-{generation}-tp{tp}",
        verdict=fault.verdict if fault else "",
        causes=fault.causes if fault else (),
    )
    w = _Writer(log, rng, tp, carrier)
    if last != "none":
        w.noise(rng.randrange(3))

    def done(step: str) -> bool:
        return STEPS.index(last) <= STEPS.index(step)

    def finish() -> Log:
        if fault is not None:
            _break(w, fault, tp)
        return log

    draft = "'/models/drafter'" if eagle else "None"
    algorithm = "'EAGLE3'" if eagle else "None"
    dump = (
        "model_path='/models/target', served_model_name='crash-killed-exception', watchdog_timeout=300, host='127.0.0.1', port=30000,"
        f" tp_size={tp}, speculative_algorithm={algorithm}, speculative_draft_model_path={draft},"
        " crash_dump_folder=None, debug_tensor_dump_inject=False, log_level='info'"
        + ", pad='error'"
        * rng.randrange(0, 2000, 400)
    )
    if done("start"):
        return finish()
    if generation == "0.5.23":
        pairs = dump.replace("=", "': ").replace(", ", ", '")
        w.put(f"[{{DATE}}] server_args={{'{pairs}}}")
    else:
        w.put(f"[{{DATE}}] server_args=ServerArgs({dump})")
    w.noise(rng.randrange(4))
    if done("early"):
        return finish()
    word = "parallel" if generation == "0.5.23" else "torch distributed"
    w.seconds += 8
    w.every_rank(f"Init {word} begin.", None)
    if tp > 1:
        w.put("[{DATE} TP0] sglang is using nccl==2.28.9")
    if done("init"):
        return finish()
    w.seconds += 4
    w.every_rank(
        f"Init {word} ends. " + ("elapsed=3.91 s" if generation == "0.5.23" else "mem usage=1.20 GB"), None
    )
    bar = "Loading safetensors checkpoint shards" if generation == "0.5.9" else "Multi-thread loading shards"

    def load(model: str, stop: bool) -> bool:
        w.seconds += 1
        w.every_rank("Load weight begin. avail mem=93.80 GB", "loading")
        shards = rng.choice((1, 5, 64))
        steps = sorted({0, shards // 2, shards})
        for count in steps[:-1] if stop else steps:
            w.seconds += 60
            w.put(
                f"\r{bar}: {100 * count // shards:3.0f}% Completed | {count}/{shards} [01:02<01:04,  2.07s/it]",
                ending="\n" if rng.random() < 0.5 else "\r",
            )
            w.noise(rng.randrange(2))
        w.put("")
        if stop:
            return True
        w.every_rank(
            f"Load weight end. elapsed=62.01 s, type={model}, avail mem=35.00 GB, mem usage=58.40 GB.", None
        )
        return False

    if load("DeepseekV3ForCausalLM", last == "loading"):
        return finish()
    if done("loaded"):
        return finish()
    if eagle and generation != "0.5.9" and load("LlamaForCausalLMEagle3", last == "draft"):
        return finish()
    if last == "draft" and generation == "0.5.9":
        load("LlamaForCausalLMEagle3", True)
        return finish()
    w.every_rank(
        "KV Cache is allocated. #tokens: 612352, K size: 12.10 GB, V size: 12.10 GB", "allocating", share=0.7
    )
    w.every_rank("Memory pool end. avail mem=10.92 GB", None, share=0.7)
    if done("allocating"):
        return finish()
    w.noise(rng.randrange(2))

    def capture(name: str) -> None:
        begin = (
            "Capture cuda graph begin. This can take up to several minutes. avail mem=10.77 GB"
            if generation == "0.5.9"
            else f"Capture {name} CUDA graph begin. backend=full, bs=[1, 2, 4, 8], avail mem=10.77 GB"
        )
        w.every_rank(begin, "capturing")
        w.put(
            "Capturing batches (bs=32 avail_mem=10.61 GB):   0%|          | 0/6 [00:00<?, ?it/s]", ending="\r"
        )
        w.noise(rng.randrange(2))
        w.seconds += 9
        w.put("Capturing batches (bs=8 avail_mem=9.87 GB):  50%|█████     | 3/6 [00:04<00:04,  1.55s/it]")

    capture("target verify" if eagle else "decode")
    if done("capturing"):
        return finish()
    w.put("Capturing batches (bs=1 avail_mem=9.87 GB): 100%|██████████| 6/6 [00:09<00:00,  1.55s/it]")
    ended = (
        "Capture cuda graph end. Time elapsed: 9.98 s."
        if generation == "0.5.9"
        else "Capture decode CUDA graph end. elapsed=9.98 s,"
    )
    w.every_rank(f"{ended} mem usage=0.97 GB. avail mem=9.79 GB.", None, share=0.8)
    if eagle and generation == "0.5.9":
        load("LlamaForCausalLMEagle3", False)
    if eagle:
        capture("draft extend")
    w.phase = "warming"
    tag = " TP0" if tp > 1 else ""
    w.put(
        f"[{{DATE}}{tag}] max_total_num_tokens=612352, chunked_prefill_size=8192, max_running_requests=32, context_len=131072"
    )
    w.seconds += 1
    w.put("[{DATE}] INFO:     Started server process [4211]")
    w.put("[{DATE}] INFO:     Application startup complete.")
    if fault is None or fault.name != "port-http":
        w.put("[{DATE}] INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)")
    w.noise(rng.randrange(2))
    if done("warming"):
        return finish()
    w.seconds += 4
    w.phase = "ready"
    w.put("[{DATE}] The server is fired up and ready to roll!")
    if done("ready"):
        return finish()
    w.phase = "serving"
    w.put('[{DATE}] INFO:     127.0.0.1:40052 - "POST /v1/chat/completions HTTP/1.1" 200 OK')
    for _ in range(rng.randrange(1, 8)):
        w.seconds += 3
        for line in rng.choice(SERVING_NOISE):
            w.put(line)
    return finish()


def _break(w: _Writer, fault: Fault, tp: int) -> None:
    w.seconds += 2
    w.log.crash_line = len(w.log.lines)
    ranks = list(range(tp)) if fault.spread else [w.rng.randrange(tp)]
    w.rng.shuffle(ranks)
    before = w.phase
    if w.rng.random() < 0.3 and SIGQUIT_OLD in fault.lines:  # the parent's line comes first
        w.phase = "exited"
        w.put(SIGQUIT_OLD)
    for rank in ranks:
        for line in fault.lines:
            w.phase = "?"  # while the fault is being printed either answer is right
            w.put(line, tag=f"TP{rank}" if tp > 1 else "")
    if w.rng.random() < 0.5 and tp > 1 and fault.verdict == "crashed":
        w.noise(2)
    hangs = fault.verdict == "hung" and fault.lines[-1].startswith("---")
    w.log.phases[-1] = before if hangs else "exited"


def healthy_stops() -> tuple[str, ...]:
    """The places where a healthy log may be cut."""
    return STEPS


VERDICT_AT = {
    "starting": "starting",
    "loading": "loading",
    "allocating": "loading",
    "capturing": "capturing",
    "warming": "starting",
    "ready": "ready",
    "serving": "ready",
}
