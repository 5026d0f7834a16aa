"""Rules: collectives between ranks, memory, ports. The first that fits wins."""

# ruff: noqa: E501  (patterns and their explanations read better unbroken)
from __future__ import annotations

from deploy_kit.startup.rule import Rule, rule
from deploy_kit.startup.rule_choice import named_port, out_of_memory, rendezvous

RULES: tuple[Rule, ...] = (
    # Collectives.
    rule(
        "nccl-no-algorithm",
        r"no algorithm/?(?:and )?protocol|no algorithm.{0,20}available|NCCL_ALGO was set to",
        "NCCL has no algorithm for this collective under the forced settings: {first}",
    ),
    rule(
        "shm-too-small",
        r"(?:shared memory segment|/dev/shm/|shm_open|posix_fallocate|shmget|insufficient shared memory"
        r"|unable to (?:open|write|allocate) shared memory|shared memory object|torch_shm_manager).{0,400}",
        "shared memory (/dev/shm) is too small or not usable: {first}",
        where=None,
    ),
    rule(
        "memlock",
        r"ibv_(?:reg_mr|create_cq|create_qp)\S*.{0,80}(?:Cannot allocate|memory)|cudaHostRegister.{0,80}(?:fail|error|not permitted)"
        r"|mlock(?:all)?\b.{0,60}(?:fail|Cannot|not permitted)|RLIMIT_MEMLOCK|max locked memory|pin(?:ned)? memory.{0,60}(?:fail|not permitted|Cannot)",
        "memory could not be locked (memlock limit): {first}",
    ),
    rule(
        "nccl-interface",
        r"no socket interface found|Unable to find address for|ifa != nullptr|Unable to (?:find|resolve) .{0,40}interface",
        "no usable network interface for the ranks' sockets: {first}",
    ),
    rule(
        "rank-missing",
        r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier",
        "rank(s) {ranks} did not come to the barrier in time",
    ),
    rule(
        "nccl-usage",
        r"Duplicate GPU detected|ncclInvalidUsage|NCCL error: invalid usage|ncclInvalidArgument|NCCL error: invalid argument",
        "NCCL was called wrongly: {first}",
    ),
    rule(
        "nccl-p2p",
        r"invalid argument|invalid device|not supported|CUDART error|Cuda failure",
        "custom all-reduce could not share buffers between the GPUs (peer access or IPC): {first}",
        where=r"custom_all_reduce\w*\.py:(?!__init__)|register_graph_buffers",
    ),
    rule(
        "nccl-p2p",
        r"peer access is not supported|peer mapping|P2P|cudaIpc\w+|cuIpc\w+|ncclP2p|(?:open|map)\w* (?:ipc|peer) (?:mem|handle)"
        r"|invalid resource handle|NVLS|cuMulticast|peer-to-peer",
        "peer-to-peer or IPC between GPUs failed: {first}",
        where=None,
    ),
    rule(
        out_of_memory,
        r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
        r"|Cuda failure (?:\d+ )?'out of memory'|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED"
        r"|CUDNN_STATUS_ALLOC_FAILED|CUDA driver error: out of memory|cuMemCreate.{0,60}out of memory"
        r"|Failed to allocate .{0,60}(?:GPU|device|CUDA) memory|(?:Prefill|Decode) out of memory",
        "CUDA out of memory {where}",
    ),
    rule(
        "gpu-occupied",
        r"memory capacity is unbalanced",
        "the GPUs' free memory is unbalanced: another process holds memory on some of them",
    ),
    rule(
        "no-kv-room",
        r"Not enough (?:GPU )?memory\b|max_running_requests? is zero|Memory pool size is too small|leaves no room for the full KV"
        r"|max_total_num_tokens.{0,40}(?:<= ?0|negative|too small)|mem-fraction-static.{0,60}(?:increase|larger|raise)"
        r"|No available memory for the cache|KV cache.{0,40}too small",
        "no room for the KV pool after the weights",
    ),
    rule(
        "nccl-timeout",
        r"Watchdog caught collective operation timeout|collective operation timeout|WorkNCCL\(.{0,300}timing out"
        r"|Timeout at NCCL work|NCCL .{0,40}timed? ?out|ncclCommInitRank.{0,60}timeout",
        "a collective timed out: {first}",
    ),
    rule(
        "rank-missing",
        r"Timed out after (?P<timeout_s>\d+) seconds waiting for clients\.? ?(?P<joined>\d+)/(?P<expected>\d+)",
        "only {joined} of {expected} ranks came to the rendezvous within {timeout_s} s",
    ),
    rule(
        "rank-missing",
        r"wait timeout after \d+ ?ms|DistStoreError|rendezvous.{0,60}(?:timed? ?out|closed)|timeout.{0,40}store"
        r"|failed to connect to .{0,80}(?:rendezvous|tcpstore|store)|client socket has timed out",
        "a rank did not come to the rendezvous in time: {first}",
    ),
    rule(
        "load-barrier",
        r"TP rank (?P<rank>\d+) could finish the model loading",
        "the weight-load barrier expired: rank {rank} was done{elsewhere}, other ranks were still loading (slow or"
        " uneven storage), unless a rank shows its own error first",
    ),
    rule(
        "rank-lost",
        r"remote process exited|ncclRemoteError|Connection (?:closed|reset) by (?:peer|remote)|Broken pipe"
        r"|gloo.{0,200}(?:EnforceNotMet|Timed out|closed)|Socket closed|monitoredBarrier|recvValue failed"
        r"|failed to recv, got 0 bytes|EOFError|Connection refused",
        "another rank or process ended first: {first}",
        where=None,
    ),
    rule(
        "nccl-system",
        r"NCCL error.{0,40}unhandled system error|ncclSystemError",
        "NCCL: unhandled system error",
    ),
    rule(
        "nccl-cuda",
        r"NCCL error.{0,40}unhandled cuda error|ncclUnhandledCudaError",
        "NCCL: unhandled CUDA error: {first}",
    ),
    rule("nccl-internal", r"NCCL error|ncclInternalError|DistBackendError", "NCCL failed: {first}"),
    rule(
        rendezvous,
        r"(?:port: (?P<port>\d+).{0,200})?(?:Address already in use|EADDRINUSE|errno: 98|\[Errno 98\])",
        "a port is in use: {port_text}",
    ),
    rule(
        named_port,
        r"(?P<name>\w+) at (?P<port>\d+) is not available in \d+ seconds",
        "{name} {port} is in use by another process",
    ),
    rule(
        "port-taken", r"Port (?:is )?already in use|port .{0,30}(?:in use|taken)", "a port is in use: {first}"
    ),
)
