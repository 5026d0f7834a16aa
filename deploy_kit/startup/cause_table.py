"""The causes of an end: id, remedy, exit code. Data only; docs/exit-codes.md lists the codes."""

# ruff: noqa: E501  (texts and patterns read better unbroken)
from __future__ import annotations

from dataclasses import dataclass

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
        "lower --mem-fraction-static, or capture fewer batch sizes (--cuda-graph-max-bs-decode; before SGLang 0.5.18"
        " --cuda-graph-max-bs)",
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
        " show the GPUs, one for each rank",
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
    Cause(
        "unknown",
        "read the last lines of each rank: in this log, or where serve itself ran in post-mortem.json beside its"
        " starts; the first error is nearer to the cause than the last",
        ExitCode.ENGINE_DIED,
    ),
    Cause(
        "stalled",
        "find where it waits: nvidia-smi (GPUs at 100 % without progress: run the host doctor), iostat or the"
        " storage's own log while weights load, py-spy dump of a rank; state.json says what was checked",
        ExitCode.ENGINE_HUNG,
    ),
    Cause("stopped", "nothing: it was stopped as asked", ExitCode.OK),
)
