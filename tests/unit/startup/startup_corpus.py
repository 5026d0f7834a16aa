"""A seeded generator of start-up logs with known answers: three generations of SGLang's wording, any number of
ranks, benign noise, carriers (Compose, Kubernetes), and faults at the places where they happen.

Frames and numbers are made up; the decisive lines are worded as SGLang, PyTorch, NCCL, CUDA, Triton, the hub
client, numactl and the kernel word them.
"""

# ruff: noqa: E501  (the lines of logs are data, and long)
from __future__ import annotations

import random
from dataclasses import dataclass, field

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


def _scheduler(*frames: str, raised: str, header: str = "Scheduler hit an exception") -> tuple[str, ...]:
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


def _f(
    name: str,
    at: str,
    cause: str,
    *lines: str,
    verdict: str = "crashed",
    spread: bool = False,
    end: str = SIGQUIT_OLD,
) -> Fault:
    return Fault(name, at, tuple(cause.split("|")), verdict, (*lines, end) if end else lines, spread)


def _bare(*lines: str) -> tuple[str, ...]:
    return (
        "Traceback (most recent call last):",
        f'  File "{PATH}/server_args.py", line 10, in prepare',
        "    x()",
        *lines,
    )


FAULTS: tuple[Fault, ...] = (
    _f("oom-load", "loading", "oom-load", *_scheduler(*LOAD, raised=OOM), spread=True),
    _f(
        "oom-load-2",
        "loading",
        "oom-load",
        *_scheduler(
            *LOAD,
            "layers/linear.py:create_weights",
            raised="RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call.",
        ),
    ),
    _f("oom-draft-load", "draft", "oom-load", *_scheduler(*DRAFT, raised=OOM)),
    _f("oom-kv", "allocating", "oom-kv", *_scheduler(*KV, raised=OOM), spread=True),
    _f(
        "oom-kv-2",
        "allocating",
        "oom-kv",
        *_scheduler(
            *KV, raised="torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 GiB."
        ),
    ),
    _f(
        "no-kv-room",
        "loaded",
        "no-kv-room",
        *_scheduler(
            "model_executor/pool_configurator.py:__post_init__",
            raised="RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.8",
        ),
        spread=True,
    ),
    _f(
        "no-kv-room-2",
        "loaded",
        "no-kv-room",
        *_scheduler(raised="AssertionError: Memory pool size is too small"),
    ),
    _f(
        "oom-capture",
        "capturing",
        "oom-capture",
        *_scheduler(
            *CAPTURE, raised="Exception: Capture cuda graph failed: " + OOM.partition(": ")[2] + ADVICE
        ),
    ),
    _f(
        "oom-capture-2",
        "capturing",
        "oom-capture",
        *_scheduler(
            *CAPTURE, raised="Exception: Capture cuda graph failed: CUDA error: out of memory" + ADVICE
        ),
        spread=True,
    ),
    _f(
        "oom-serving",
        "serving",
        "oom-serving",
        *_scheduler(
            "managers/scheduler.py:event_loop_overlap", "managers/scheduler.py:run_batch", raised=OOM
        ),
        end=SIGQUIT_NEW,
    ),
    _f(
        "capture-fusion",
        "capturing",
        "kernel-arch",
        *_scheduler(
            *CAPTURE,
            raised="Exception: Capture cuda graph failed: No supported CUDA architectures found for major versions [9, 10]."
            + ADVICE,
        ),
    ),
    _f(
        "capture-prohibited",
        "capturing",
        "capture-failed",
        *_scheduler(
            *CAPTURE,
            raised="Exception: Capture cuda graph failed: CUDA error: operation not permitted when stream is capturing"
            + ADVICE,
        ),
    ),
    _f(
        "capture-other",
        "capturing",
        "capture-failed",
        *_scheduler(*CAPTURE, raised="Exception: Capture cuda graph failed: mla: wrong page size" + ADVICE),
    ),
    _f(
        "capture-nccl-tree",
        "capturing",
        "nccl-no-algorithm",
        "box:211:409 [0] NCCL WARN Error : no algorithm/protocol available for function AllGather with datatype ncclInt8. NCCL_ALGO was set to Tree.",
        *_scheduler(
            *CAPTURE,
            raised="Exception: Capture cuda graph failed: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)"
            + ADVICE,
        ),
    ),
    _f(
        "nccl-tree-2",
        "init",
        "nccl-no-algorithm",
        *_scheduler(
            *PYNCCL,
            raised="RuntimeError: NCCL error: no algorithm/protocol available for function Reduce with datatype ncclFloat32. NCCL_PROTO was set to LL.",
        ),
    ),
    _f(
        "nccl-system",
        "init",
        "nccl-system",
        *_scheduler(
            *PYNCCL,
            raised="RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        ),
        spread=True,
    ),
    _f(
        "nccl-system-shm",
        "init",
        "shm-too-small",
        "box:211:409 [0] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-7Wq2pB (size 33030528), error: No space left on device (28)",
        *_scheduler(
            *PYNCCL,
            raised="RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        ),
    ),
    _f(
        "nccl-p2p",
        "init",
        "nccl-p2p",
        "box:1:2 [3] transport/p2p.cc:275 NCCL WARN Cuda failure 'peer access is not supported between these two devices'",
        *_scheduler(
            *PYNCCL,
            raised="RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        ),
    ),
    _f(
        "nccl-ipc",
        "init",
        "nccl-p2p",
        *_scheduler(
            *INIT,
            "distributed/device_communicators/custom_all_reduce.py:open_ipc",
            raised="RuntimeError: CUDART error: cudaIpcOpenMemHandle failed: invalid argument",
        ),
    ),
    _f(
        "nccl-duplicate",
        "init",
        "nccl-usage",
        *_scheduler(
            *PYNCCL,
            raised="torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, invalid usage, NCCL version 2.28.9\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device c1000",
        ),
    ),
    _f(
        "nccl-remote",
        "capturing",
        "rank-lost",
        *_scheduler(
            *CAPTURE[:1],
            raised="torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error, NCCL version 2.28.9",
        ),
    ),
    _f(
        "nccl-collective-timeout",
        "capturing",
        "nccl-timeout",
        "[rank3]:[E227 16:30:43.526290891 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=33, OpType=ALLREDUCE, NumelIn=7168, NumelOut=7168, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.",
        "[rank3]:[E227 16:30:43.53 ProcessGroupNCCL.cpp:641] [Rank 3] To avoid data inconsistency, we are taking the entire process down.",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "  what():  [PG ID 2 PG GUID 3 Rank 3] Process group watchdog thread terminated with exception: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=33, OpType=ALLREDUCE) ran for 600029 milliseconds before timing out.",
    ),
    _f(
        "nccl-illegal",
        "serving",
        "cuda-fault",
        "[rank1]:[E227 16:30:43.526290891 ProcessGroupNCCL.cpp:1785] [PG ID 2 PG GUID 3 Rank 1] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "  what():  [PG ID 2 PG GUID 3 Rank 1] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered",
        "[{DATE}] Subprocess scheduler_1 (pid=812) crashed with exit code -6. Triggering SIGQUIT for cleanup...",
        end=SIGQUIT_NEW,
    ),
    _f(
        "illegal-python",
        "serving",
        "cuda-fault",
        *_scheduler(
            "managers/scheduler.py:event_loop_overlap",
            raised="torch.AcceleratorError: CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda for more information.",
        ),
        end=SIGQUIT_NEW,
        spread=True,
    ),
    _f(
        "ecc",
        "serving",
        "gpu-ecc",
        *_scheduler(
            "managers/scheduler.py:event_loop_overlap",
            raised="RuntimeError: CUDA error: uncorrectable ECC error encountered",
        ),
        end=SIGQUIT_NEW,
    ),
    _f(
        "xid79",
        "serving",
        "gpu-lost",
        "[84011.227351] NVRM: Xid (PCI:0000:c1:00): 79, pid=7741, name=sglang::schedul, GPU has fallen off the bus.",
        end="",
    ),
    _f(
        "xid79-python",
        "loading",
        "gpu-lost|cuda-driver",
        *_scheduler(*LOAD, raised="RuntimeError: CUDA error: GPU is lost"),
        "[84011.227351] NVRM: Xid (PCI:0000:c1:00): 79, pid=7741, GPU has fallen off the bus.",
    ),
    _f(
        "no-kernel-image",
        "loading",
        "kernel-arch",
        *_scheduler(
            *LOAD,
            "layers/quantization/fp8.py:process_weights_after_loading",
            raised="torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        ),
        spread=True,
    ),
    _f(
        "sm100-only",
        "init",
        "kernel-arch|flag",
        *_scheduler(
            "layers/attention/trtllm_mla_backend.py:__init__",
            raised="ValueError: TRTLLM MLA backend is only supported on Blackwell GPUs (SM100). Please use a different backend.",
        ),
    ),
    _f(
        "nvcc-arch",
        "capturing",
        "kernel-arch",
        *_scheduler(
            *CAPTURE, raised="RuntimeError: nvcc fatal   : Unsupported gpu architecture 'compute_120f'"
        ),
    ),
    _f(
        "triton-smem",
        "capturing",
        "kernel-resources",
        *_scheduler(
            *CAPTURE,
            raised="triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
        ),
    ),
    _f(
        "triton-smem-capture",
        "capturing",
        "kernel-resources",
        *_scheduler(
            *CAPTURE,
            raised="Exception: Capture cuda graph failed: out of resource: shared memory, Required: 131072, Hardware limit: 101376. Reducing block sizes or `num_stages` may help."
            + ADVICE,
        ),
    ),
    _f(
        "no-nvcc",
        "capturing",
        "jit-toolchain",
        *_scheduler(
            *CAPTURE,
            "jit/core.py:build",
            raised="RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
        ),
    ),
    _f(
        "no-ninja",
        "capturing",
        "jit-toolchain",
        *_scheduler(
            *CAPTURE,
            "jit/cpp_ext.py:run_ninja",
            raised="FileNotFoundError: [Errno 2] No such file or directory: 'ninja'",
        ),
    ),
    _f(
        "no-cc",
        "capturing",
        "jit-toolchain",
        *_scheduler(
            *CAPTURE,
            raised="RuntimeError: Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.build.impl.",
        ),
    ),
    _f(
        "no-cuda-home",
        "init",
        "jit-toolchain",
        *_scheduler(
            *INIT,
            raised="OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
        ),
    ),
    _f(
        "ninja-build",
        "capturing",
        "jit-failed",
        *_scheduler(
            *CAPTURE,
            raised="RuntimeError: Ninja build failed. Ninja output:\nninja: build stopped: subcommand failed.",
        ),
    ),
    _f(
        "jit-disk",
        "capturing",
        "disk-full",
        *_scheduler(
            *CAPTURE,
            raised="OSError: [Errno 28] No space left on device: '/root/.cache/flashinfer/0.6.14/120f/cached_ops'",
        ),
    ),
    _f(
        "jit-permission",
        "capturing",
        "permission",
        *_scheduler(*CAPTURE, raised="PermissionError: [Errno 13] Permission denied: '/root/.cache/tvm-ffi'"),
    ),
    _f(
        "drafter-missing",
        "early",
        "drafter-missing",
        *_bare(
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/drafter'. Use `repo_type` argument if needed."
        ),
        end="",
    ),
    _f(
        "drafter-size",
        "draft",
        "drafter-mismatch",
        *_scheduler(
            *DRAFT,
            "models/llama_eagle3.py:load_weights",
            raised="AssertionError: Attempted to load weight (torch.Size([4096, 12288])) into parameter (torch.Size([7168, 21504]))",
        ),
        spread=True,
    ),
    _f(
        "drafter-narrow",
        "draft",
        "drafter-mismatch",
        *_scheduler(
            *DRAFT,
            "layers/vocab_parallel_embedding.py:weight_loader",
            raised="RuntimeError: start (0) + length (7168) exceeds dimension size (4096).",
        ),
    ),
    _f(
        "drafter-key",
        "draft",
        "drafter-mismatch",
        *_scheduler(
            *DRAFT,
            "models/llama_eagle3.py:load_weights",
            raised="KeyError: 'model.layers.0.self_attn.qkv_proj.weight'",
        ),
    ),
    _f(
        "drafter-set-embed",
        "draft",
        "drafter-mismatch",
        *_scheduler(
            "speculative/eagle_worker_v2.py:init_token_map",
            raised="AttributeError: 'Qwen2ForCausalLM' object has no attribute 'set_embed'",
        ),
    ),
    _f(
        "drafter-hot-token",
        "draft",
        "drafter-mismatch",
        *_scheduler(
            "speculative/eagle_worker_v2.py:init_lm_head",
            raised="AttributeError: 'LlamaForCausalLM' object has no attribute 'hot_token_id'",
        ),
    ),
    _f(
        "drafter-none",
        "capturing",
        "drafter-mismatch",
        *_scheduler(
            "speculative/eagle_draft_cuda_graph_runner.py:capture_one_batch_size",
            raised="AttributeError: 'NoneType' object has no attribute 'shape'",
        ),
    ),
    _f(
        "drafter-matmul",
        "capturing",
        "drafter-mismatch",
        *_scheduler(
            "speculative/eagle_worker_v2.py:init_cuda_graphs",
            "models/llama_eagle3.py:forward",
            raised="RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x12288 and 21504x7168)",
        ),
    ),
    _f(
        "target-aux",
        "draft",
        "drafter-mismatch",
        *_scheduler(
            "model_executor/model_runner.py:init_aux_hidden_state_capture",
            raised="AttributeError: 'FooForCausalLM' object has no attribute 'set_eagle3_layers_to_capture'",
        ),
    ),
    _f(
        "draft-truncated",
        "draft",
        "drafter-mismatch|weights-incomplete",
        *_scheduler(
            *DRAFT,
            raised="safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
        ),
    ),
    _f(
        "quant-mismatch",
        "early",
        "quantization",
        *_scheduler(
            "configs/model_config.py:_verify_quantization",
            raised="ValueError: Quantization method specified in the model config (compressed-tensors) does not match the quantization method specified in the `quantization` argument (fp8).",
        ),
    ),
    _f(
        "quant-draft-inherit",
        "draft",
        "quantization",
        *_scheduler(
            *DRAFT,
            "layers/quantization/compressed_tensors/compressed_tensors_moe.py:create_weights",
            raised="KeyError: 'model.layers.0.mlp.gate_up_proj.weight_packed'",
        ),
    ),
    _f(
        "quant-unknown",
        "early",
        "quantization",
        *_scheduler(
            "model_loader/weight_utils.py:get_quant_config",
            raised="ValueError: Cannot find the config file for awq",
        ),
    ),
    _f(
        "model-type",
        "early",
        "model-type-unknown",
        *_bare(
            "ValueError: The checkpoint you are trying to load has model type `kimi_k25` but Transformers does not recognize this architecture. This could be because of an issue with the checkpoint."
        ),
        end="",
    ),
    _f(
        "arch-unsupported",
        "loading",
        "model-type-unknown",
        *_scheduler(
            *LOAD,
            raised="ValueError: Model architectures ['Eagle3DeepseekV2ForCausalLM'] are not supported for now. Supported architectures: dict_keys(['LlamaForCausalLM'])",
        ),
    ),
    _f(
        "flag-unknown",
        "start",
        "flag",
        "usage: launch_server.py [-h] --model-path MODEL_PATH [--watchdog-timeout WATCHDOG_TIMEOUT]",
        "                        [--crash-dump-folder CRASH_DUMP_FOLDER]",
        "launch_server.py: error: unrecognized arguments: --enable-mscclpp-magic",
        end="",
    ),
    _f(
        "flag-choice",
        "start",
        "flag",
        "usage: launch_server.py [-h]",
        "launch_server.py: error: argument --attention-backend: invalid choice: 'flashmla2' (choose from 'triton', 'flashinfer', 'fa3')",
        end="",
    ),
    _f(
        "flag-new-cli",
        "start",
        "flag",
        "usage: sglang serve [-h]",
        "sglang serve: error: unrecognized arguments: --speculative-foo 3",
        end="",
    ),
    _f(
        "flag-contradiction",
        "start",
        "flag",
        *_bare(
            f'  File "{PATH}/arg_groups/speculative_hook.py", line 380, in check',
            "ValueError: speculative_eagle_topk(4) is not supported with trtllm_mla.",
        ),
        end="",
    ),
    _f(
        "flag-context",
        "early",
        "flag",
        *_scheduler(
            "configs/model_config.py:_derive_context_length",
            raised="ValueError: Warning: User-specified context_length (262144) is greater than the derived context_length (131072). This may lead to incorrect model outputs or CUDA errors.",
        ),
    ),
    _f(
        "trust",
        "start",
        "trust-remote-code",
        *_bare(
            "ValueError: The repository /models/target contains custom code which must be executed to correctly load the model. You can inspect the repository content at https://hf.co//models/target. Please pass the argument `trust_remote_code=True` to allow custom code to be run."
        ),
        end="",
    ),
    _f(
        "port-http",
        "warming",
        "port-taken",
        "[{DATE}] ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use",
        end="",
    ),
    _f(
        "port-check",
        "start",
        "port-taken",
        *_bare(
            "ValueError: port at 30000 is not available in 30 seconds. port is used by a process already. process.name()='python3' process.status()='sleeping' pid=77"
        ),
        end="",
    ),
    _f(
        "port-rendezvous",
        "init",
        "rendezvous-port-taken",
        *_scheduler(
            *INIT,
            raised="torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        ),
    ),
    _f(
        "port-nccl-check",
        "start",
        "rendezvous-port-taken",
        *_bare(
            "ValueError: nccl_port at 31883 is not available in 30 seconds. nccl_port at 31883 is not available"
        ),
        end="",
    ),
    _f(
        "port-zmq",
        "start",
        "rendezvous-port-taken",
        *_scheduler(
            "managers/scheduler.py:init_sockets",
            raised="zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:30001')",
        ),
    ),
    _f(
        "weights-header",
        "loading",
        "weights-incomplete",
        *_scheduler(
            *LOAD,
            "model_loader/weight_utils.py:safetensors_weights_iterator",
            raised="safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
        ),
    ),
    _f(
        "weights-lfs",
        "loading",
        "weights-incomplete",
        *_scheduler(
            *LOAD,
            raised="safetensors_rust.SafetensorError: Error while deserializing header: header too large",
        ),
    ),
    _f(
        "weights-none",
        "loading",
        "weights-missing",
        *_scheduler(*LOAD, raised="RuntimeError: Cannot find any model weights with `/models/target`"),
    ),
    _f(
        "weights-shard",
        "loading",
        "weights-missing|weights-incomplete",
        *_scheduler(
            *LOAD,
            raised='FileNotFoundError: No such file or directory: "/models/target/model-00031-of-00064.safetensors"',
        ),
    ),
    _f(
        "weights-key",
        "loading",
        "weights-mismatch",
        *_scheduler(
            *LOAD,
            "models/deepseek_v2.py:load_weights",
            raised="KeyError: 'model.layers.3.mlp.experts.w13_weight'",
        ),
    ),
    _f(
        "weights-io",
        "loading",
        "weights-unreadable",
        *_scheduler(*LOAD, raised="OSError: [Errno 5] Input/output error"),
    ),
    _f(
        "weights-permission",
        "loading",
        "weights-unreadable",
        *_scheduler(
            *LOAD,
            raised="PermissionError: [Errno 13] Permission denied: '/models/target/model-00001-of-00064.safetensors'",
        ),
    ),
    _f(
        "bus-error",
        "loading",
        "bus-error",
        "Fatal Python error: Bus error",
        "",
        "Thread 0x00007f10465bb700 (most recent call first):",
        '  File "/usr/local/lib/python3.12/dist-packages/tqdm/_monitor.py", line 60 in run',
        "",
        "Current thread 0x00007f10465bb740 (most recent call first):",
        f'  File "{PATH}/layers/linear.py", line 1254 in weight_loader',
        f'  File "{PATH}/model_loader/loader.py", line 377 in load_model',
    ),
    _f(
        "bus-exit",
        "loading",
        "bus-error",
        "RuntimeError: Rank 2 scheduler died during initialization (exit code: -7). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
        end="",
    ),
    _f(
        "segfault",
        "capturing",
        "segfault",
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f10465bb740 (most recent call first):",
        f'  File "{PATH}/distributed/device_communicators/pynccl.py", line 1254 in all_reduce',
    ),
    _f(
        "killed-9",
        "loading",
        "killed",
        "RuntimeError: Rank 3 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
        end="",
    ),
    _f("killed-shell", "loading", "killed", "Killed", end=""),
    _f("killed-137", "loading", "killed", "kimi-eagle-1 exited with code 137", end=""),
    _f(
        "killed-dmesg",
        "loading",
        "killed-by-kernel",
        "[912.11] Memory cgroup out of memory: Killed process 4242 (sglang::schedul) total-vm:981234kB, anon-rss:1234kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0",
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
        end="",
    ),
    _f(
        "killed-serving",
        "serving",
        "killed",
        "[{DATE}] Subprocess scheduler_0 (pid=501) crashed with exit code -9. Triggering SIGQUIT for cleanup...",
        end=SIGQUIT_NEW,
    ),
    _f(
        "host-memory",
        "loading",
        "host-memory",
        *_scheduler(
            *LOAD,
            raised="RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 939524096 bytes. Error code 12 (Cannot allocate memory)",
        ),
    ),
    _f(
        "numactl",
        "init",
        "numa-refused",
        "setting membind: Invalid argument",
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: 1). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
        end="",
    ),
    _f(
        "numactl-eperm",
        "init",
        "numa-refused",
        "set_mempolicy: Operation not permitted",
        "setting membind: Operation not permitted",
        "RuntimeError: Rank 1 scheduler died during initialization (exit code: 1). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
        end="",
    ),
    _f(
        "memlock",
        "init",
        "memlock",
        *_scheduler(
            *INIT, raised="RuntimeError: cudaHostRegister failed: operation not permitted (memlock limit)"
        ),
    ),
    _f(
        "files",
        "loading",
        "process-limits",
        *_scheduler(
            *LOAD,
            raised="OSError: [Errno 24] Too many open files: '/models/target/model-00040-of-00064.safetensors'",
        ),
    ),
    _f(
        "shm",
        "init",
        "shm-too-small",
        *_scheduler(
            *INIT,
            raised="RuntimeError: unable to write to file </torch_321_88_1>: No space left on device (28) /dev/shm",
        ),
    ),
    _f(
        "hub-gated",
        "start",
        "hub-denied",
        *_bare(
            "OSError: You are trying to access a gated repo.",
            "Make sure to have access to it at https://huggingface.co/acme/target.",
            "401 Client Error. (Request ID: Root=1-2)",
        ),
        end="",
    ),
    _f(
        "hub-403",
        "start",
        "hub-denied",
        *_bare(
            "huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1-2)",
            "",
            "Cannot access gated repo for url https://huggingface.co/acme/target/resolve/main/config.json.",
        ),
        end="",
    ),
    _f(
        "hub-offline",
        "start",
        "hub-offline",
        *_bare(
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.",
            "Check your internet connection.",
        ),
        end="",
    ),
    _f(
        "hub-offline-2",
        "start",
        "hub-offline",
        *_bare(
            "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache and outgoing traffic has been disabled. To enable hf.co look-ups and downloads online, set 'local_files_only' to False."
        ),
        end="",
    ),
    _f(
        "hub-offline-3",
        "start",
        "hub-offline",
        *_bare(
            "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/api/models/acme/target: offline mode is enabled. To disable it, please unset the `HF_HUB_OFFLINE` environment variable."
        ),
        end="",
    ),
    _f(
        "path-missing",
        "start",
        "weights-missing",
        *_bare(
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/target'. Use `repo_type` argument if needed."
        ),
        end="",
    ),
    _f(
        "no-config",
        "start",
        "weights-missing",
        *_bare(
            "OSError: /models/target does not appear to have a file named config.json. Checkout 'https://huggingface.co//models/target/tree/main' for available files."
        ),
        end="",
    ),
    _f(
        "driver-old",
        "init",
        "cuda-driver",
        *_scheduler(
            *INIT,
            raised="RuntimeError: The NVIDIA driver on your system is too old (found version 12080). Please update your GPU driver.",
        ),
    ),
    _f(
        "driver-803",
        "init",
        "cuda-driver",
        *_bare(
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 803: system has unsupported display driver / cuda driver combination"
        ),
        end="",
    ),
    _f(
        "no-gpu", "init", "cuda-driver", *_scheduler(*INIT, raised="RuntimeError: No CUDA GPUs are available")
    ),
    _f(
        "ordinal",
        "init",
        "cuda-driver",
        *_scheduler(*INIT, raised="torch.AcceleratorError: CUDA error: invalid device ordinal"),
    ),
    _f(
        "symbol",
        "start",
        "library-mismatch",
        *_bare(
            "ImportError: /usr/local/lib/python3.12/dist-packages/sgl_kernel/sm120/common_ops.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEab"
        ),
        end="",
    ),
    _f(
        "rank-missing",
        "init",
        "rank-missing",
        *_scheduler(
            *INIT,
            raised="torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 7/8 clients joined.",
        ),
    ),
    _f(
        "gloo-closed",
        "loading",
        "rank-lost",
        *_scheduler(
            *LOAD,
            raised="RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer [10.0.0.2]:9911",
        ),
    ),
    _f(
        "load-barrier",
        "loading",
        "load-barrier",
        *_scheduler(
            *LOAD,
            raised="ValueError: TP rank 1 could finish the model loading, but there are other ranks that didn't finish loading. It is likely due to unexpected failures (e.g., OOM) or a slow node.",
        ),
        spread=True,
    ),
    _f(
        "root-then-symptoms",
        "loading",
        "oom-load",
        *_scheduler(
            *LOAD,
            raised="RuntimeError: [gloo/transport/tcp/pair.cc:544] Connection closed by peer [10.0.0.2]:9911",
        ),
        *_scheduler(*LOAD, raised=OOM),
    ),
    _f(
        "watchdog-old",
        "serving",
        "watchdog",
        "[{DATE} {TAG}] Watchdog timeout (self.watchdog_timeout=300)",
        verdict="hung",
    ),
    _f(
        "watchdog-mid",
        "serving",
        "watchdog",
        "[{DATE} {TAG}] Watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        verdict="hung",
    ),
    _f(
        "watchdog-new",
        "serving",
        "watchdog",
        "[{DATE} {TAG}] Scheduler debug info:",
        "scheduler.cur_batch_for_debug.batch_size()=4",
        "[{DATE} {TAG}] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        end="[{DATE}] SIGQUIT received. signum=3, frame=<f>. It usually means one child failed.",
        verdict="hung",
        spread=True,
    ),
    _f(
        "watchdog-detok",
        "serving",
        "watchdog",
        "[{DATE}] DetokenizerManager watchdog timeout (self.watchdog_timeout=300.0, self.soft=False)",
        verdict="hung",
    ),
    _f(
        "warmup",
        "warming",
        "warmup-failed",
        *(
            line.replace(" {TAG}", "")
            for line in _scheduler(
                "entrypoints/http_server.py:_execute_server_warmup",
                raised="requests.exceptions.ReadTimeout: HTTPConnectionPool(host='127.0.0.1', port=30000): Read timed out. (read timeout=600)",
                header="Initialization failed. warmup error",
            )
        ),
        end="",
    ),
    _f(
        "detokenizer",
        "serving",
        "unknown",
        "[{DATE}] DetokenizerManager hit an exception: Traceback (most recent call last):",
        f'  File "{PATH}/managers/detokenizer_manager.py", line 560, in run_detokenizer_process',
        "OverflowError: out of range integral type conversion attempted",
        end=SIGQUIT_NEW,
    ),
    _f(
        "assertion",
        "init",
        "assertion",
        *_scheduler(*INIT, raised="AssertionError"),
        "Traceback (most recent call last):",
        f'  File "{PATH}/entrypoints/engine.py", line 1277, in _wait_for_scheduler_ready',
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -3). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
    ),
    _f(
        "unknown",
        "capturing",
        "unknown|capture-failed",
        *_scheduler("layers/moe/topk.py:forward", raised="RuntimeError: a tensor went missing"),
    ),
    _f(
        "unknown-serving",
        "serving",
        "unknown",
        *_scheduler("managers/scheduler.py:event_loop_overlap", raised="IndexError: list index out of range"),
        end=SIGQUIT_NEW,
    ),
    _f(
        "telemetry",
        "loading",
        "telemetry",
        *_scheduler(*LOAD, raised="AttributeError: module 'deploy_kit.telemetry.plugin' cannot wrap forward"),
    ),
    _f(
        "tokenizer",
        "start",
        "tokenizer|library-mismatch",
        *_bare(
            "ValueError: Couldn't instantiate the backend tokenizer from one of: (1) a `tokenizers` library serialization file"
        ),
        end="",
    ),
)

FAULTS = (
    *FAULTS,
    _f(
        "nccl-interface",
        "init",
        "nccl-interface",
        "box:211:409 [0] NCCL WARN Bootstrap : no socket interface found",
        *_scheduler(
            *PYNCCL,
            raised="RuntimeError: NCCL error: internal error - please report this issue to the NCCL developers",
        ),
    ),
    _f(
        "gloo-interface",
        "init",
        "nccl-interface",
        *_scheduler(
            *INIT,
            raised="RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address for: eth9",
        ),
    ),
    _f(
        "nccl-system-2",
        "init",
        "nccl-system",
        *_scheduler(
            *INIT,
            raised="torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error, NCCL version 2.28.9\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        ),
    ),
    _f(
        "occupied",
        "init",
        "gpu-occupied",
        *_scheduler(
            *INIT,
            raised="ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=44.12, local_gpu_memory=93.81, local_gpu_memory * 0.9=84.43",
        ),
    ),
    _f(
        "occupied-2",
        "init",
        "gpu-occupied",
        *_scheduler(
            *INIT,
            raised="RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.",
        ),
    ),
    _f(
        "oom-serving-prefill",
        "serving",
        "oom-serving",
        *_scheduler(
            "managers/scheduler.py:event_loop_normal",
            raised="RuntimeError: Prefill out of memory. Try to lower your batch size.\nTry to allocate 8192 tokens.",
        ),
        end=SIGQUIT_NEW,
    ),
    _f(
        "host-memory-2",
        "loading",
        "host-memory",
        *_scheduler(
            *LOAD,
            raised="RuntimeError: unable to mmap 9876543210 bytes from file </models/target/model-00001-of-00064.safetensors>: Cannot allocate memory (12)",
        ),
    ),
    _f(
        "kernel-kill-host",
        "loading",
        "killed-by-kernel",
        "[  912.111] Out of memory: Killed process 771 (python3) total-vm:1kB, anon-rss:1kB",
        end="",
    ),
    _f(
        "jit-failed-2",
        "capturing",
        "jit-failed",
        *_scheduler(
            *CAPTURE,
            raised="RuntimeError: Error building extension 'batch_mla': [1/3] nvcc ...\nsubcommand failed",
        ),
    ),
    _f(
        "disk-2",
        "capturing",
        "disk-full",
        *_scheduler(*CAPTURE, raised="OSError: [Errno 28] No space left on device"),
    ),
    _f(
        "permission-2",
        "init",
        "permission",
        *_scheduler(
            *INIT, raised="PermissionError: [Errno 13] Permission denied: '/tmp/torchinductor_root/cache'"
        ),
    ),
    _f(
        "memlock-2",
        "init",
        "memlock",
        *_scheduler(*INIT, raised="RuntimeError: ibv_reg_mr failed: Cannot allocate memory"),
    ),
    _f(
        "threads",
        "loading",
        "process-limits",
        *_scheduler(*LOAD, raised="RuntimeError: can't start new thread"),
    ),
    _f(
        "nccl-usage-2",
        "init",
        "nccl-usage",
        *_scheduler(
            *PYNCCL,
            raised="RuntimeError: NCCL error: invalid argument (run with NCCL_DEBUG=WARN for details)",
        ),
    ),
    _f(
        "nccl-timeout-2",
        "loading",
        "nccl-timeout",
        *_scheduler(
            *LOAD,
            raised="torch.distributed.DistBackendError: NCCL timeout: collective operation timeout in allreduce",
        ),
    ),
    _f(
        "rank-missing-2",
        "init",
        "rank-missing",
        *_scheduler(
            *INIT,
            raised="torch.distributed.DistBackendError: [5] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: wait timeout after 600000ms, keys: /default_pg/0//cuda//0",
        ),
    ),
    _f(
        "load-barrier-2",
        "loading",
        "load-barrier",
        *_scheduler(
            *LOAD,
            raised="ValueError: TP rank 6 could finish the model loading, but there are other ranks that didn't finish loading. It is likely due to unexpected failures (e.g., OOM) or a slow node.",
        ),
    ),
    _f(
        "ecc-xid",
        "serving",
        "gpu-ecc",
        "[9.1] NVRM: Xid (PCI:0000:41:00): 48, pid=12, An uncorrectable double bit error (DBE) has been detected on GPU",
        *_scheduler(
            "managers/scheduler.py:event_loop_overlap",
            raised="torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        ),
        end=SIGQUIT_NEW,
    ),
    _f(
        "symbol-2",
        "start",
        "library-mismatch",
        *_bare("ImportError: libcudart.so.13: cannot open shared object file: No such file or directory"),
        end="",
    ),
    _f(
        "no-program",
        "none",
        "library-mismatch",
        "/usr/bin/python3: No module named sglang.launch_server",
        end="",
    ),
    _f(
        "drafter-missing-2",
        "start",
        "drafter-missing|weights-missing",
        *_bare(
            "OSError: /models/drafter does not appear to have a file named config.json. Checkout 'https://huggingface.co//models/drafter/tree/main' for available files."
        ),
        end="",
    ),
    _f(
        "trust-2",
        "early",
        "trust-remote-code",
        *_scheduler(
            "utils/hf_transformers/tokenizer.py:get_tokenizer",
            raised="RuntimeError: Failed to load the tokenizer. If the tokenizer is a custom tokenizer not yet available in the HuggingFace transformers library, consider setting `trust_remote_code=True` in LLM or using the `--trust-remote-code` flag in the CLI.",
        ),
    ),
    _f(
        "weights-truncated-2",
        "loading",
        "weights-incomplete",
        *_scheduler(
            *LOAD,
            raised="RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        ),
    ),
    _f(
        "weights-mismatch-2",
        "loading",
        "weights-mismatch",
        *_scheduler(
            *LOAD,
            raised="RuntimeError: The size of tensor a (7168) must match the size of tensor b (4096) at non-singleton dimension 1",
        ),
    ),
    _f(
        "weights-stale",
        "loading",
        "weights-unreadable",
        *_scheduler(
            *LOAD,
            raised="OSError: [Errno 116] Stale file handle: '/models/target/model-00009-of-00064.safetensors'",
        ),
    ),
    _f(
        "warmup-2",
        "warming",
        "warmup-failed",
        *(
            line.replace(" {TAG}", "")
            for line in _scheduler(
                "entrypoints/http_server.py:_execute_server_warmup",
                raised="AssertionError: res=<Response [500]>, res.text='Internal Server Error'",
                header="Initialization failed. warmup error",
            )
        ),
        end="",
    ),
    _f(
        "telemetry-2",
        "start",
        "telemetry",
        *_bare("RuntimeError: deploy_kit_telemetry: this SGLang has no such hook"),
        end="",
    ),
    _f(
        "tokenizer-2",
        "start",
        "tokenizer|library-mismatch",
        *_bare("ImportError: tiktoken is required to read this tokenizer: pip install tiktoken"),
        end="",
    ),
    _f(
        "segfault-exit",
        "capturing",
        "segfault",
        "RuntimeError: Rank 2 scheduler died during initialization (exit code: -11). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
        end="",
    ),
    _f(
        "assertion-2",
        "allocating",
        "assertion",
        *_scheduler("layers/radix_attention.py:__init__", raised="AssertionError: pools differ"),
    ),
    _f(
        "kernel-resources-2",
        "capturing",
        "kernel-resources",
        *_scheduler(
            *CAPTURE,
            raised="triton.runtime.autotuner.OutOfResources: out of resource: shared memory, Required: 262144, Hardware limit: 101376.",
        ),
    ),
)

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
    w.log.phases[-1] = "exited"
    del before


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
