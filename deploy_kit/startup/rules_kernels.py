"""Rules: telemetry, kernels and their compilation, GPUs and driver. The first that fits wins."""

# ruff: noqa: E501  (patterns and their explanations read better unbroken)
from __future__ import annotations

from deploy_kit.startup.rule import Rule, rule
from deploy_kit.startup.rule_choice import no_space

RULES: tuple[Rule, ...] = (
    rule("telemetry", r"deploy_kit[._]telemetry", "the telemetry plug-in failed: {first}"),
    # Kernels, before memory: "out of resource: shared memory" is no lack of GPU memory.
    rule(
        "kernel-resources",
        r"out of resources?:? ?(?:shared memory)?.*?Required: (?P<required_bytes>\d+).*?limit: (?P<limit_bytes>\d+)",
        "a Triton kernel needs {required_bytes} bytes of shared memory, the GPU has {limit_bytes}",
    ),
    rule(
        "kernel-arch",
        r"No supported CUDA architectures found for major versions (?P<majors>\[[\d, ]+\])",
        "a FlashInfer module supports only compute capability majors {majors}, not this GPU's (12 on SM120):"
        " all-reduce fusion or MoE path",
    ),
    rule(
        "kernel-arch",
        r"no kernel image is available for execution",
        "no kernel image for this GPU's architecture in a loaded library (built for other SM versions)",
    ),
    rule(
        "kernel-arch",
        r"Unsupported gpu architecture|Value 'sm_\w+' is not defined for option|is not a recognized processor"
        r"|not compatible with the current PyTorch installation|invalid device function|named symbol not found",
        "the toolchain or library does not know this GPU's architecture: {first}",
    ),
    rule(
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
    rule(
        no_space,
        r"(?:shared memory segment (?P<path2>/dev/shm/\S+).{0,200}?)?No space left on device(?:: ['\"]?(?P<path>[^'\"\n]+))?",
        "no space left on the device while writing {path}",
    ),
    rule(
        "jit-failed",
        r"Error building extension|ninja: build stopped|Command .{0,40}ninja.{0,200}returned non-zero"
        r"|nvcc .{0,4000}returned non-zero|CompilationError|PTXASError|ptxas (?:fatal|error)|Internal Triton"
        r"|PassManager::run failed|NVCC (?:compilation )?(?:failed|error)|nvcc fatal|LoweringException|JIT compilation failed"
        r"|DSLRuntimeError|failed to compile|compile error",
        "a kernel did not compile: {first}",
    ),
    rule(
        "kernel-arch",
        r"(?:only sm_?\d+|Unknown SF transformation|(?:is |are )?only (?:supported|available|works?|implemented) (?:on|for|with) (?:\w+ ){0,3}"
        r"(?:hopper|blackwell|sm_?\d+|sm\d|b200|h100|h200|compute|cuda compute|gpus? with)"
        r"|requires? (?:\w+ ){0,4}(?:sm ?[<>=]|sm_?\d+|compute capability|hopper|blackwell)"
        r"|(?:sm_?\d+|compute capability \S+|architecture|device capability \S+|gpu arch\w*) (?:\w+ ){0,3}(?:is |are )?not (?:yet )?supported"
        r"|unsupported (?:\w+ ){0,2}(?:compute capability|gpu|arch\w*\b(?!: ?\[?'?\w+For[A-Z])|sm\b|device capability)"
        r"|not supported (?:on|for|by) (?:\w+ ){0,4}(?:sm_?\d+|compute capability|this gpu|this device|gpu arch\w*|architecture|blackwell)"
        r"|does not support (?:sm_?\d+|compute capability|this gpu|architecture)"
        r"|no (?:available|valid|suitable|supported|compiled) (?:\w+ ){0,2}(?:kernel|cubin|tactic|algorithm for this)"
        r"|no (?:implemented|compiled) \S+ for (?:a |the )?(?:current )?(?:cuda )?(?:device|compute) capability"
        r"|no (?:kernel|cubin) (?:\w+ ){0,3}(?:for|found)|Could not load any common_ops library"
        r"|cutlass.{0,40}(?:not supported|Error Internal|failed to (?:initialize|run)))",
        "no kernel for this GPU in the chosen backend: {first}",
    ),
    # GPUs and driver.
    rule(
        "gpu-ecc",
        r"uncorrectable (?:ECC|NVLink)|ECC error",
        "the GPU reports an uncorrectable ECC error",
    ),
    rule(
        "gpu-lost",
        r"fallen off the bus|GPU is lost|device .{0,20}is lost|GPU requires reset|NVML_ERROR_GPU_IS_LOST"
        r"|Unable to determine the device handle",
        "a GPU fell off the bus: {first}",
    ),
    rule(
        "cuda-driver",
        r"invalid device ordinal",
        "a rank asks for a GPU that this container does not show (fewer GPUs than ranks, or CUDA_VISIBLE_DEVICES):"
        " {first}",
    ),
    rule(
        "cuda-driver",
        r"driver version is insufficient|driver on your system is too old|system has unsupported display driver"
        r"|forward compatibility was attempted|system not yet initialized|no CUDA-capable device|No CUDA GPUs are"
        r"|Found no NVIDIA driver|devices? is/are busy or unavailable"
        r"|Torch not compiled with CUDA|driver/library version mismatch|CUDA unknown error|NVMLError|NVML: "
        r"|libcuda\.so\S*: cannot open|provided PTX was compiled with an unsupported toolchain",
        "the driver or the GPUs are not usable in this container: {first}",
    ),
    rule(
        "cuda-fault",
        r"illegal memory access|device-side assert|unspecified launch failure|misaligned address"
        r"|illegal instruction was encountered|invalid program counter|CUBLAS_STATUS_EXECUTION_FAILED"
        r"|CUDNN_STATUS_EXECUTION_FAILED|an invalid configuration argument|invalid argument.{0,60}cudaLaunch",
        "a GPU kernel failed: {first}",
    ),
)
