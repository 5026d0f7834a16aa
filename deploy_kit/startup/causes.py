"""Why an engine ended: one table of causes, and the rules that find them in an exception's text and place.

The first rule that fits wins, so special texts stand before the general ones that contain them. `{name}` in
the explanation is filled from the pattern's named groups.
"""

# ruff: noqa: E501  (patterns and their explanations read better unbroken)
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from deploy_kit.exit_codes import ExitCode


@dataclass(frozen=True)
class Cause:
    """One class of ends: a stable id (metric label), what to do about it, our exit code.

    `secondary`: a symptom in a rank or in the parent of something that failed elsewhere; used only when
    nothing better was seen.
    """

    id: str
    remedy: str
    exit_code: ExitCode
    secondary: bool = False


def _table(*causes: Cause) -> dict[str, Cause]:
    return {cause.id: cause for cause in causes}


CAUSES = _table(
    Cause(
        "oom-load",
        "the checkpoint is too big for these cards: more ranks, a smaller checkpoint, or end what else uses the"
        " GPU (nvidia-smi); lowering mem-fraction-static does not help while weights load",
        ExitCode.ENGINE_OOM,
    ),
    Cause(
        "gpu-occupied",
        "another process holds memory on some of the GPUs: nvidia-smi names it; end it, then start again",
        ExitCode.ENGINE_OOM,
    ),
    Cause(
        "no-kv-room",
        "raise --mem-fraction-static, or smaller weights, or more ranks; a shorter context does not make room",
        ExitCode.ENGINE_OOM,
    ),
    Cause(
        "oom-kv",
        "lower --mem-fraction-static or --max-total-tokens a little, and look for another process on the GPU"
        " (nvidia-smi)",
        ExitCode.ENGINE_OOM,
    ),
    Cause(
        "oom-capture",
        "lower --mem-fraction-static, or capture fewer batch sizes (--cuda-graph-max-bs)",
        ExitCode.ENGINE_OOM,
    ),
    Cause(
        "oom-serving",
        "lower --mem-fraction-static, --chunked-prefill-size or --max-running-requests",
        ExitCode.ENGINE_OOM,
    ),
    Cause(
        "host-memory",
        "give the container more memory, or load with fewer threads / without pinned copies; free -h and"
        " docker stats show what is used",
        ExitCode.ENGINE_KILLED,
    ),
    Cause(
        "killed-by-kernel",
        "host or container memory ran out: dmesg -T | grep -i oom names the victim; raise the container's"
        " memory limit, or add RAM or swap for the load",
        ExitCode.ENGINE_KILLED,
    ),
    Cause(
        "killed",
        "find who sent SIGKILL: dmesg -T | grep -i oom, docker inspect (OOMKilled), or an operator",
        ExitCode.ENGINE_KILLED,
    ),
    Cause(
        "kernel-arch",
        "this library has no kernel for the GPU's architecture: switch that backend (attention, MoE, all-reduce"
        " fusion) off or to another, or use a build that has it",
        ExitCode.ENGINE_KERNEL,
    ),
    Cause(
        "kernel-resources",
        "the kernel's tile needs more shared memory than this GPU has (SM120: 99 KiB a block): choose another"
        " backend, or a tuned configuration with smaller blocks or fewer stages",
        ExitCode.ENGINE_KERNEL,
    ),
    Cause(
        "jit-toolchain",
        "kernels are compiled at run time and the compiler is not usable: use the image with the CUDA toolkit"
        " (nvcc, ninja, CUDA_HOME), or ship the compiled cache",
        ExitCode.ENGINE_KERNEL,
    ),
    Cause(
        "jit-failed",
        "a kernel did not compile: the compiler's first error line says why; use another backend or matching"
        " versions",
        ExitCode.ENGINE_KERNEL,
    ),
    Cause(
        "disk-full",
        "free space where the file was to be written (kernel caches: ~/.cache, /tmp), or mount a larger volume"
        " there",
        ExitCode.ENGINE_LIMITS,
    ),
    Cause(
        "permission",
        "let the engine's user read and write that path (owner, mode, read-only mount)",
        ExitCode.ENGINE_LIMITS,
    ),
    Cause(
        "shm-too-small",
        "give the container more shared memory (shm_size, or ipc: host); df -h /dev/shm shows it",
        ExitCode.ENGINE_LIMITS,
    ),
    Cause(
        "memlock",
        "raise the memlock limit (ulimits: memlock: -1) so that memory can be pinned",
        ExitCode.ENGINE_LIMITS,
    ),
    Cause(
        "process-limits",
        "raise the limit that was hit (ulimit -n for files, pids limit for threads)",
        ExitCode.ENGINE_LIMITS,
    ),
    Cause(
        "numa-refused",
        "give the container CAP_SYS_NICE or a seccomp profile that allows set_mempolicy, include the node in its"
        " cpuset (--cpuset-mems), or turn NUMA binding off (SGLANG_NUMA_BIND_V2=0), or use a version with"
        " sglang#28401",
        ExitCode.ENGINE_LIMITS,
    ),
    Cause(
        "nccl-no-algorithm",
        "take NCCL_ALGO / NCCL_PROTO out of the plan: the forced algorithm does not exist for this collective",
        ExitCode.ENGINE_NCCL_SETTING,
    ),
    Cause(
        "nccl-usage",
        "two ranks were given the same GPU, or ranks disagree: check CUDA_VISIBLE_DEVICES, --base-gpu-id and"
        " --tp-size",
        ExitCode.ENGINE_NCCL_SETTING,
    ),
    Cause(
        "nccl-interface",
        "name a network interface that exists in the container (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME; lo for one"
        " machine), or take the setting out",
        ExitCode.ENGINE_NCCL_SETTING,
    ),
    Cause(
        "nccl-p2p",
        "GPU peer access fails: run the host doctor (ACS, IOMMU, P2P grant); NCCL_P2P_DISABLE=1 serves for the"
        " time being",
        ExitCode.ENGINE_NCCL,
    ),
    Cause(
        "nccl-system",
        "run once with NCCL_DEBUG=INFO: the line before the error names the system call (shared memory, network"
        " interface, memlock); then run the host doctor",
        ExitCode.ENGINE_NCCL,
    ),
    Cause(
        "nccl-cuda",
        "run once with NCCL_DEBUG=INFO: the CUDA error before it is the cause; then run the host doctor (P2P,"
        " Xid, free memory)",
        ExitCode.ENGINE_NCCL,
    ),
    Cause(
        "nccl-internal", "run once with NCCL_DEBUG=INFO and look at the first WARN line", ExitCode.ENGINE_NCCL
    ),
    Cause(
        "nccl-timeout",
        "one rank did not join the collective: find the rank that is behind (its last lines), run the host"
        " doctor; NCCL_P2P_DISABLE=1 tells a P2P fault apart",
        ExitCode.ENGINE_NCCL,
    ),
    Cause(
        "nccl-init-hang",
        "run the host doctor: P2P grant against real transfer, ACS, IOMMU; try NCCL_P2P_DISABLE=1 to tell them"
        " apart, and NCCL_DEBUG=INFO",
        ExitCode.ENGINE_HUNG,
    ),
    Cause(
        "rank-missing",
        "a rank never came to the rendezvous: find its own first error above, or why it was not started"
        " (GPU count, CUDA_VISIBLE_DEVICES)",
        ExitCode.ENGINE_RANK_LOST,
    ),
    Cause(
        "rank-lost",
        "another rank ended first: its own first error is the cause; look in its lines, and in dmesg for Xid and"
        " the OOM killer",
        ExitCode.ENGINE_RANK_LOST,
        secondary=True,
    ),
    Cause(
        "load-barrier",
        "faster or warmer storage (copy the weights to local NVMe, prefetch them into the page cache);"
        " --dist-timeout does not govern this barrier",
        ExitCode.ENGINE_RANK_LOST,
    ),
    Cause(
        "gpu-lost",
        "the GPU is gone until it is reset: dmesg -T | grep -i xid; power-cycle or reset the GPU, check power,"
        " riser and temperature",
        ExitCode.ENGINE_GPU_LOST,
    ),
    Cause(
        "gpu-ecc",
        "uncorrectable memory error: nvidia-smi -q -d ECC,ROW_REMAPPER; reset the GPU, replace it when it comes"
        " back",
        ExitCode.ENGINE_GPU_LOST,
    ),
    Cause(
        "cuda-fault",
        "a kernel touched memory that is not its own: run once with CUDA_LAUNCH_BLOCKING=1 to name it, try another"
        " attention or MoE backend, look for Xid 13/31 in dmesg",
        ExitCode.ENGINE_DIED,
    ),
    Cause(
        "cuda-driver",
        "update the host's driver, or use the stack built for an older CUDA; nvidia-smi inside the container must"
        " show the GPUs",
        ExitCode.ENGINE_DRIVER,
    ),
    Cause(
        "library-mismatch",
        "the image's libraries do not fit each other: use a locked stack unchanged, or reinstall the named library",
        ExitCode.ENGINE_DRIVER,
    ),
    Cause(
        "drafter-missing",
        "give the drafter's folder (--speculative-draft-model-path) and mount it; deploy-kit drafter check FOLDER",
        ExitCode.ENGINE_DRAFTER,
    ),
    Cause(
        "drafter-mismatch",
        "this drafter does not fit the target: deploy-kit drafter check FOLDER names what differs; use a drafter"
        " trained for this target",
        ExitCode.ENGINE_DRAFTER,
    ),
    Cause(
        "quantization",
        "the drafter (or model) is read with a quantization that is not its own: set"
        " --speculative-draft-model-quantization unquant, or remove --quantization",
        ExitCode.ENGINE_DRAFTER,
    ),
    Cause(
        "model-type-unknown",
        "an image whose SGLang and transformers know this model type (MLA EAGLE-3 support for such a drafter),"
        " or another drafter",
        ExitCode.ENGINE_DRAFTER,
    ),
    Cause(
        "flag",
        "the flag is unknown, was removed, or contradicts another: deploy-kit serve --check PROFILE lists every"
        " flag against the installed SGLang",
        ExitCode.ENGINE_FLAG,
    ),
    Cause("trust-remote-code", "add --trust-remote-code to the plan", ExitCode.ENGINE_FLAG),
    Cause(
        "port-taken",
        "another process listens on that port: ss -ltnp; stop it, or choose another port",
        ExitCode.ENGINE_PORT_TAKEN,
    ),
    Cause(
        "rendezvous-port-taken",
        "an internal port was taken between choosing and binding: start once more; when it comes back, fix"
        " --nccl-port / --dist-init-addr or stop the other process",
        ExitCode.ENGINE_PORT_TAKEN,
    ),
    Cause(
        "weights-missing",
        "mount the folder that has the weights and give its path inside the container",
        ExitCode.ENGINE_WEIGHTS,
    ),
    Cause(
        "weights-incomplete",
        "finish the download (compare sizes and checksums with the index; a file of a few hundred bytes is a"
        " Git-LFS pointer)",
        ExitCode.ENGINE_WEIGHTS,
    ),
    Cause(
        "weights-mismatch",
        "the checkpoint's tensors do not fit its config.json or this SGLang's model class: check that config and"
        " weights are of one release",
        ExitCode.ENGINE_WEIGHTS,
    ),
    Cause(
        "weights-unreadable",
        "let the engine's user read the model's folder; dmesg and the storage's own log for I/O errors",
        ExitCode.ENGINE_WEIGHTS,
    ),
    Cause(
        "bus-error",
        "a file is shorter than its mapping, or its storage failed under it: check the weights' sizes and dmesg"
        " for I/O errors; df -h /dev/shm (raise shm_size when it is full)",
        ExitCode.ENGINE_WEIGHTS,
    ),
    Cause(
        "hub-offline",
        "mount the weights and pass their local path, or download them first; the name is no folder here",
        ExitCode.ENGINE_HUB,
    ),
    Cause(
        "hub-denied",
        "accept the model's licence and give a token that may read it (HF_TOKEN), or mount a local copy",
        ExitCode.ENGINE_HUB,
    ),
    Cause(
        "capture-failed",
        "graph capture failed, and not for memory: the inner error is the cause; leave out the lever changed last",
        ExitCode.ENGINE_CAPTURE,
    ),
    Cause(
        "watchdog",
        "a batch made no progress: look at what the GPUs did (py-spy dump, nvidia-smi), run the host doctor;"
        " raise --watchdog-timeout only when the batch was truly that long",
        ExitCode.ENGINE_HUNG,
    ),
    Cause(
        "warmup-failed",
        "the server came up, but its own first request failed or timed out: the scheduler's lines above say why;"
        " a long first compilation needs a longer time-out",
        ExitCode.ENGINE_DIED,
        secondary=True,
    ),
    Cause(
        "telemetry",
        "start without the telemetry plug-in (SGLANG_PLUGINS) and report the versions",
        ExitCode.ENGINE_TELEMETRY,
    ),
    Cause(
        "tokenizer",
        "the tokenizer's files are missing or need a package that the image lacks",
        ExitCode.ENGINE_WEIGHTS,
    ),
    Cause(
        "segfault", "a native library crashed: the frames of the current thread name it", ExitCode.ENGINE_DIED
    ),
    Cause(
        "detokenizer-died",
        "the detokenizer ended and took the server with it: its own traceback above is the cause",
        ExitCode.ENGINE_DIED,
        secondary=True,
    ),
    Cause("assertion", "the frame named in the evidence says what was expected", ExitCode.ENGINE_DIED),
    Cause("unknown", "read the last lines of each rank in the post-mortem file", ExitCode.ENGINE_DIED),
    Cause("stalled", "nothing observable advances; see what was checked", ExitCode.ENGINE_HUNG),
    Cause("stopped", "nothing: it was stopped as asked", ExitCode.OK),
)


@dataclass(frozen=True)
class Finding:
    """A cause found: which, in words, and the numbers of the text."""

    id: str
    text: str
    facts: dict[str, int | float | str | bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where an exception came from: frames as "file:function" lines, the phase, and what is known beside it."""

    frames: str = ""
    phase: str = "starting"
    drafting: bool = False
    ready: bool = False
    speculative: bool = False
    draft_path: str | None = None
    rank: int | None = None
    percent: float | None = None
    header: str = ""


@dataclass(frozen=True)
class _Rule:
    cause: str | Callable[[Place, re.Match[str]], str]
    pattern: re.Pattern[str]
    text: str
    where: re.Pattern[str] | None = None


def _rule(
    cause: str | Callable[[Place, re.Match[str]], str], pattern: str, text: str, *, where: str | None = None
) -> _Rule:
    return _Rule(
        cause,
        re.compile(pattern, re.IGNORECASE | re.DOTALL),
        text,
        None if where is None else re.compile(where, re.IGNORECASE),
    )


_DRAFT_FRAMES = re.compile(r"eagle|draft|speculative|/spec_|mtp|nextn", re.IGNORECASE)
_CAPTURE_FRAMES = re.compile(r"cuda_graph|:capture\b|graph_runner|capture_", re.IGNORECASE)
_KV_FRAMES = re.compile(
    r"memory_pool|kv_cache_config|:init_memory_pool|pool_configurator|token_to_kv|kv_pool|_create_buffers|alloc_kv",
    re.IGNORECASE,
)
_LOAD_FRAMES = re.compile(
    r"load_model|weight_loader|weight_utils|model_loader|load_weights|create_weights|initialize_model"
    r"|process_weights_after_loading",
    re.IGNORECASE,
)
_SERVE_FRAMES = re.compile(r"event_loop|run_batch|process_batch", re.IGNORECASE)


def _oom(place: Place, match: re.Match[str]) -> str:
    if _CAPTURE_FRAMES.search(place.frames) or "capture" in match.string[:200].lower():
        return "oom-capture"
    if _SERVE_FRAMES.search(place.frames) or place.ready:
        return "oom-serving"
    if _KV_FRAMES.search(place.frames):
        return "oom-kv"
    if _LOAD_FRAMES.search(place.frames):
        return "oom-load"
    return {
        "loading": "oom-load",
        "allocating": "oom-kv",
        "capturing": "oom-capture",
        "starting": "oom-load",
    }.get(place.phase, "oom-serving")


def _is_draft(place: Place, match: re.Match[str]) -> bool:
    return bool(
        place.drafting or _DRAFT_FRAMES.search(place.frames) or _DRAFT_FRAMES.search(match.string[:300])
    )


def _draft_or(other: str) -> Callable[[Place, re.Match[str]], str]:
    def choose(place: Place, match: re.Match[str]) -> str:
        return "drafter-mismatch" if _is_draft(place, match) else other

    return choose


def _missing(place: Place, match: re.Match[str]) -> str:
    path = (_named(match).get("path") or _given_name(match.string)).rstrip("/.")
    draft = (place.draft_path or "").rstrip("/")
    if draft and path and (path.startswith(draft) or draft.endswith(path)):
        return "drafter-missing"
    if path.endswith((".safetensors", ".bin")):
        return "weights-incomplete"
    return "drafter-missing" if _is_draft(place, match) else "weights-missing"


def _hub_or_path(place: Place, match: re.Match[str]) -> str:
    path = _given_name(match.string)
    if path.startswith(("/", ".", "~")):
        return _missing(place, match)
    if place.draft_path and path and path == place.draft_path:
        return "drafter-missing"
    return "hub-offline"


def _no_space(place: Place, match: re.Match[str]) -> str:
    shared = re.search(r"/dev/shm|shm_open|posix_fallocate|psm_|shared memory", match.string)  # noqa: S108
    return "shm-too-small" if shared and not place.ready else "disk-full"


def _refused(place: Place, match: re.Match[str]) -> str:
    path = match.groupdict().get("path") or ""
    cached = re.search(
        r"cache|/tmp|triton|flashinfer|torchinductor|tvm|jit", path + place.frames[-600:], re.IGNORECASE
    )
    return "permission" if cached else "weights-unreadable"


def _named_port(_place: Place, match: re.Match[str]) -> str:
    internal = re.match(r"nccl|dist|detok|sched|metrics|zmq", match["name"])
    return "rendezvous-port-taken" if internal else "port-taken"


def _rendezvous(place: Place, match: re.Match[str]) -> str:
    http = re.search(r"http_server|uvicorn|launch_server", place.frames) and "DistNetwork" not in match.string
    return "port-taken" if http else "rendezvous-port-taken"


_RULES: tuple[_Rule, ...] = (
    _rule("telemetry", r"deploy_kit[._]telemetry", "the telemetry plug-in failed: {first}"),
    # Kernels, before memory: "out of resource: shared memory" is no lack of GPU memory.
    _rule(
        "kernel-resources",
        r"out of resources?:? ?(?:shared memory)?.*?Required: (?P<required_bytes>\d+).*?limit: (?P<limit_bytes>\d+)",
        "a Triton kernel needs {required_bytes} bytes of shared memory, the GPU has {limit_bytes}",
    ),
    _rule(
        "kernel-arch",
        r"No supported CUDA architectures found for major versions (?P<majors>\[[\d, ]+\])",
        "a FlashInfer module supports only compute capability majors {majors}, not this GPU's (12 on SM120):"
        " all-reduce fusion or MoE path",
    ),
    _rule(
        "kernel-arch",
        r"no kernel image is available for execution",
        "no kernel image for this GPU's architecture in a loaded library (built for other SM versions)",
    ),
    _rule(
        "kernel-arch",
        r"Unsupported gpu architecture|Value 'sm_\w+' is not defined for option|is not a recognized processor"
        r"|not compatible with the current PyTorch installation|invalid device function|named symbol not found",
        "the toolchain or library does not know this GPU's architecture: {first}",
    ),
    _rule(
        "jit-toolchain",
        r"(?:nvcc|ninja|c\+\+|g\+\+|gcc|cicc|ptxas)['\"]?:? (?:command )?not found"
        r"|Could not find nvcc|No such file or directory:? ['\"]?\S*(?:nvcc|ninja|ptxas|/bin/gcc|/bin/g\+\+|c\+\+)\b"
        r"|CUDA_HOME environment variable is not set|Ninja is required to load|Failed to find C compiler"
        r"|cuda_runtime\w*\.h: No such file|(?:nv\w+|cublas\w*|curand\w*|cuda\w*|Python)\.h:? No such file"
        r"|Please specify via CC environment|cannot find -lcuda\b|Unable to find (?:nvcc|CUDA toolkit)"
        r"|nvcc .{0,80}(?:is too old|version.{0,20}required)|CUDA compiler .{0,40}not found|find_cuda_home"
        r"|CUDA (?:toolkit|installation) (?:was )?not found",
        "a kernel must be compiled here and the compiler is missing: {first}",
    ),
    _rule(
        _no_space,
        r"No space left on device(?:: ['\"]?(?P<path>[^'\"\n]+))?",
        "no space left on the device while writing {path}",
    ),
    _rule(
        "jit-failed",
        r"Error building extension|ninja: build stopped|Command .{0,40}ninja.{0,200}returned non-zero"
        r"|nvcc .{0,4000}returned non-zero|CompilationError|PTXASError|ptxas (?:fatal|error)|Internal Triton"
        r"|PassManager::run failed|NVCC (?:compilation )?(?:failed|error)|nvcc fatal|LoweringException|JIT compilation failed"
        r"|DSLRuntimeError|failed to compile|compile error",
        "a kernel did not compile: {first}",
    ),
    _rule(
        "kernel-arch",
        r"(?:only sm_?\d+|Unknown SF transformation|(?:is |are )?only (?:supported|available|works?|implemented) (?:on|for|with) (?:\w+ ){0,3}"
        r"(?:hopper|blackwell|sm_?\d+|sm\d|b200|h100|h200|compute|cuda compute|gpus? with)"
        r"|requires? (?:\w+ ){0,4}(?:sm ?[<>=]|sm_?\d+|compute capability|hopper|blackwell)"
        r"|(?:sm_?\d+|compute capability \S+|architecture|device capability \S+|gpu arch\w*) (?:\w+ ){0,3}(?:is |are )?not (?:yet )?supported"
        r"|unsupported (?:\w+ ){0,2}(?:compute capability|gpu|arch\w*|sm\b|device capability)"
        r"|not supported (?:on|for|by) (?:\w+ ){0,4}(?:sm_?\d+|compute capability|this gpu|this device|gpu arch\w*|architecture|blackwell)"
        r"|does not support (?:sm_?\d+|compute capability|this gpu|architecture)"
        r"|no (?:available|valid|suitable|supported|compiled) (?:\w+ ){0,2}(?:kernel|cubin|tactic|algorithm for this)"
        r"|no (?:kernel|cubin) (?:\w+ ){0,3}(?:for|found)|Could not load any common_ops library"
        r"|cutlass.{0,40}(?:not supported|Error Internal|failed to (?:initialize|run)))",
        "no kernel for this GPU in the chosen backend: {first}",
    ),
    # GPUs and driver.
    _rule(
        "gpu-ecc",
        r"uncorrectable (?:ECC|NVLink)|ECC error",
        "the GPU reports an uncorrectable ECC error",
    ),
    _rule(
        "gpu-lost",
        r"fallen off the bus|GPU is lost|device .{0,20}is lost|GPU requires reset|NVML_ERROR_GPU_IS_LOST"
        r"|Unable to determine the device handle",
        "a GPU fell off the bus: {first}",
    ),
    _rule(
        "cuda-driver",
        r"driver version is insufficient|driver on your system is too old|system has unsupported display driver"
        r"|forward compatibility was attempted|system not yet initialized|no CUDA-capable device|No CUDA GPUs are"
        r"|Found no NVIDIA driver|invalid device ordinal|devices? is/are busy or unavailable"
        r"|Torch not compiled with CUDA|driver/library version mismatch|CUDA unknown error|NVMLError|NVML: "
        r"|libcuda\.so\S*: cannot open|provided PTX was compiled with an unsupported toolchain",
        "the driver or the GPUs are not usable in this container: {first}",
    ),
    _rule(
        "cuda-fault",
        r"illegal memory access|device-side assert|unspecified launch failure|misaligned address"
        r"|illegal instruction was encountered|invalid program counter|CUBLAS_STATUS_EXECUTION_FAILED"
        r"|CUDNN_STATUS_EXECUTION_FAILED|an invalid configuration argument|invalid argument.{0,60}cudaLaunch",
        "a GPU kernel failed: {first}",
    ),
    # Collectives.
    _rule(
        "nccl-no-algorithm",
        r"no algorithm/?(?:and )?protocol|no algorithm.{0,20}available|NCCL_ALGO was set to",
        "NCCL has no algorithm for this collective under the forced settings: {first}",
    ),
    _rule(
        "shm-too-small",
        r"(?:shared memory segment|/dev/shm/|shm_open|posix_fallocate|shmget|insufficient shared memory"
        r"|unable to (?:open|write|allocate) shared memory|shared memory object|torch_shm_manager).{0,400}",
        "shared memory (/dev/shm) is too small or not usable: {first}",
        where=None,
    ),
    _rule(
        "memlock",
        r"ibv_(?:reg_mr|create_cq|create_qp)\S*.{0,80}(?:Cannot allocate|memory)|cudaHostRegister.{0,80}(?:fail|error|not permitted)"
        r"|mlock(?:all)?\b.{0,60}(?:fail|Cannot|not permitted)|RLIMIT_MEMLOCK|max locked memory|pin(?:ned)? memory.{0,60}(?:fail|not permitted|Cannot)",
        "memory could not be locked (memlock limit): {first}",
    ),
    _rule(
        "nccl-interface",
        r"no socket interface found|Unable to find address for|ifa != nullptr|Unable to (?:find|resolve) .{0,40}interface",
        "no usable network interface for the ranks' sockets: {first}",
    ),
    _rule(
        "rank-missing",
        r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier",
        "rank(s) {ranks} did not come to the barrier in time",
    ),
    _rule(
        "nccl-usage",
        r"Duplicate GPU detected|ncclInvalidUsage|NCCL error: invalid usage|ncclInvalidArgument|NCCL error: invalid argument",
        "NCCL was called wrongly: {first}",
    ),
    _rule(
        "nccl-p2p",
        r"peer access is not supported|peer mapping|P2P|cudaIpc\w+|cuIpc\w+|ncclP2p|(?:open|map)\w* (?:ipc|peer) (?:mem|handle)"
        r"|invalid resource handle|NVLS|cuMulticast|peer-to-peer",
        "peer-to-peer or IPC between GPUs failed: {first}",
        where=None,
    ),
    _rule(
        _oom,
        r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
        r"|Cuda failure (?:\d+ )?'out of memory'|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED"
        r"|CUDNN_STATUS_ALLOC_FAILED|CUDA driver error: out of memory|cuMemCreate.{0,60}out of memory"
        r"|Failed to allocate .{0,60}(?:GPU|device|CUDA) memory|(?:Prefill|Decode) out of memory",
        "CUDA out of memory {where}",
    ),
    _rule(
        "gpu-occupied",
        r"memory capacity is unbalanced",
        "the GPUs' free memory is unbalanced: another process holds memory on some of them",
    ),
    _rule(
        "no-kv-room",
        r"Not enough (?:GPU )?memory\b|Memory pool size is too small|leaves no room for the full KV"
        r"|max_total_num_tokens.{0,40}(?:<= ?0|negative|too small)|mem-fraction-static.{0,60}(?:increase|larger|raise)"
        r"|No available memory for the cache|KV cache.{0,40}too small",
        "no room for the KV pool after the weights",
    ),
    _rule(
        "nccl-timeout",
        r"Watchdog caught collective operation timeout|collective operation timeout|WorkNCCL\(.{0,300}timing out"
        r"|Timeout at NCCL work|NCCL .{0,40}timed? ?out|ncclCommInitRank.{0,60}timeout",
        "a collective timed out: {first}",
    ),
    _rule(
        "rank-missing",
        r"Timed out after (?P<timeout_s>\d+) seconds waiting for clients\.? ?(?P<joined>\d+)/(?P<expected>\d+)",
        "only {joined} of {expected} ranks came to the rendezvous within {timeout_s} s",
    ),
    _rule(
        "rank-missing",
        r"wait timeout after \d+ ?ms|DistStoreError|rendezvous.{0,60}(?:timed? ?out|closed)|timeout.{0,40}store"
        r"|failed to connect to .{0,80}(?:rendezvous|tcpstore|store)|client socket has timed out",
        "a rank did not come to the rendezvous in time: {first}",
    ),
    _rule(
        "load-barrier",
        r"TP rank (?P<rank>\d+) could finish the model loading",
        "the weight-load barrier expired: rank {rank} was done{elsewhere}, other ranks were still loading (slow or"
        " uneven storage), unless a rank shows its own error first",
    ),
    _rule(
        "rank-lost",
        r"remote process exited|ncclRemoteError|Connection (?:closed|reset) by (?:peer|remote)|Broken pipe"
        r"|gloo.{0,200}(?:EnforceNotMet|Timed out|closed)|Socket closed|monitoredBarrier|recvValue failed"
        r"|failed to recv, got 0 bytes|EOFError|Connection refused",
        "another rank or process ended first: {first}",
        where=None,
    ),
    _rule(
        "nccl-system",
        r"NCCL error.{0,40}unhandled system error|ncclSystemError",
        "NCCL: unhandled system error",
    ),
    _rule(
        "nccl-cuda",
        r"NCCL error.{0,40}unhandled cuda error|ncclUnhandledCudaError",
        "NCCL: unhandled CUDA error: {first}",
    ),
    _rule("nccl-internal", r"NCCL error|ncclInternalError|DistBackendError", "NCCL failed: {first}"),
    _rule(
        _rendezvous,
        r"(?:port: (?P<port>\d+).{0,200})?(?:Address already in use|EADDRINUSE|errno: 98|\[Errno 98\])",
        "a port is in use: {port_text}",
    ),
    _rule(
        _named_port,
        r"(?P<name>\w+) at (?P<port>\d+) is not available in \d+ seconds",
        "{name} {port} is in use by another process",
    ),
    _rule(
        "port-taken", r"Port (?:is )?already in use|port .{0,30}(?:in use|taken)", "a port is in use: {first}"
    ),
    # The hub and paths.
    _rule(
        "trust-remote-code",
        r"trust[_-]remote[_-]code|contains custom code|requires you to execute the \w+ file",
        "the model's folder has its own code and may not run it without trust_remote_code",
    ),
    _rule(
        "hub-denied",
        r"GatedRepo|gated repo|Access to model (?P<repo>\S+) is restricted|(?:401|403) (?:Client Error|Unauthorized|Forbidden)"
        r"|Invalid (?:username or password|user token|credentials)|is restricted and you are not"
        r"|not in the authorized list|awaiting a review|RepositoryNotFoundError|Repository Not Found"
        r"|Please log in|token .{0,40}(?:invalid|expired)",
        "the hub refuses this model: no token, a token without access, or the name is wrong ({first})",
    ),
    _rule(
        _hub_or_path,
        r"it looks like (?P<path>\S+) is not the path to a directory|(?P<path2>\S+) is not a local folder and is not a valid"
        r"|LocalEntryNotFound|OfflineModeIsEnabled|offline mode is enabled|couldn'?t connect to '?https?://\S*hugging"
        r"|(?:resolve|connect|reach)\S* .{0,60}huggingface\.co|huggingface\.co.{0,200}(?:Max retries|timed out|resolve)"
        r"|Max retries exceeded.{0,200}hugging|outgoing traffic has been disabled|cannot find the requested files in the"
        r"|Temporary failure in name resolution|Name or service not known|Network is unreachable",
        "the hub is unreachable and {path} is neither a local directory nor cached",
    ),
    _rule(
        _missing,
        r"Repo id must (?:be in the form|use alphanumeric).{0,80}?'(?P<path>[^']+)'|Incorrect path_or_model_id: '(?P<path2>[^']+)'"
        r"|(?P<path3>\S+) does not appear to have a file named config\.json|Unrecognized model in (?P<path4>\S+?)\.? Should have"
        r"|Cannot find any model weights with `(?P<path5>[^`]+)`|No model weights found in: `(?P<path6>[^`]+)`"
        r"|Can't load (?:the )?(?:config\w*|model|tokenizer) (?:of|for) '(?P<path7>[^']+)'"
        r"|Model path '?(?P<path8>[^' ]+)'? does not exist",
        "nothing usable at {path}: the path is not mounted, or the folder has no config.json or no weights",
    ),
    _rule(
        "model-type-unknown",
        r"model type `?'?(?P<model_type>[\w.-]+)`?'? but Transformers does not recognize"
        r"|Unrecognized configuration class|Model architectures? (?P<architectures>\[[^\]]*\]|\S+) (?:is|are) not supported"
        r"|Unsupported architectures?|has no SGLang implementation|no SGLang implementation",
        "{who} model type {model_type} is unknown to this image (its transformers or SGLang is too old for it, or"
        " has no class for it)",
    ),
    # Weights.
    _rule(
        "quantization",
        r"does not match the quantization|Unknown quantization method|quantization method .{0,60}not supported"
        r"|Cannot find the config file for|quant_config|quantization_config|compressed.tensors|inherit.{0,40}quantiz"
        r"|quantiz.{0,40}inherit|weight quantization block|qweight|weight_packed|weight_scale",
        "a quantization that does not belong to this checkpoint was applied: {first}",
        where=None,
    ),
    _rule(
        lambda place, match: "drafter-mismatch" if _is_draft(place, match) else "weights-incomplete",
        r"SafetensorError|deserializing header|HeaderToo\w+|InvalidHeader\w*|MetadataIncompleteBuffer|incomplete metadata"
        r"|invalid load key|PytorchStreamReader|file not fully covered|unexpected end of file|not a valid (?:safetensors|zip)"
        r"|checksum mismatch|corrupt|truncated",
        "a weights file is incomplete or corrupt: {first}",
    ),
    _rule(
        "weights-unreadable",
        r"Input/output error|Stale file handle|Transport endpoint is not connected|Remote I/O error|\[Errno (?:5|107|116|121)\]",
        "the storage under the weights failed: {first}",
    ),
    _rule(
        _refused,
        r"Permission denied:? ?'?(?P<path>[^'\n]*)",
        "permission denied: {path}",
    ),
    _rule(
        "process-limits",
        r"Too many open files|can't start new thread|Resource temporarily unavailable|pthread_create failed",
        "a limit on processes or files was hit: {first}",
    ),
    _rule(
        "host-memory",
        r"can't allocate memory|Cannot allocate memory|^MemoryError|std::bad_alloc|unable to mmap|Unable to allocate \S+ \w+ for an array",
        "host memory could not be allocated: {first}",
    ),
    _rule(
        "tokenizer",
        r"instantiate the backend tokenizer|tiktoken|sentencepiece|tokenizer\.(?:json|model)\b|SentencePiece",
        "the tokenizer could not be made: {first}",
    ),
    _rule(
        _missing,
        r"No such file or directory:? ?'?(?P<path>[^'\n]*(?:safetensors|\.bin|\.json|/models?/)[^'\n]*)"
        r"|FileNotFoundError.{0,40}'(?P<path2>[^']+)'",
        "a file of the model is missing: {path}",
    ),
    _rule(
        "drafter-mismatch",
        r"set_embed(?:_and_head)?\b|hot_token_id|set_eagle3_layers|layers_to_capture|get_embed_and_head|draft_vocab_size"
        r"|(?:d2t|t2d)\b|eagle_config|fc\.weight|draft model.{0,60}(?:not|mismatch|match)|EAGLE3? .{0,60}(?:not support|mismatch)",
        "the drafter does not fit the target or this SGLang: {first}",
    ),
    _rule(
        _draft_or("weights-mismatch"),
        r"size mismatch|shapes? mismatch|mismatch(?:ed)? (?:in )?(?:shape|size)|Attempted to load weight|exceeds dimension size"
        r"|must match the (?:existing size|size of tensor)|shapes cannot be multiplied|loaded_weight|The size of tensor \S+ \(\d+\)"
        r"|(?:missing|unexpected) keys?|not found in (?:params_dict|checkpoint|the checkpoint)|were not (?:found|initialized)"
        r"|copying a param with shape|Error\(s\) in loading state_dict",
        "tensors do not fit{draft}: {first}",
    ),
    _rule(
        "drafter-mismatch",
        r"NoneType|has no attribute|^KeyError|^IndexError|^AssertionError|^AttributeError|^TypeError",
        "the drafter's weights or class do not fit: {first}",
        where=r"eagle|draft|nextn|_mtp",
    ),
    _rule(
        "weights-mismatch",
        r"^KeyError: '?(?:model|language_model|lm_head|layers)\.|^KeyError: '\S*weight\S*'",
        "a tensor of the checkpoint has no place in this model class: {first}",
    ),
    _rule(
        "library-mismatch",
        r"undefined symbol|cannot open shared object file|^ImportError|ModuleNotFoundError|cannot import name"
        r"|version `\w+_[\d.]+' not found|binary incompatibility|_ARRAY_API not found|is installed with version .{0,60}less than"
        r"|GLIBC\w*_[\d.]+|incompatible (?:version|library)|has no attribute 'sgl_kernel|'_OpNamespace'",
        "libraries of the image do not fit each other: {first}",
    ),
    _rule(
        "flag",
        r"unrecognized arguments?: (?P<flag>[^\n]+)|argument (?P<flag2>\S+): (?:invalid|expected|not allowed)[^\n]*"
        r"|ambiguous option: (?P<flag3>[^\n]+)|the following arguments are required: (?P<flag4>[^\n]+)",
        "SGLang does not take this flag: {first}",
    ),
    _rule(
        "flag",
        r"User-specified context_length|is greater than the derived context|must be divisible by|is not divisible by"
        r"|(?:is|are) (?:not|only) (?:compatible|supported|allowed) (?:with|when|together)|cannot be (?:used|enabled|set) (?:with|together|when|at)"
        r"|incompatible with|mutually exclusive|must be (?:set|specified|greater|positive|less|one of|between|equal)|should be (?:set|greater|less)"
        r"|has been (?:removed|renamed|deprecated and removed)|no longer supported|Unknown (?:attention|sampling|moe|backend)|Invalid (?:attention|backend|value|choice)"
        r"|requires? --|(?:--[\w-]+) (?:requires|must|cannot|is not)",
        "a flag contradicts another or the model: {first}",
    ),
    _rule(
        "flag",
        r".",
        "the arguments were refused: {first}",
        where=r"server_args\.py:\S+\s*\Z|arg_groups/\S+\s*\Z|server_args\.py:(?:__post_init__|check_\w+|resolve\w*|_handle\w+|from_cli\w*)",
    ),
    _rule(
        "capture-failed",
        r"Capture .{0,30}failed|during (?:graph )?capture|when stream is capturing|stream capture|cudaStreamCapture"
        r"|CUDAGraph|cudaErrorStreamCapture",
        "graph capture failed, not for memory: {first}",
    ),
    _rule(
        "capture-failed", r".", "graph capture failed, not for memory: {first}", where=_CAPTURE_FRAMES.pattern
    ),
)

_NCCL_ONLY = {"nccl-p2p", "nccl-usage"}
_ADVICE = re.compile(r"\n?(?:Possible (?:solutions|suggestions):|Fail when using backend:).*", re.DOTALL)
_WRAPPER = re.compile(r"^(?:\w+: )?Capture [\w -]*?(?:CUDA|cuda|CPU)? ?(?:graph|CG [\w ]+)? ?failed: ")
_NEVER_ALONE = re.compile(
    r"Rank \d+ scheduler died|Initialization failed\. Please see the error messages above|SystemExit|KeyboardInterrupt"
    r"|^(?:\w+\.)*EOFError\Z"
)
_WHERE = {
    "oom-load": "while loading weights",
    "oom-kv": "while the KV pool was allocated",
    "oom-capture": "at CUDA graph capture",
    "oom-serving": "while serving",
}


def classify(text: str, place: Place) -> Finding | None:
    """Given an exception's text ("Type: message") and its place, return the cause; None when no rule fits.

    The advice that SGLang appends to a failed capture is not read: it says memory whatever the cause.
    """
    text = without_advice(text)[:8_000]
    if _NEVER_ALONE.search(text):
        return None
    for rule in _RULES:
        if rule.where is not None and not rule.where.search(place.frames):
            continue
        match = rule.pattern.search(text)
        if match is None:
            continue
        cause = rule.cause if isinstance(rule.cause, str) else rule.cause(place, match)
        if (
            cause == "nccl-p2p"
            and _WRAPPER.match(text) is None
            and not re.search(
                r"nccl|ipc|peer|custom_all_reduce|p2p|cuMulticast|NVLS", text + place.frames, re.IGNORECASE
            )
        ):
            continue
        return Finding(cause, _words(rule.text, cause, match, text, place), _facts(match, text))
    return None


def without_advice(text: str) -> str:
    """Return an exception's text without the advice that SGLang appends to a failed capture."""
    return _ADVICE.sub("", text).strip()


def _words(template: str, cause: str, match: re.Match[str], text: str, place: Place) -> str:
    groups = _named(match)
    first = _WRAPPER.sub("", text.strip()).split("\n")[0][:300]
    port = groups.get("port")
    unknown = groups.get("architectures") or "(not named)"
    values = {
        "first": first,
        "where": _WHERE.get(cause, "")
        + (f" (at {place.percent:.0f} %)" if cause == "oom-load" and place.percent is not None else ""),
        "path": groups.get("path") or _given_name(text),
        "draft": ", the drafter's" if cause == "drafter-mismatch" else "",
        "elsewhere": "" if place.percent is None else f" while the load stood at {place.percent:.0f} %",
        "who": "the draft config's"
        if place.drafting or place.speculative
        else "the config's (target or draft)",
        "port_text": (
            f"internal rendezvous port {port} in use (not the HTTP port)"
            if cause == "rendezvous-port-taken" and port
            else first
        ),
        "model_type": groups.get("model_type") or unknown,
    }
    words = template.format_map(_Words({**{k: str(v) for k, v in groups.items() if v is not None}, **values}))
    return f"at graph capture {words}" if _WRAPPER.match(text) and "captur" not in words else words


_GIVEN_NAME = re.compile(
    r"looks like (\S+) is not the path|huggingface\.co/(?:api/models/)?([\w.-]+/[\w.-]+)"
)


def _given_name(text: str) -> str:
    match = _GIVEN_NAME.search(text)
    return "the given name" if match is None else next(group for group in match.groups() if group)


class _Words(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return f"({key} not named)"


def _named(match: re.Match[str]) -> dict[str, str]:
    """Named groups, with path2, flag3, … under the name without the number."""
    return {
        name.rstrip("0123456789"): value for name, value in match.groupdict().items() if value is not None
    }


_OOM = re.compile(
    r"Tried to allocate (?P<tried>[\d.]+ \w+)\. GPU (?P<gpu>\d+) has a total capac\w+ of (?P<total>[\d.]+ \w+)"
    r" of which (?P<free>[\d.]+ \w+) is free"
)


def _facts(match: re.Match[str], text: str) -> dict[str, int | float | str | bool]:
    facts: dict[str, int | float | str | bool] = {
        name: int(value) if value.isdigit() else value
        for name, value in _named(match).items()
        if name != "name"
    }
    oom = _OOM.search(text)
    if oom is not None:
        facts |= {
            "gpu": int(oom["gpu"]),
            "tried": oom["tried"],
            "gpu_total": oom["total"],
            "gpu_free": oom["free"],
        }
    port = re.search(r"port: (\d+)", text)
    if port is not None:
        facts["port"] = int(port.group(1))
    return facts
