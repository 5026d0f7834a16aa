"""More faults of the corpus: other wordings of the same causes, as SGLang 0.5.17 and 0.5.23, PyTorch, NCCL,
FlashInfer, DeepGEMM, the hub client, the shell and the kernel print them."""

# ruff: noqa: E501  (the lines of logs are data, and long)
from __future__ import annotations

from startup_fault import (
    CAPTURE,
    DRAFT,
    INIT,
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

# 0.5.18 and later append this whatever the cause was.
NEW_ADVICE = (
    "\nPossible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
    "2. set --cuda-graph-max-bs-decode to a smaller value (e.g., 16)\n"
    "3. disable decode CUDA graph by --cuda-graph-backend-decode=disabled. (Not recommended. Huge performance loss)\n"
    "Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose \n"
)
PREFILL_ADVICE = (
    "\nFail when using backend: breakable for prefill runner.\nPossible suggestions:\n"
    "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
    "Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose \n"
)
DIED = (
    "RuntimeError: Rank {rank} scheduler died during initialization (exit code: {code}). If exit code is -9 (SIGKILL),"
    " a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check."
)


def died(rank: int, code: int) -> str:
    return DIED.format(rank=rank, code=code)


def crashed(rank: int, code: int) -> str:
    return (
        f"[{{DATE}}] Subprocess scheduler_{rank} (pid={500 + rank}) crashed with exit code {code}."
        " Triggering SIGQUIT for cleanup..."
    )


MEMORY = (
    fault(
        "oom-marlin-repack",
        "loading",
        "oom-load",
        *scheduler(
            *LOAD,
            "layers/quantization/compressed_tensors/schemes/compressed_tensors_wNa16_moe.py:process_weights_after_loading",
            raised="torch.AcceleratorError: CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda for more information.",
        ),
        spread=True,
    ),
    fault(
        "oom-experts-created",
        "loading",
        "oom-load",
        *scheduler(
            *LOAD,
            "models/deepseek_v2.py:__init__",
            "layers/moe/fused_moe_triton/layer.py:__init__",
            raised="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.63 GiB. GPU 0 has a total capacity of 94.97 GiB of which 1.02 GiB is free. Including non-PyTorch memory, this process has 93.93 GiB memory in use.",
        ),
    ),
    fault(
        "oom-mla-pool",
        "loaded",
        "oom-kv",
        *scheduler(
            "model_executor/model_runner.py:init_memory_pool",
            "mem_cache/memory_pool.py:__init__",
            raised=OOM,
        ),
        spread=True,
    ),
    fault(
        "no-kv-room-new",
        "loaded",
        "no-kv-room",
        *scheduler(
            "mem_cache/kv_cache_configurator.py:_profile_available_bytes",
            raised="ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.85. Raise --mem-fraction-static above 0.931 (minimum viable = 1 - available/pre = 0.931). If using speculative decoding, the draft counts too.",
        ),
    ),
    fault(
        "no-running-requests",
        "loaded",
        "no-kv-room",
        *scheduler(
            "managers/tp_worker.py:alloc_memory_pool", raised="AssertionError: max_running_request is zero"
        ),
    ),
    fault(
        "oom-capture-new-advice",
        "capturing",
        "oom-capture",
        *scheduler(
            *CAPTURE, raised="Exception: Capture cuda graph failed: " + OOM.partition(": ")[2] + NEW_ADVICE
        ),
        spread=True,
    ),
    fault(
        "oom-capture-prefill",
        "capturing",
        "oom-capture",
        *scheduler(
            "model_executor/model_runner.py:init_device_graphs",
            "model_executor/runner/prefill_cuda_graph_runner.py:capture",
            raised="Exception: Capture prefill CUDA graph failed: CUDA error: out of memory" + PREFILL_ADVICE,
        ),
    ),
    fault(
        "oom-capture-nccl",
        "capturing",
        "oom-capture",
        "box:211:409 [0] enqueue.cc:1423 NCCL WARN Cuda failure 2 'out of memory'",
        *scheduler(
            *CAPTURE,
            raised="Exception: Capture cuda graph failed: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
            + NEW_ADVICE,
        ),
    ),
)
KERNELS = (
    fault(
        "rmsnorm-no-image",
        "capturing",
        "kernel-arch",
        *scheduler(
            *CAPTURE,
            "layers/layernorm.py:forward_cuda",
            raised="RuntimeError: RMSNorm failed with error code no kernel image is available for execution on the device",
        ),
    ),
    fault(
        "fusion-gate",
        "warming",
        "kernel-arch",
        *scheduler(
            "layers/flashinfer_comm_fusion.py:_resolve_backend",
            raised="ValueError: FlashInfer allreduce fusion requires SM90 or SM10X NVIDIA GPUs.",
        ),
    ),
    fault(
        "cutlass-capability",
        "capturing",
        "kernel-arch",
        *scheduler(
            *CAPTURE,
            "layers/quantization/fp8_kernel.py:cutlass_scaled_mm",
            raised="Exception: Capture cuda graph failed: No implemented fp8_scaled_mm for current compute capability: 120"
            + NEW_ADVICE,
        ),
    ),
    fault(
        "deepgemm-arch",
        "capturing",
        "kernel-arch",
        *scheduler(
            *CAPTURE,
            raised="Exception: Capture cuda graph failed: Assertion error (csrc/apis/../jit_kernels/impls/../heuristics/../../utils/layout.hpp:16): Unknown SF transformation"
            + NEW_ADVICE,
        ),
    ),
    fault(
        "fa3-arch",
        "loaded",
        "kernel-arch|flag",
        *scheduler(
            "layers/attention/attention_registry.py:create_flashattention_v3_backend",
            raised="AssertionError: FlashAttention v3 Backend requires SM>=80 and SM<=90. Please use `--attention-backend flashinfer`.",
        ),
    ),
    fault(
        "triton-ptx",
        "capturing",
        "kernel-arch|jit-failed",
        *scheduler(
            *CAPTURE,
            raised="RuntimeError: Internal Triton PTX codegen error: ptxas fatal   : Value 'sm_120a' is not defined for option 'gpu-name'",
        ),
    ),
    fault(
        "topk-none",
        "capturing",
        "kernel-arch",
        *scheduler(
            *CAPTURE,
            raised="Exception: Capture cuda graph failed: Error in function 'run_moe': No valid tactic for this GPU, arch sm_120 is not supported"
            + NEW_ADVICE,
        ),
    ),
)
NCCL = (
    fault(
        "tree-torch",
        "init",
        "nccl-no-algorithm",
        *scheduler(
            *INIT,
            raised="torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.30.7\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nError : no algorithm/protocol available for function Broadcast with datatype ncclInt8. NCCL_ALGO was set to Tree.",
        ),
        spread=True,
    ),
    fault(
        "system-connect",
        "init",
        "nccl-system",
        "box:211:409 [4] misc/socket.cc:522 NCCL WARN socketStartConnect: Connect to 172.17.0.4<36291> failed : Software caused connection abort",
        *scheduler(
            *PYNCCL,
            raised="RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        ),
    ),
    fault(
        "p2p-capture-buffers",
        "capturing",
        "nccl-p2p",
        *scheduler(
            *CAPTURE,
            "distributed/device_communicators/custom_all_reduce.py:register_graph_buffers",
            raised="Exception: Capture cuda graph failed: invalid argument" + NEW_ADVICE,
        ),
    ),
    fault(
        "p2p-check",
        "init",
        "nccl-p2p",
        *scheduler(
            *INIT,
            "distributed/device_communicators/custom_all_reduce_utils.py:gpu_p2p_access_check",
            raised="RuntimeError: Error happened when batch testing peer-to-peer access from (0, 0, 1) to (1, 2, 0):\nTraceback",
        ),
    ),
    fault(
        "p2p-cumem",
        "init",
        "nccl-p2p",
        "box:1:2 [3] transport/p2p.cc:263 NCCL WARN Cuda failure 801 'operation not supported' while mapping cuMem P2P buffer",
        *scheduler(
            *PYNCCL,
            raised="RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        ),
        spread=True,
    ),
    fault(
        "ipc-handle",
        "init",
        "nccl-p2p",
        *scheduler(
            *INIT,
            "distributed/device_communicators/cuda_wrapper.py:CUDART_CHECK",
            raised="RuntimeError: CUDART error: cudaIpcGetMemHandle: invalid argument",
        ),
    ),
    fault(
        "timeout-broadcast",
        "loading",
        "nccl-timeout",
        "[rank5]:[E302 10:44:12.100000001 ProcessGroupNCCL.cpp:683] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=BROADCAST, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.",
        "[rank5]:[E302 10:44:12.200000001 ProcessGroupNCCL.cpp:2241] [PG ID 2 PG GUID 3 Rank 5]  failure detected by watchdog at work sequence id: 4 PG status: last enqueued work: 4, last completed work: 3",
        "[rank5]:[E302 10:44:12.300000001 ProcessGroupNCCL.cpp:730] [Rank 5] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
        "[rank5]:[E302 10:44:12.300000002 ProcessGroupNCCL.cpp:744] [Rank 5] To avoid data inconsistency, we are taking the entire process down.",
        died(5, -6),
        end="",
    ),
    fault(
        "timeout-allgather",
        "serving",
        "nccl-timeout",
        "[rank2]:[E302 10:44:12.100000001 ProcessGroupNCCL.cpp:683] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9911, OpType=_ALLGATHER_BASE, NumelIn=28672, NumelOut=229376, Timeout(ms)=600000) ran for 600002 milliseconds before timing out.",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "  what():  [PG ID 2 PG GUID 3 Rank 2] Process group watchdog thread terminated with exception: [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9911, OpType=_ALLGATHER_BASE) ran for 600002 milliseconds before timing out.",
        crashed(2, -6),
        end=SIGQUIT_NEW,
    ),
    fault(
        "hang-init",
        "init",
        "nccl-init-hang",
        "[Gloo] Rank 0 is connected to 7 peer ranks. Expected number of connected peer ranks is : 7",
        "--- seconds since last write: 420",
        end="",
        verdict="hung",
    ),
    fault(
        "hang-capture",
        "capturing",
        "stalled",
        "--- seconds since last write: 1000",
        end="",
        verdict="hung",
    ),
)
DRAFTERS = (
    fault(
        "drafter-no-folder",
        "early",
        "drafter-missing",
        *scheduler(
            *DRAFT[:1],
            raised="OSError: /models/drafter is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'\nIf this is a private repository, make sure to pass a token having permission to this repo.",
        ),
    ),
    fault(
        "drafter-no-weights",
        "draft",
        "drafter-missing",
        *scheduler(*DRAFT, raised="RuntimeError: Cannot find any model weights with `/models/drafter`"),
    ),
    fault(
        "drafter-midlayer",
        "draft",
        "drafter-mismatch",
        *scheduler(
            *DRAFT, "models/qwen3.py:load_weights", raised="KeyError: 'midlayer.self_attn.qkv_proj.weight'"
        ),
        spread=True,
    ),
    fault(
        "drafter-tensor-a",
        "capturing",
        "drafter-mismatch",
        *scheduler(
            "speculative/eagle_worker_v2.py:forward",
            "models/llama_eagle3.py:forward",
            raised="RuntimeError: The size of tensor a (7168) must match the size of tensor b (4096) at non-singleton dimension 1",
        ),
    ),
    fault(
        "drafter-vocabulary",
        "draft",
        "drafter-mismatch",
        *scheduler(
            *DRAFT,
            "layers/vocab_parallel_embedding.py:weight_loader",
            raised="AssertionError: self.org_vocab_size=163840 self.use_presharded_weights=False loaded_weight.shape[output_dim]=32000",
        ),
    ),
    fault(
        "drafter-bare-assertion",
        "draft",
        "drafter-mismatch",
        *scheduler(*DRAFT, "layers/linear.py:weight_loader", raised="AssertionError"),
    ),
    fault(
        "drafter-aux-layers",
        "capturing",
        "drafter-mismatch",
        *scheduler(
            "speculative/eagle_worker_v2.py:draft_extend",
            "models/llama_eagle3.py:forward",
            raised="RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x14336 and 21504x7168)",
        ),
    ),
)
QUANTIZATION = (
    fault(
        "quant-no-target",
        "draft",
        "quantization",
        *scheduler(
            *DRAFT,
            "layers/quantization/compressed_tensors/utils.py:find_matched_target",
            raised="ValueError: Unable to find matching target for model.layers.0.mlp.gate_up_proj in the compressed-tensors config.",
        ),
    ),
    fault(
        "quant-invalid-method",
        "early",
        "quantization",
        *scheduler(
            "configs/model_config.py:_verify_quantization",
            "layers/quantization/__init__.py:get_quantization_config",
            raised="ValueError: Invalid quantization method: int4. Available methods: ['fp8', 'awq', 'gptq', 'compressed-tensors']",
        ),
    ),
    fault(
        "quant-keys",
        "loading",
        "quantization",
        *scheduler(
            "layers/quantization/base_config.py:get_from_keys",
            raised="ValueError: Cannot find any of ['w_bit', 'bits'] in the model's quantization config.",
        ),
    ),
    fault(
        "quant-schemes",
        "draft",
        "quantization",
        *scheduler(
            *DRAFT,
            "layers/quantization/compressed_tensors/utils.py:should_ignore_layer",
            raised="ValueError: Found a different quantization schemes for ['q_proj', 'k_proj'] in model.layers.0.self_attn.qkv_proj. SGLang requires all to use the same scheme.",
        ),
    ),
    fault(
        "quant-marlin-group",
        "draft",
        "quantization",
        *scheduler(
            *DRAFT,
            "layers/quantization/compressed_tensors/schemes/compressed_tensors_wNa16.py:__init__",
            raised="ValueError: Marlin kernels require group quantization or channelwise quantization, but found no group size and strategy is not channelwise.",
        ),
    ),
)
FLAGS = (
    fault(
        "flag-ambiguous",
        "none",
        "flag",
        "usage: launch_server.py [-h] --model-path MODEL_PATH",
        "launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill",
        end="",
    ),
    fault(
        "flag-int",
        "none",
        "flag",
        "usage: launch_server.py [-h]",
        "launch_server.py: error: argument --tensor-parallel-size/--tp-size: invalid int value: 'eight'",
        end="",
    ),
    fault(
        "flag-required",
        "none",
        "flag",
        "usage: launch_server.py [-h]",
        "launch_server.py: error: the following arguments are required: --model-path/--model",
        end="",
    ),
    fault(
        "flag-topk",
        "loaded",
        "flag",
        *scheduler(
            "layers/attention/flashmla_backend.py:__init__",
            raised="ValueError: Currently FlashMLA only supports topk=1 for speculative decoding",
        ),
    ),
    fault(
        "flag-divisible",
        "loading",
        "flag",
        *scheduler(
            "models/deepseek_v2.py:__init__",
            "distributed/utils.py:ensure_divisibility",
            raised="AssertionError: 64 is not divisible by 6",
        ),
    ),
    fault(
        "flag-world-size",
        "init",
        "flag",
        *scheduler(
            *INIT,
            raised="RuntimeError: world_size (8) is not equal to tensor_model_parallel_size (4) x pipeline_model_parallel_size (1)",
        ),
    ),
    fault(
        "flag-memory-eagle",
        "start",
        "flag",
        *bare(
            f'  File "{PATH}/arg_groups/kv_cache_hook.py", line 400, in handle_unified_memory_pool',
            "AssertionError: --enable-unified-memory + EAGLE/EAGLE3 does not support --enable-hierarchical-cache: HiCache keeps the draft on a private pool",
        ),
        end="",
    ),
)
PORTS = (
    fault(
        "port-all-addresses",
        "warming",
        "port-taken",
        "[{DATE}] ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): [errno 98] address already in use",
        end="",
    ),
    fault(
        "port-bootstrap",
        "start",
        "port-taken",
        *bare(
            "RuntimeError: engine_info_bootstrap_port 6789 is already in use. When running multiple instances on the same node, each instance must use a different --engine-info-bootstrap-port."
        ),
        end="",
    ),
    fault(
        "port-gloo-store",
        "init",
        "rendezvous-port-taken",
        *scheduler(
            *INIT,
            raised="RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:29733 (errno: 98 - Address already in use).",
        ),
    ),
)
WEIGHTS = (
    fault(
        "weights-config-json",
        "start",
        "weights-incomplete",
        *bare(
            "OSError: It looks like the config file at '/models/target/config.json' is not a valid JSON file.",
        ),
        end="",
    ),
    fault(
        "weights-index-json",
        "loading",
        "weights-incomplete",
        *scheduler(
            *LOAD,
            "model_loader/weight_utils.py:filter_duplicate_safetensors_files",
            raised="json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        ),
    ),
    fault(
        "weights-header-invalid",
        "loading",
        "weights-incomplete",
        *scheduler(
            *LOAD,
            raised="safetensors_rust.SafetensorError: Error while deserializing header: invalid header deserialization",
        ),
        spread=True,
    ),
    fault(
        "weights-mmap-length",
        "loading",
        "weights-incomplete",
        *scheduler(
            *LOAD,
            "model_loader/weight_utils.py:safetensors_weights_iterator",
            raised="safetensors_rust.SafetensorError: device offset 4831838208 + 268435456 is out of range for the file: file not fully covered",
        ),
    ),
)
HUB = (
    fault(
        "hub-retries",
        "start",
        "hub-offline",
        *bare(
            "requests.exceptions.ConnectionError: (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api/models/acme/target (Caused by NameResolutionError(\\\"Failed to resolve 'huggingface.co'\\\"))\"), '(Request ID: 1-2)')"
        ),
        end="",
    ),
    fault(
        "hub-resolution",
        "start",
        "hub-offline",
        *bare("httpx.ConnectError: [Errno -3] Temporary failure in name resolution"),
        end="",
    ),
    fault(
        "hub-repository",
        "start",
        "hub-denied",
        *bare(
            "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1-2)",
            "",
            "Repository Not Found for url: https://huggingface.co/api/models/acme/target.",
            "Please make sure you specified the correct `repo_id` and `repo_type`.",
        ),
        end="",
    ),
)
LIMITS = (
    fault(
        "numactl-raised",
        "init",
        "numa-refused",
        *bare(
            "RuntimeError: numactl could not apply NUMA binding for node 1 (e.g. set_mempolicy/sched_setaffinity blocked by seccomp, or cpuset rejects the policy): set_mempolicy: Operation not permitted; skipping NUMA binding for GPU 4."
        ),
        end="",
    ),
    fault(
        "numactl-node",
        "init",
        "numa-refused",
        "libnuma: Warning: node argument 1 is out of range",
        "<1> is invalid",
        died(4, 1),
        end="",
    ),
    fault(
        "numactl-affinity",
        "init",
        "numa-refused",
        "sched_setaffinity: Invalid argument",
        died(0, 1),
        end="",
    ),
    fault(
        "shm-torch",
        "loading",
        "shm-too-small",
        *scheduler(
            *LOAD,
            raised="RuntimeError: unable to allocate shared memory(shm) for file </torch_321_1234_7>: Resource temporarily unavailable (11)",
        ),
    ),
    fault(
        "shm-psm",
        "init",
        "shm-too-small",
        *scheduler(
            *INIT,
            "distributed/device_communicators/shm_broadcast.py:__init__",
            raised="OSError: [Errno 28] No space left on device: '/psm_1a2b3c4d'",
        ),
    ),
    fault(
        "shm-nccl-attach",
        "init",
        "shm-too-small",
        "box:55:99 [2] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-Yc1hTt to 33030532 bytes, error: No space left on device (28)",
        *scheduler(
            *INIT,
            raised="torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.30.7\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\nLast error:\nError: failed to extend /dev/shm/nccl-Yc1hTt to 33030532 bytes, error: No space left on device (28)",
        ),
    ),
    fault(
        "memlock-register",
        "loading",
        "memlock",
        *scheduler(
            *LOAD, raised="RuntimeError: cudaHostRegister(34359738368 bytes) failed: operation not permitted"
        ),
    ),
)
KILLED = (
    fault(
        "killed-shell-line",
        "loading",
        "killed",
        "/usr/local/bin/entrypoint.sh: line 3:    12 Killed                  python3 -m sglang.launch_server --model-path /models/target",
        end="",
    ),
    fault(
        "killed-dmesg-constraint",
        "loading",
        "killed-by-kernel",
        "[ 912.100] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=ab,mems_allowed=0-1,oom_memcg=/docker/ab,task_memcg=/docker/ab,task=sglang::schedul,pid=4242,uid=0",
        "[ 912.111] Memory cgroup out of memory: Killed process 4242 (sglang::schedul) total-vm:981234kB, anon-rss:1234kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0",
        died(2, -9),
        end="",
    ),
    fault(
        "killed-terminated-with",
        "serving",
        "killed",
        "[{DATE}] Scheduler or DataParallelController 4242 terminated with -9",
        end="",
    ),
    fault(
        "killed-then-symptoms",
        "loading",
        "killed",
        *scheduler(
            *LOAD,
            raised="RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Read error [127.0.0.1]:4711: Connection reset by peer",
        ),
        died(3, -9),
        end="",
    ),
)
GPUS = (
    fault(
        "bus-without-xid",
        "serving",
        "gpu-lost",
        "[84011.227351] NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.",
        "[84011.227399] NVRM: GPU 0000:c1:00.0: GPU serial number is 0.",
        crashed(6, -6),
        end=SIGQUIT_NEW,
    ),
    fault(
        "xid-then-launch-failure",
        "serving",
        "gpu-lost",
        "[84011.2] NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        *scheduler(
            "managers/scheduler.py:event_loop_overlap",
            raised="torch.AcceleratorError: CUDA error: unspecified launch failure",
        ),
        end=SIGQUIT_NEW,
    ),
    fault(
        "gsp-timeout",
        "serving",
        "gpu-lost",
        "[84011.2] NVRM: Xid (PCI:0000:41:00): 119, pid=4242, name=sglang::schedul, Timeout after 45s of waiting for RPC response from GPU2 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20800a70 0x0).",
        *scheduler(
            "managers/scheduler.py:event_loop_overlap",
            raised="torch.AcceleratorError: CUDA error: unknown error",
        ),
        end=SIGQUIT_NEW,
    ),
    fault(
        "nvml-lost",
        "init",
        "gpu-lost",
        *scheduler(*INIT, raised="pynvml.NVMLError_GpuIsLost: GPU is lost"),
    ),
)
RANKS = (
    fault(
        "others-wait-recv",
        "loading",
        "rank-lost",
        *scheduler(
            *LOAD,
            raised="torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
        ),
        spread=True,
    ),
    fault(
        "others-wait-gloo",
        "capturing",
        "rank-lost",
        *scheduler(
            *CAPTURE,
            raised="Exception: Capture cuda graph failed: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [172.17.0.2]:21307"
            + NEW_ADVICE,
        ),
    ),
    fault(
        "segfault-and-symptoms",
        "capturing",
        "segfault",
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f10465bb740 (most recent call first):",
        f'  File "{PATH}/layers/moe/fused_moe_triton/fused_moe.py", line 12 in invoke',
        "",
        *scheduler(
            *CAPTURE,
            raised="Exception: Capture cuda graph failed: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:2011"
            + NEW_ADVICE,
        ),
        died(1, -11),
        end="",
    ),
    fault(
        "unknown-rust",
        "serving",
        "unknown",
        *scheduler(
            "managers/scheduler.py:event_loop_overlap",
            "managers/scheduler.py:process_batch_result",
            raised="pyo3_runtime.PanicException: called `Option::unwrap()` on a `None` value",
        ),
        end=SIGQUIT_NEW,
    ),
    fault("unknown-code", "loading", "unknown", died(0, 1), end=""),
    fault(
        "address-not-ours",
        "warming",
        "flag",
        "[{DATE}] ERROR:    [Errno 99] error while attempting to bind on address ('10.9.9.9', 30000): cannot assign requested address",
        end="",
    ),
)
FAULTS: tuple[Fault, ...] = (
    *MEMORY,
    *KERNELS,
    *NCCL,
    *DRAFTERS,
    *QUANTIZATION,
    *FLAGS,
    *PORTS,
    *WEIGHTS,
    *HUB,
    *LIMITS,
    *KILLED,
    *GPUS,
    *RANKS,
)
