"""What a fault of the corpus is, and the words that many of them share."""

# ruff: noqa: E501  (the lines of logs are data, and long)
from __future__ import annotations

from dataclasses import dataclass

PATH = "/sgl-workspace/sglang/python/sglang/srt"


@dataclass(frozen=True)
class Fault:
    """What goes wrong: `at` the phase, `lines` what is printed ({TAG} is the failing rank's tag)."""

    name: str
    at: str
    causes: tuple[str, ...]
    verdict: str
    lines: tuple[str, ...]
    spread: bool = False  # every rank prints it


def scheduler(*frames: str, raised: str, header: str = "Scheduler hit an exception") -> tuple[str, ...]:
    lines = [f"[{{DATE}} {{TAG}}] {header}: Traceback (most recent call last):"]
    lines += [
        f'  File "{PATH}/managers/scheduler.py", line 3118, in run_scheduler_process',
        "    scheduler = Scheduler(server_args, port_args, gpu_id, tp_rank)",
        "                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        f'  File "{PATH}/managers/tp_worker.py", line 247, in __init__',
    ]
    for frame in frames:
        file, _, function = frame.partition(":")
        lines += [f'  File "{PATH}/{file}", line 77, in {function}', f"    self.{function}()"]
    return (*lines, *raised.split("\n"))


SIGQUIT_OLD = "[{DATE}] Received sigquit from a child process. It usually means the child failed."
SIGQUIT_NEW = "[{DATE}] SIGQUIT received. signum=<Signals.SIGQUIT: 3>, frame=<frame at 0x7f, code select>. It usually means one child failed."
LOAD = ("model_executor/model_runner.py:load_model", "model_loader/loader.py:load_model")
DRAFT = ("speculative/eagle_worker_v2.py:__init__", "model_executor/model_runner.py:load_model")
KV = ("mem_cache/kv_cache_configurator.py:configure", "mem_cache/memory_pool.py:_create_buffers")
CAPTURE = (
    "model_executor/model_runner.py:init_device_graphs",
    "model_executor/runner/decode_cuda_graph_runner.py:__init__",
)
INIT = (
    "model_executor/model_runner.py:init_torch_distributed",
    "distributed/parallel_state.py:initialize_model_parallel",
)
PYNCCL = (*INIT, "distributed/device_communicators/pynccl_wrapper.py:NCCL_CHECK")
ADVICE = (
    "\nPossible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
    "2. set --cuda-graph-max-bs to a smaller value (e.g., 16)\n"
    "3. disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)\n"
    "Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose "
)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 252.00 MiB. GPU 3 has a total capacity of 94.97 GiB of"
    " which 98.00 MiB is free. Process 7746 has 94.86 GiB memory in use."
)


def fault(
    name: str,
    at: str,
    cause: str,
    *lines: str,
    verdict: str = "crashed",
    spread: bool = False,
    end: str = SIGQUIT_OLD,
) -> Fault:
    return Fault(name, at, tuple(cause.split("|")), verdict, (*lines, end) if end else lines, spread)


def bare(*lines: str) -> tuple[str, ...]:
    return (
        "Traceback (most recent call last):",
        f'  File "{PATH}/server_args.py", line 10, in prepare',
        "    x()",
        *lines,
    )
