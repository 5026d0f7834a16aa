"""Lines that move a start on: load, memory pools, capture, warm-up; and the arguments."""

from __future__ import annotations

import re

from deploy_kit.startup.journal import MAX_RANKS, ORDER, Journal
from deploy_kit.startup.lines import Line
from deploy_kit.startup.lines_of_system import read_kernel_kill
from deploy_kit.startup.progress import Progress
from deploy_kit.startup.run import read_fact

_ARGS = ("model_path", "served_model_name", "speculative_draft_model_path", "speculative_algorithm", "host",
         "port", "tp_size", "watchdog_timeout", "log_level", "quantization")  # fmt: skip
_ARG = {
    name: re.compile(rf"(?:[({{,]\s?)'?{name}'?(?:=|: )(?:'([^']*)'|\"([^\"]*)\"|([\w.+-]+))")
    for name in _ARGS
}
_SECONDS = re.compile(r"(?:elapsed=|Time elapsed: )([\d.]+) s")
_TOKENS = re.compile(r"#tokens: (-?\d+)")
_MAX_TOKENS = re.compile(r"max_total_num_tokens=(-?\d+)")
_PROFILED = re.compile(r"is larger than the profiled value (-?\d+)")
_GRAPH = re.compile(r"Capture (?P<name>[\w -]*?) ?(?:CUDA|cuda|CPU) graph begin")
_SILENCE = re.compile(r"--- seconds since last write: (?P<seconds>\d+)")


def read_init(journal: Journal, line: Line) -> None:
    """Process groups begin, or are made."""
    if line.text.startswith(("Init torch distributed begin", "Init parallel begin")):
        journal.run.init_begun = True
    elif line.text.startswith(("Init torch distributed ends", "Init parallel ends")):
        journal.run.init_ended = True
        journal.alive(line, strong=False)


def read_load(journal: Journal, line: Line) -> None:
    """Weights of a model begin to load, or have loaded."""
    text = line.text
    if text.startswith("Load weight begin"):
        journal.run.init_ended = True
        journal.reach("loading", line, new_load=True)
    elif text.startswith("Load weight end"):
        journal.reach("loading", line)
        match = _SECONDS.search(text)
        if match is not None:
            seconds = journal.run.load_seconds
            if line.rank in seconds or len(seconds) < MAX_RANKS:
                seconds.setdefault(line.rank, float(match.group(1)))
        type_name = re.search(r"type=(\w+)", text)
        if type_name is not None:
            journal.run.facts.setdefault("model_class", type_name.group(1))
        journal.run.facts["target_loaded"] = True
        journal.alive(line, strong=False)


def read_kv(journal: Journal, line: Line) -> None:
    """The KV pool is allocated."""
    if "is allocated" in line.text or "VA upper bound" in line.text:
        journal.reach("allocating", line)
        match = _TOKENS.search(line.text)
        if match is not None:
            journal.run.facts.setdefault("kv_tokens", int(match.group(1)))


def read_memory(journal: Journal, line: Line) -> None:
    """The memory pools are ready; or the kernel speaks of a memory cgroup."""
    if line.text.startswith("Memory pool end"):
        journal.reach("allocating", line)
    elif line.text.startswith(("Memory cgroup out of memory", "Memory cgroup stats")):
        read_kernel_kill(journal, line, line.text[:600])


def read_capture(journal: Journal, line: Line) -> None:
    """Graph capture begins, goes on or ends."""
    text = line.text
    if "failed" in text[:60]:
        return
    if "graph begin" in text or "graph bs [" in text or text.startswith("Capturing"):
        journal.reach("capturing", line)
        match = _GRAPH.match(text)
        if match is not None:
            journal.run.facts["capturing"] = match["name"].strip() or "decode"
    elif "graph end" in text:
        journal.reach("capturing", line)
        match = _SECONDS.search(text)
        if match is not None:
            seconds = journal.run.capture_seconds
            if line.rank in seconds or len(seconds) < MAX_RANKS:
                seconds[line.rank] = max(seconds.get(line.rank, 0.0), float(match.group(1)))
        journal.alive(line, strong=False)


def read_using(journal: Journal, line: Line) -> None:
    """A remark: no tuned MoE configuration."""
    if line.text.startswith("Using default MoE kernel config"):
        journal.run.remarks.setdefault("moe", line.text[:200])


def read_nccl_version(journal: Journal, line: Line) -> bool:
    """SGLang names its NCCL; return whether the line does."""
    if not line.text.startswith("sglang is using nccl=="):
        return False
    journal.run.nccl_seen = True
    journal.run.facts["nccl_version"] = line.text.partition("==")[2].strip()
    return True


def read_compile(journal: Journal, line: Line) -> None:
    """Kernels are compiled."""
    if "JIT" in line.text[:200] or "ompil" in line.text[:200]:
        journal.run.compiling = True
        journal.run.life_order = journal.order


def read_engine(journal: Journal, line: Line) -> None:
    """The scheduler is up."""
    if line.text.startswith("Engine startup timings"):
        journal.reach("warming", line)


def read_tokens(journal: Journal, line: Line) -> None:
    """The scheduler is up, with so many tokens of KV; or the profiled number of them."""
    match = _MAX_TOKENS.match(line.text)
    if match is not None:
        journal.run.facts["max_total_num_tokens"] = int(match.group(1))
        journal.reach("warming", line)
    profiled = _PROFILED.search(line.text)
    if profiled is not None:
        journal.run.facts["profiled_tokens"] = int(profiled.group(1))


def read_progress(journal: Journal, progress: Progress, line: Line) -> None:
    """A bar: weights, capture, compilation."""
    run = journal.run
    if run.ready:
        return
    if progress.kind == "weights":
        if run.stage[1] < ORDER["loading"]:
            journal.reach("loading", line, new_load=True)
        if run.stage[1] == ORDER["loading"]:
            if run.progress is None or run.progress != progress:
                journal.alive(line, strong=False)
            run.progress = progress
    elif progress.kind == "capture":
        # The bar comes from rank 0, untagged: it belongs to the furthest rank's load.
        loads, index = run.stage
        if index <= ORDER["capturing"]:
            run.stages[None] = max(run.stages.get(None, (0, 0)), (loads, ORDER["capturing"]))
            run.progress = progress
    elif progress.kind == "compile":
        run.compiling = True
        run.progress = progress
    run.life_order = journal.order


def read_setup(journal: Journal, line: Line) -> None:
    """Custom all-reduce fell back."""
    if line.text.startswith("Setup Custom allreduce failed"):
        journal.run.facts["custom_allreduce"] = False
        journal.run.remarks["custom_allreduce"] = (
            "SGLang fell back from custom all-reduce: "
            + line.text[:160]
            + " (host finding: run the host doctor; the driver grants no peer access between the GPUs)"
            if "peer access" in line.text
            else "SGLang fell back from custom all-reduce: " + line.text[:160]
        )


def read_some_weights(journal: Journal, line: Line) -> None:
    """Weights that the checkpoint lacks."""
    if line.text.startswith("Some weights") and "not initialized" in line.text:
        journal.run.facts["weights_not_initialized"] = True
        journal.run.remarks["uninitialized"] = line.text[:300]


def read_silence(journal: Journal, line: Line) -> None:
    """A remark of whoever saved the log: how long nothing was written."""
    match = _SILENCE.match(line.text)
    if match is not None:
        journal.silent_seconds = float(match["seconds"])


def read_arguments(journal: Journal, line: Line) -> None:
    """The dump of the arguments: read for values only, it holds every word one might search for."""
    run = journal.run
    for name, pattern in _ARG.items():
        match = pattern.search(line.text)
        if match is not None:
            value = next((group for group in match.groups() if group is not None), "")
            run.args[name] = read_fact(value) if match.group(3) is not None else value
    run.stages.setdefault(None, (0, 0))
