"""Faults of the corpus, by what is printed. Frames and numbers are made up; the decisive lines are worded as
SGLang, PyTorch, NCCL, CUDA, Triton, the hub client, numactl and the kernel word them."""

# ruff: noqa: E501  (the lines of logs are data, and long)
from __future__ import annotations

from startup_fault import (
    ADVICE,
    CAPTURE,
    DRAFT,
    INIT,
    KV,
    LOAD,
    OOM,
    PATH,
    PYNCCL,
    SIGQUIT_NEW,
    Fault,
    bare,
    fault,
    scheduler,
)

FAULTS: tuple[Fault, ...] = (
    fault("oom-load", "loading", "oom-load", *scheduler(*LOAD, raised=OOM), spread=True),
    fault(
        "oom-load-2",
        "loading",
        "oom-load",
        *scheduler(
            *LOAD,
            "layers/linear.py:create_weights",
            raised="RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call.",
        ),
    ),
    fault("oom-draft-load", "draft", "oom-load", *scheduler(*DRAFT, raised=OOM)),
    fault("oom-kv", "allocating", "oom-kv", *scheduler(*KV, raised=OOM), spread=True),
    fault(
        "oom-kv-2",
        "allocating",
        "oom-kv",
        *scheduler(
            *KV, raised="torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 GiB."
        ),
    ),
    fault(
        "no-kv-room",
        "loaded",
        "no-kv-room",
        *scheduler(
            "model_executor/pool_configurator.py:__post_init__",
            raised="RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.8",
        ),
        spread=True,
    ),
    fault(
        "no-kv-room-2",
        "loaded",
        "no-kv-room",
        *scheduler(raised="AssertionError: Memory pool size is too small"),
    ),
    fault(
        "oom-capture",
        "capturing",
        "oom-capture",
        *scheduler(
            *CAPTURE, raised="Exception: Capture cuda graph failed: " + OOM.partition(": ")[2] + ADVICE
        ),
    ),
    fault(
        "oom-capture-2",
        "capturing",
        "oom-capture",
        *scheduler(
            *CAPTURE, raised="Exception: Capture cuda graph failed: CUDA error: out of memory" + ADVICE
        ),
        spread=True,
    ),
    fault(
        "oom-serving",
        "serving",
        "oom-serving",
        *scheduler("managers/scheduler.py:event_loop_overlap", "managers/scheduler.py:run_batch", raised=OOM),
        end=SIGQUIT_NEW,
    ),
    fault(
        "capture-fusion",
        "capturing",
        "kernel-arch",
        *scheduler(
            *CAPTURE,
            raised="Exception: Capture cuda graph failed: No supported CUDA architectures found for major versions [9, 10]."
            + ADVICE,
        ),
    ),
    fault(
        "capture-prohibited",
        "capturing",
        "capture-failed",
        *scheduler(
            *CAPTURE,
            raised="Exception: Capture cuda graph failed: CUDA error: operation not permitted when stream is capturing"
            + ADVICE,
        ),
    ),
    fault(
        "capture-other",
        "capturing",
        "capture-failed",
        *scheduler(*CAPTURE, raised="Exception: Capture cuda graph failed: mla: wrong page size" + ADVICE),
    ),
    fault(
        "capture-nccl-tree",
        "capturing",
        "nccl-no-algorithm",
        "box:211:409 [0] NCCL WARN Error : no algorithm/protocol available for function AllGather with datatype ncclInt8. NCCL_ALGO was set to Tree.",
        *scheduler(
            *CAPTURE,
            raised="Exception: Capture cuda graph failed: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)"
            + ADVICE,
        ),
    ),
    fault(
        "nccl-tree-2",
        "init",
        "nccl-no-algorithm",
        *scheduler(
            *PYNCCL,
            raised="RuntimeError: NCCL error: no algorithm/protocol available for function Reduce with datatype ncclFloat32. NCCL_PROTO was set to LL.",
        ),
    ),
    fault(
        "nccl-system",
        "init",
        "nccl-system",
        *scheduler(
            *PYNCCL,
            raised="RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        ),
        spread=True,
    ),
    fault(
        "nccl-system-shm",
        "init",
        "shm-too-small",
        "box:211:409 [0] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-7Wq2pB (size 33030528), error: No space left on device (28)",
        *scheduler(
            *PYNCCL,
            raised="RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        ),
    ),
    fault(
        "nccl-p2p",
        "init",
        "nccl-p2p",
        "box:1:2 [3] transport/p2p.cc:275 NCCL WARN Cuda failure 'peer access is not supported between these two devices'",
        *scheduler(
            *PYNCCL,
            raised="RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        ),
    ),
    fault(
        "nccl-ipc",
        "init",
        "nccl-p2p",
        *scheduler(
            *INIT,
            "distributed/device_communicators/custom_all_reduce.py:open_ipc",
            raised="RuntimeError: CUDART error: cudaIpcOpenMemHandle failed: invalid argument",
        ),
    ),
    fault(
        "nccl-duplicate",
        "init",
        "nccl-usage",
        *scheduler(
            *PYNCCL,
            raised="torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, invalid usage, NCCL version 2.28.9\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device c1000",
        ),
    ),
    fault(
        "nccl-remote",
        "capturing",
        "rank-lost",
        *scheduler(
            *CAPTURE[:1],
            raised="torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error, NCCL version 2.28.9",
        ),
    ),
    fault(
        "nccl-collective-timeout",
        "capturing",
        "nccl-timeout",
        "[rank3]:[E227 16:30:43.526290891 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=33, OpType=ALLREDUCE, NumelIn=7168, NumelOut=7168, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.",
        "[rank3]:[E227 16:30:43.53 ProcessGroupNCCL.cpp:641] [Rank 3] To avoid data inconsistency, we are taking the entire process down.",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "  what():  [PG ID 2 PG GUID 3 Rank 3] Process group watchdog thread terminated with exception: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=33, OpType=ALLREDUCE) ran for 600029 milliseconds before timing out.",
    ),
    fault(
        "nccl-illegal",
        "serving",
        "cuda-fault",
        "[rank1]:[E227 16:30:43.526290891 ProcessGroupNCCL.cpp:1785] [PG ID 2 PG GUID 3 Rank 1] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "  what():  [PG ID 2 PG GUID 3 Rank 1] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered",
        "[{DATE}] Subprocess scheduler_1 (pid=812) crashed with exit code -6. Triggering SIGQUIT for cleanup...",
        end=SIGQUIT_NEW,
    ),
    fault(
        "illegal-python",
        "serving",
        "cuda-fault",
        *scheduler(
            "managers/scheduler.py:event_loop_overlap",
            raised="torch.AcceleratorError: CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda for more information.",
        ),
        end=SIGQUIT_NEW,
        spread=True,
    ),
    fault(
        "ecc",
        "serving",
        "gpu-ecc",
        *scheduler(
            "managers/scheduler.py:event_loop_overlap",
            raised="RuntimeError: CUDA error: uncorrectable ECC error encountered",
        ),
        end=SIGQUIT_NEW,
    ),
    fault(
        "xid79",
        "serving",
        "gpu-lost",
        "[84011.227351] NVRM: Xid (PCI:0000:c1:00): 79, pid=7741, name=sglang::schedul, GPU has fallen off the bus.",
        end="",
    ),
    fault(
        "xid79-python",
        "loading",
        "gpu-lost|cuda-driver",
        *scheduler(*LOAD, raised="RuntimeError: CUDA error: GPU is lost"),
        "[84011.227351] NVRM: Xid (PCI:0000:c1:00): 79, pid=7741, GPU has fallen off the bus.",
    ),
    fault(
        "no-kernel-image",
        "loading",
        "kernel-arch",
        *scheduler(
            *LOAD,
            "layers/quantization/fp8.py:process_weights_after_loading",
            raised="torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        ),
        spread=True,
    ),
    fault(
        "sm100-only",
        "init",
        "kernel-arch|flag",
        *scheduler(
            "layers/attention/trtllm_mla_backend.py:__init__",
            raised="ValueError: TRTLLM MLA backend is only supported on Blackwell GPUs (SM100). Please use a different backend.",
        ),
    ),
    fault(
        "nvcc-arch",
        "capturing",
        "kernel-arch",
        *scheduler(
            *CAPTURE, raised="RuntimeError: nvcc fatal   : Unsupported gpu architecture 'compute_120f'"
        ),
    ),
    fault(
        "triton-smem",
        "capturing",
        "kernel-resources",
        *scheduler(
            *CAPTURE,
            raised="triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
        ),
    ),
    fault(
        "triton-smem-capture",
        "capturing",
        "kernel-resources",
        *scheduler(
            *CAPTURE,
            raised="Exception: Capture cuda graph failed: out of resource: shared memory, Required: 131072, Hardware limit: 101376. Reducing block sizes or `num_stages` may help."
            + ADVICE,
        ),
    ),
    fault(
        "no-nvcc",
        "capturing",
        "jit-toolchain",
        *scheduler(
            *CAPTURE,
            "jit/core.py:build",
            raised="RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
        ),
    ),
    fault(
        "no-ninja",
        "capturing",
        "jit-toolchain",
        *scheduler(
            *CAPTURE,
            "jit/cpp_ext.py:run_ninja",
            raised="FileNotFoundError: [Errno 2] No such file or directory: 'ninja'",
        ),
    ),
    fault(
        "no-cc",
        "capturing",
        "jit-toolchain",
        *scheduler(
            *CAPTURE,
            raised="RuntimeError: Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.build.impl.",
        ),
    ),
    fault(
        "no-cuda-home",
        "init",
        "jit-toolchain",
        *scheduler(
            *INIT,
            raised="OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
        ),
    ),
    fault(
        "ninja-build",
        "capturing",
        "jit-failed",
        *scheduler(
            *CAPTURE,
            raised="RuntimeError: Ninja build failed. Ninja output:\nninja: build stopped: subcommand failed.",
        ),
    ),
    fault(
        "jit-disk",
        "capturing",
        "disk-full",
        *scheduler(
            *CAPTURE,
            raised="OSError: [Errno 28] No space left on device: '/root/.cache/flashinfer/0.6.14/120f/cached_ops'",
        ),
    ),
    fault(
        "jit-permission",
        "capturing",
        "permission",
        *scheduler(*CAPTURE, raised="PermissionError: [Errno 13] Permission denied: '/root/.cache/tvm-ffi'"),
    ),
    fault(
        "drafter-missing",
        "early",
        "drafter-missing",
        *bare(
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/drafter'. Use `repo_type` argument if needed."
        ),
        end="",
    ),
    fault(
        "drafter-size",
        "draft",
        "drafter-mismatch",
        *scheduler(
            *DRAFT,
            "models/llama_eagle3.py:load_weights",
            raised="AssertionError: Attempted to load weight (torch.Size([4096, 12288])) into parameter (torch.Size([7168, 21504]))",
        ),
        spread=True,
    ),
    fault(
        "drafter-narrow",
        "draft",
        "drafter-mismatch",
        *scheduler(
            *DRAFT,
            "layers/vocab_parallel_embedding.py:weight_loader",
            raised="RuntimeError: start (0) + length (7168) exceeds dimension size (4096).",
        ),
    ),
    fault(
        "drafter-key",
        "draft",
        "drafter-mismatch",
        *scheduler(
            *DRAFT,
            "models/llama_eagle3.py:load_weights",
            raised="KeyError: 'model.layers.0.self_attn.qkv_proj.weight'",
        ),
    ),
    fault(
        "drafter-set-embed",
        "draft",
        "drafter-mismatch",
        *scheduler(
            "speculative/eagle_worker_v2.py:init_token_map",
            raised="AttributeError: 'Qwen2ForCausalLM' object has no attribute 'set_embed'",
        ),
    ),
    fault(
        "drafter-hot-token",
        "draft",
        "drafter-mismatch",
        *scheduler(
            "speculative/eagle_worker_v2.py:init_lm_head",
            raised="AttributeError: 'LlamaForCausalLM' object has no attribute 'hot_token_id'",
        ),
    ),
    fault(
        "drafter-none",
        "capturing",
        "drafter-mismatch",
        *scheduler(
            "speculative/eagle_draft_cuda_graph_runner.py:capture_one_batch_size",
            raised="AttributeError: 'NoneType' object has no attribute 'shape'",
        ),
    ),
    fault(
        "drafter-matmul",
        "capturing",
        "drafter-mismatch",
        *scheduler(
            "speculative/eagle_worker_v2.py:init_cuda_graphs",
            "models/llama_eagle3.py:forward",
            raised="RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x12288 and 21504x7168)",
        ),
    ),
    fault(
        "target-aux",
        "draft",
        "drafter-mismatch",
        *scheduler(
            "model_executor/model_runner.py:init_aux_hidden_state_capture",
            raised="AttributeError: 'FooForCausalLM' object has no attribute 'set_eagle3_layers_to_capture'",
        ),
    ),
    fault(
        "draft-truncated",
        "draft",
        "drafter-mismatch|weights-incomplete",
        *scheduler(
            *DRAFT,
            raised="safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
        ),
    ),
    fault(
        "quant-mismatch",
        "early",
        "quantization",
        *scheduler(
            "configs/model_config.py:_verify_quantization",
            raised="ValueError: Quantization method specified in the model config (compressed-tensors) does not match the quantization method specified in the `quantization` argument (fp8).",
        ),
    ),
    fault(
        "quant-draft-inherit",
        "draft",
        "quantization",
        *scheduler(
            *DRAFT,
            "layers/quantization/compressed_tensors/compressed_tensors_moe.py:create_weights",
            raised="KeyError: 'model.layers.0.mlp.gate_up_proj.weight_packed'",
        ),
    ),
    fault(
        "quant-unknown",
        "early",
        "quantization",
        *scheduler(
            "model_loader/weight_utils.py:get_quant_config",
            raised="ValueError: Cannot find the config file for awq",
        ),
    ),
    fault(
        "model-type",
        "early",
        "model-type-unknown",
        *bare(
            "ValueError: The checkpoint you are trying to load has model type `kimi_k25` but Transformers does not recognize this architecture. This could be because of an issue with the checkpoint."
        ),
        end="",
    ),
    fault(
        "arch-unsupported",
        "loading",
        "model-type-unknown",
        *scheduler(
            *LOAD,
            raised="ValueError: Model architectures ['Eagle3DeepseekV2ForCausalLM'] are not supported for now. Supported architectures: dict_keys(['LlamaForCausalLM'])",
        ),
    ),
    fault(
        "arch-unsupported-old",
        "loading",
        "model-type-unknown",
        *scheduler(
            *LOAD,
            raised="ValueError: Unsupported architectures: Eagle3DeepseekV2ForCausalLM. Supported list: dict_keys(['LlamaForCausalLM'])",
        ),
    ),
    fault(
        "flag-unknown",
        "start",
        "flag",
        "usage: launch_server.py [-h] --model-path MODEL_PATH [--watchdog-timeout WATCHDOG_TIMEOUT]",
        "                        [--crash-dump-folder CRASH_DUMP_FOLDER]",
        "launch_server.py: error: unrecognized arguments: --enable-mscclpp-magic",
        end="",
    ),
    fault(
        "flag-choice",
        "start",
        "flag",
        "usage: launch_server.py [-h]",
        "launch_server.py: error: argument --attention-backend: invalid choice: 'flashmla2' (choose from 'triton', 'flashinfer', 'fa3')",
        end="",
    ),
    fault(
        "flag-new-cli",
        "start",
        "flag",
        "usage: sglang serve [-h]",
        "sglang serve: error: unrecognized arguments: --speculative-foo 3",
        end="",
    ),
    fault(
        "flag-contradiction",
        "start",
        "flag",
        *bare(
            f'  File "{PATH}/arg_groups/speculative_hook.py", line 380, in check',
            "ValueError: speculative_eagle_topk(4) is not supported with trtllm_mla.",
        ),
        end="",
    ),
    fault(
        "flag-context",
        "early",
        "flag",
        *scheduler(
            "configs/model_config.py:_derive_context_length",
            raised="ValueError: Warning: User-specified context_length (262144) is greater than the derived context_length (131072). This may lead to incorrect model outputs or CUDA errors.",
        ),
    ),
    fault(
        "trust",
        "start",
        "trust-remote-code",
        *bare(
            "ValueError: The repository /models/target contains custom code which must be executed to correctly load the model. You can inspect the repository content at https://hf.co//models/target. Please pass the argument `trust_remote_code=True` to allow custom code to be run."
        ),
        end="",
    ),
    fault(
        "port-http",
        "warming",
        "port-taken",
        "[{DATE}] ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use",
        end="",
    ),
    fault(
        "port-check",
        "start",
        "port-taken",
        *bare(
            "ValueError: port at 30000 is not available in 30 seconds. port is used by a process already. process.name()='python3' process.status()='sleeping' pid=77"
        ),
        end="",
    ),
    fault(
        "port-rendezvous",
        "init",
        "rendezvous-port-taken",
        *scheduler(
            *INIT,
            raised="torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        ),
    ),
    fault(
        "port-nccl-check",
        "start",
        "rendezvous-port-taken",
        *bare(
            "ValueError: nccl_port at 31883 is not available in 30 seconds. nccl_port at 31883 is not available"
        ),
        end="",
    ),
    fault(
        "port-zmq",
        "start",
        "rendezvous-port-taken",
        *scheduler(
            "managers/scheduler.py:init_sockets",
            raised="zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:30001')",
        ),
    ),
    fault(
        "weights-header",
        "loading",
        "weights-incomplete",
        *scheduler(
            *LOAD,
            "model_loader/weight_utils.py:safetensors_weights_iterator",
            raised="safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
        ),
    ),
    fault(
        "weights-lfs",
        "loading",
        "weights-incomplete",
        *scheduler(
            *LOAD,
            raised="safetensors_rust.SafetensorError: Error while deserializing header: header too large",
        ),
    ),
    fault(
        "weights-none",
        "loading",
        "weights-missing",
        *scheduler(*LOAD, raised="RuntimeError: Cannot find any model weights with `/models/target`"),
    ),
    fault(
        "weights-shard",
        "loading",
        "weights-missing|weights-incomplete",
        *scheduler(
            *LOAD,
            raised='FileNotFoundError: No such file or directory: "/models/target/model-00031-of-00064.safetensors"',
        ),
    ),
    fault(
        "weights-key",
        "loading",
        "weights-mismatch",
        *scheduler(
            *LOAD,
            "models/deepseek_v2.py:load_weights",
            raised="KeyError: 'model.layers.3.mlp.experts.w13_weight'",
        ),
    ),
    fault(
        "weights-io",
        "loading",
        "weights-unreadable",
        *scheduler(*LOAD, raised="OSError: [Errno 5] Input/output error"),
    ),
    fault(
        "weights-permission",
        "loading",
        "weights-unreadable",
        *scheduler(
            *LOAD,
            raised="PermissionError: [Errno 13] Permission denied: '/models/target/model-00001-of-00064.safetensors'",
        ),
    ),
    fault(
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
    fault(
        "bus-exit",
        "loading",
        "bus-error",
        "RuntimeError: Rank 2 scheduler died during initialization (exit code: -7). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
        end="",
    ),
    fault(
        "segfault",
        "capturing",
        "segfault",
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f10465bb740 (most recent call first):",
        f'  File "{PATH}/distributed/device_communicators/pynccl.py", line 1254 in all_reduce',
    ),
    fault(
        "killed-9",
        "loading",
        "killed",
        "RuntimeError: Rank 3 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
        end="",
    ),
    fault("killed-shell", "loading", "killed", "Killed", end=""),
    fault("killed-137", "loading", "killed", "kimi-eagle-1 exited with code 137", end=""),
    fault(
        "killed-dmesg",
        "loading",
        "killed-by-kernel",
        "[912.11] Memory cgroup out of memory: Killed process 4242 (sglang::schedul) total-vm:981234kB, anon-rss:1234kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0",
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
        end="",
    ),
    fault(
        "killed-serving",
        "serving",
        "killed",
        "[{DATE}] Subprocess scheduler_0 (pid=501) crashed with exit code -9. Triggering SIGQUIT for cleanup...",
        end=SIGQUIT_NEW,
    ),
    fault(
        "host-memory",
        "loading",
        "host-memory",
        *scheduler(
            *LOAD,
            raised="RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 939524096 bytes. Error code 12 (Cannot allocate memory)",
        ),
    ),
    fault(
        "numactl",
        "init",
        "numa-refused",
        "setting membind: Invalid argument",
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: 1). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
        end="",
    ),
    fault(
        "numactl-eperm",
        "init",
        "numa-refused",
        "set_mempolicy: Operation not permitted",
        "setting membind: Operation not permitted",
        "RuntimeError: Rank 1 scheduler died during initialization (exit code: 1). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
        end="",
    ),
    fault(
        "memlock",
        "init",
        "memlock",
        *scheduler(
            *INIT, raised="RuntimeError: cudaHostRegister failed: operation not permitted (memlock limit)"
        ),
    ),
    fault(
        "files",
        "loading",
        "process-limits",
        *scheduler(
            *LOAD,
            raised="OSError: [Errno 24] Too many open files: '/models/target/model-00040-of-00064.safetensors'",
        ),
    ),
    fault(
        "shm",
        "init",
        "shm-too-small",
        *scheduler(
            *INIT,
            raised="RuntimeError: unable to write to file </torch_321_88_1>: No space left on device (28) /dev/shm",
        ),
    ),
    fault(
        "hub-gated",
        "start",
        "hub-denied",
        *bare(
            "OSError: You are trying to access a gated repo.",
            "Make sure to have access to it at https://huggingface.co/acme/target.",
            "401 Client Error. (Request ID: Root=1-2)",
        ),
        end="",
    ),
    fault(
        "hub-403",
        "start",
        "hub-denied",
        *bare(
            "huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1-2)",
            "",
            "Cannot access gated repo for url https://huggingface.co/acme/target/resolve/main/config.json.",
        ),
        end="",
    ),
    fault(
        "hub-offline",
        "start",
        "hub-offline",
        *bare(
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.",
            "Check your internet connection.",
        ),
        end="",
    ),
    fault(
        "hub-offline-2",
        "start",
        "hub-offline",
        *bare(
            "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache and outgoing traffic has been disabled. To enable hf.co look-ups and downloads online, set 'local_files_only' to False."
        ),
        end="",
    ),
    fault(
        "hub-offline-3",
        "start",
        "hub-offline",
        *bare(
            "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/api/models/acme/target: offline mode is enabled. To disable it, please unset the `HF_HUB_OFFLINE` environment variable."
        ),
        end="",
    ),
    fault(
        "path-missing",
        "start",
        "weights-missing",
        *bare(
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/target'. Use `repo_type` argument if needed."
        ),
        end="",
    ),
    fault(
        "no-config",
        "start",
        "weights-missing",
        *bare(
            "OSError: /models/target does not appear to have a file named config.json. Checkout 'https://huggingface.co//models/target/tree/main' for available files."
        ),
        end="",
    ),
    fault(
        "driver-old",
        "init",
        "cuda-driver",
        *scheduler(
            *INIT,
            raised="RuntimeError: The NVIDIA driver on your system is too old (found version 12080). Please update your GPU driver.",
        ),
    ),
    fault(
        "driver-803",
        "init",
        "cuda-driver",
        *bare(
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 803: system has unsupported display driver / cuda driver combination"
        ),
        end="",
    ),
    fault(
        "no-gpu", "init", "cuda-driver", *scheduler(*INIT, raised="RuntimeError: No CUDA GPUs are available")
    ),
    fault(
        "ordinal",
        "init",
        "cuda-driver",
        *scheduler(*INIT, raised="torch.AcceleratorError: CUDA error: invalid device ordinal"),
    ),
    fault(
        "symbol",
        "start",
        "library-mismatch",
        *bare(
            "ImportError: /usr/local/lib/python3.12/dist-packages/sgl_kernel/sm120/common_ops.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEab"
        ),
        end="",
    ),
    fault(
        "rank-missing",
        "init",
        "rank-missing",
        *scheduler(
            *INIT,
            raised="torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 7/8 clients joined.",
        ),
    ),
    fault(
        "gloo-closed",
        "loading",
        "rank-lost",
        *scheduler(
            *LOAD,
            raised="RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer [10.0.0.2]:9911",
        ),
    ),
    fault(
        "load-barrier",
        "loading",
        "load-barrier",
        *scheduler(
            *LOAD,
            raised="ValueError: TP rank 1 could finish the model loading, but there are other ranks that didn't finish loading. It is likely due to unexpected failures (e.g., OOM) or a slow node.",
        ),
        spread=True,
    ),
    fault(
        "root-then-symptoms",
        "loading",
        "oom-load",
        *scheduler(
            *LOAD,
            raised="RuntimeError: [gloo/transport/tcp/pair.cc:544] Connection closed by peer [10.0.0.2]:9911",
        ),
        *scheduler(*LOAD, raised=OOM),
    ),
    fault(
        "watchdog-old",
        "serving",
        "watchdog",
        "[{DATE} {TAG}] Watchdog timeout (self.watchdog_timeout=300)",
        verdict="hung",
    ),
    fault(
        "watchdog-mid",
        "serving",
        "watchdog",
        "[{DATE} {TAG}] Watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        verdict="hung",
    ),
    fault(
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
    fault(
        "watchdog-detok",
        "serving",
        "watchdog",
        "[{DATE}] DetokenizerManager watchdog timeout (self.watchdog_timeout=300.0, self.soft=False)",
        verdict="hung",
    ),
    fault(
        "warmup",
        "warming",
        "warmup-failed",
        *(
            line.replace(" {TAG}", "")
            for line in scheduler(
                "entrypoints/http_server.py:_execute_server_warmup",
                raised="requests.exceptions.ReadTimeout: HTTPConnectionPool(host='127.0.0.1', port=30000): Read timed out. (read timeout=600)",
                header="Initialization failed. warmup error",
            )
        ),
        end="",
    ),
    fault(
        "detokenizer",
        "serving",
        "unknown",
        "[{DATE}] DetokenizerManager hit an exception: Traceback (most recent call last):",
        f'  File "{PATH}/managers/detokenizer_manager.py", line 560, in run_detokenizer_process',
        "OverflowError: out of range integral type conversion attempted",
        end=SIGQUIT_NEW,
    ),
    fault(
        "assertion",
        "init",
        "assertion",
        *scheduler(*INIT, raised="AssertionError"),
        "Traceback (most recent call last):",
        f'  File "{PATH}/entrypoints/engine.py", line 1277, in _wait_for_scheduler_ready',
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -3). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
    ),
    fault(
        "unknown",
        "capturing",
        "unknown|capture-failed",
        *scheduler("layers/moe/topk.py:forward", raised="RuntimeError: a tensor went missing"),
    ),
    fault(
        "unknown-serving",
        "serving",
        "unknown",
        *scheduler("managers/scheduler.py:event_loop_overlap", raised="IndexError: list index out of range"),
        end=SIGQUIT_NEW,
    ),
    fault(
        "telemetry",
        "loading",
        "telemetry",
        *scheduler(*LOAD, raised="AttributeError: module 'deploy_kit.telemetry.plugin' cannot wrap forward"),
    ),
    fault(
        "tokenizer",
        "start",
        "tokenizer|library-mismatch",
        *bare(
            "ValueError: Couldn't instantiate the backend tokenizer from one of: (1) a `tokenizers` library serialization file"
        ),
        end="",
    ),
    fault(
        "nccl-interface",
        "init",
        "nccl-interface",
        "box:211:409 [0] NCCL WARN Bootstrap : no socket interface found",
        *scheduler(
            *PYNCCL,
            raised="RuntimeError: NCCL error: internal error - please report this issue to the NCCL developers",
        ),
    ),
    fault(
        "gloo-interface",
        "init",
        "nccl-interface",
        *scheduler(
            *INIT,
            raised="RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address for: eth9",
        ),
    ),
    fault(
        "nccl-system-2",
        "init",
        "nccl-system",
        *scheduler(
            *INIT,
            raised="torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error, NCCL version 2.28.9\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        ),
    ),
    fault(
        "occupied",
        "init",
        "gpu-occupied",
        *scheduler(
            *INIT,
            raised="ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=44.12, local_gpu_memory=93.81, local_gpu_memory * 0.9=84.43",
        ),
    ),
    fault(
        "occupied-2",
        "init",
        "gpu-occupied",
        *scheduler(
            *INIT,
            raised="RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.",
        ),
    ),
    fault(
        "oom-serving-prefill",
        "serving",
        "oom-serving",
        *scheduler(
            "managers/scheduler.py:event_loop_normal",
            raised="RuntimeError: Prefill out of memory. Try to lower your batch size.\nTry to allocate 8192 tokens.",
        ),
        end=SIGQUIT_NEW,
    ),
    fault(
        "host-memory-2",
        "loading",
        "host-memory",
        *scheduler(
            *LOAD,
            raised="RuntimeError: unable to mmap 9876543210 bytes from file </models/target/model-00001-of-00064.safetensors>: Cannot allocate memory (12)",
        ),
    ),
    fault(
        "kernel-kill-host",
        "loading",
        "killed-by-kernel",
        "[  912.111] Out of memory: Killed process 771 (python3) total-vm:1kB, anon-rss:1kB",
        end="",
    ),
    fault(
        "jit-failed-2",
        "capturing",
        "jit-failed",
        *scheduler(
            *CAPTURE,
            raised="RuntimeError: Error building extension 'batch_mla': [1/3] nvcc ...\nsubcommand failed",
        ),
    ),
    fault(
        "disk-2",
        "capturing",
        "disk-full",
        *scheduler(*CAPTURE, raised="OSError: [Errno 28] No space left on device"),
    ),
    fault(
        "permission-2",
        "init",
        "permission",
        *scheduler(
            *INIT, raised="PermissionError: [Errno 13] Permission denied: '/tmp/torchinductor_root/cache'"
        ),
    ),
    fault(
        "memlock-2",
        "init",
        "memlock",
        *scheduler(*INIT, raised="RuntimeError: ibv_reg_mr failed: Cannot allocate memory"),
    ),
    fault(
        "threads",
        "loading",
        "process-limits",
        *scheduler(*LOAD, raised="RuntimeError: can't start new thread"),
    ),
    fault(
        "nccl-usage-2",
        "init",
        "nccl-usage",
        *scheduler(
            *PYNCCL,
            raised="RuntimeError: NCCL error: invalid argument (run with NCCL_DEBUG=WARN for details)",
        ),
    ),
    fault(
        "nccl-timeout-2",
        "loading",
        "nccl-timeout",
        *scheduler(
            *LOAD,
            raised="torch.distributed.DistBackendError: NCCL timeout: collective operation timeout in allreduce",
        ),
    ),
    fault(
        "rank-missing-2",
        "init",
        "rank-missing",
        *scheduler(
            *INIT,
            raised="torch.distributed.DistBackendError: [5] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: wait timeout after 600000ms, keys: /default_pg/0//cuda//0",
        ),
    ),
    fault(
        "load-barrier-2",
        "loading",
        "load-barrier",
        *scheduler(
            *LOAD,
            raised="ValueError: TP rank 6 could finish the model loading, but there are other ranks that didn't finish loading. It is likely due to unexpected failures (e.g., OOM) or a slow node.",
        ),
    ),
    fault(
        "ecc-xid",
        "serving",
        "gpu-ecc",
        "[9.1] NVRM: Xid (PCI:0000:41:00): 48, pid=12, An uncorrectable double bit error (DBE) has been detected on GPU",
        *scheduler(
            "managers/scheduler.py:event_loop_overlap",
            raised="torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        ),
        end=SIGQUIT_NEW,
    ),
    fault(
        "symbol-2",
        "start",
        "library-mismatch",
        *bare("ImportError: libcudart.so.13: cannot open shared object file: No such file or directory"),
        end="",
    ),
    fault(
        "no-program",
        "none",
        "library-mismatch",
        "/usr/bin/python3: No module named sglang.launch_server",
        end="",
    ),
    fault(
        "drafter-missing-2",
        "start",
        "drafter-missing|weights-missing",
        *bare(
            "OSError: /models/drafter does not appear to have a file named config.json. Checkout 'https://huggingface.co//models/drafter/tree/main' for available files."
        ),
        end="",
    ),
    fault(
        "trust-2",
        "early",
        "trust-remote-code",
        *scheduler(
            "utils/hf_transformers/tokenizer.py:get_tokenizer",
            raised="RuntimeError: Failed to load the tokenizer. If the tokenizer is a custom tokenizer not yet available in the HuggingFace transformers library, consider setting `trust_remote_code=True` in LLM or using the `--trust-remote-code` flag in the CLI.",
        ),
    ),
    fault(
        "weights-truncated-2",
        "loading",
        "weights-incomplete",
        *scheduler(
            *LOAD,
            raised="RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        ),
    ),
    fault(
        "weights-mismatch-2",
        "loading",
        "weights-mismatch",
        *scheduler(
            *LOAD,
            raised="RuntimeError: The size of tensor a (7168) must match the size of tensor b (4096) at non-singleton dimension 1",
        ),
    ),
    fault(
        "weights-stale",
        "loading",
        "weights-unreadable",
        *scheduler(
            *LOAD,
            raised="OSError: [Errno 116] Stale file handle: '/models/target/model-00009-of-00064.safetensors'",
        ),
    ),
    fault(
        "warmup-2",
        "warming",
        "warmup-failed",
        *(
            line.replace(" {TAG}", "")
            for line in scheduler(
                "entrypoints/http_server.py:_execute_server_warmup",
                raised="AssertionError: res=<Response [500]>, res.text='Internal Server Error'",
                header="Initialization failed. warmup error",
            )
        ),
        end="",
    ),
    fault(
        "telemetry-2",
        "start",
        "telemetry",
        *bare("RuntimeError: deploy_kit_telemetry: this SGLang has no such hook"),
        end="",
    ),
    fault(
        "tokenizer-2",
        "start",
        "tokenizer|library-mismatch",
        *bare("ImportError: tiktoken is required to read this tokenizer: pip install tiktoken"),
        end="",
    ),
    fault(
        "segfault-exit",
        "capturing",
        "segfault",
        "RuntimeError: Rank 2 scheduler died during initialization (exit code: -11). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
        end="",
    ),
    fault(
        "assertion-2",
        "allocating",
        "assertion",
        *scheduler("layers/radix_attention.py:__init__", raised="AssertionError: pools differ"),
    ),
    fault(
        "kernel-resources-2",
        "capturing",
        "kernel-resources",
        *scheduler(
            *CAPTURE,
            raised="triton.runtime.autotuner.OutOfResources: out of resource: shared memory, Required: 262144, Hardware limit: 101376.",
        ),
    ),
)
