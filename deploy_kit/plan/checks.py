"""What SGLang's own arguments do not refuse, but a 20-minute load would: refused before anything starts.

Each check is a function of the resolved parts and returns the problem, or None. Sources: docs/plan.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from deploy_kit.configs.schema import Host, Lever, Model, Profile, Stack, version_tuple
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.plan.flags import FlagValue

# Attention back ends and MoE runners that have no SM120 kernels in the pinned SGLang.
_NO_SM120_ATTENTION = ("fa3", "fa4", "trtllm_mla", "trtllm_mha", "cutlass_mla", "flashmla")
_NO_SM120_MOE = ("flashinfer_trtllm", "deep_gemm")


# Flags that a plan makes from something else: a value in a [flags] table would be lost, or contradict it.
_SET_ELSEWHERE = {
    "host": "--address",
    "port": "--port",
    "enable-metrics": "nothing: metrics are always on",
    "model-path": "the model's path",
    "served-model-name": "the model's served_name",
    "tp-size": "the host's tensor_parallel",
    "api-key": "a file: DEPLOY_KIT_API_KEY_FILE",
}


def refuse_bad_plan(
    stack: Stack,
    model: Model,
    host: Host,
    profile: Profile,
    levers: Sequence[Lever],
    flags: Mapping[str, FlagValue],
) -> None:
    """Raise the first problem found, as a `DeployKitError` that names the key and what is allowed."""
    for problem in _owned(model, host, profile, levers):
        raise problem
    for problem in _problems(stack, model, host, levers, flags):
        raise problem


def _owned(model: Model, host: Host, profile: Profile, levers: Sequence[Lever]) -> Iterator[DeployKitError]:
    tables: list[tuple[str, Model | Host | Profile | Lever]] = [
        ("models", model),
        ("hosts", host),
        ("profiles", profile),
        *(("levers", one) for one in levers),
    ]
    for folder, table in tables:
        for key in sorted(set(table.flags) & set(_SET_ELSEWHERE)):
            yield _refusal(
                "a plan sets this flag itself",
                file=f"{folder}/{table.name}.toml",
                key=f"flags.{key}",
                found="a value of its own" if key == "api-key" else table.flags[key],
                remedy=f"leave it out; it comes from {_SET_ELSEWHERE[key]}",
            )


def _problems(
    stack: Stack,
    model: Model,
    host: Host,
    levers: Sequence[Lever],
    flags: Mapping[str, FlagValue],
) -> Iterator[DeployKitError]:
    yield from _rehearsal(stack, model, host)
    yield from _shares(flags)
    yield from _parallelism(model, host, flags)
    yield from _kernels(model, host, flags)
    for lever in levers:
        yield from _lever(lever, stack, host)
    yield from _lever_pairs(levers)
    yield from _collectives(host, levers)


def _rehearsal(stack: Stack, model: Model, host: Host) -> Iterator[DeployKitError]:
    kinds = {"stack": stack.rehearsal, "model": model.rehearsal, "host": host.rehearsal}
    if len(set(kinds.values())) > 1:
        real = [word for word, rehearsal in kinds.items() if not rehearsal]
        yield _refusal(
            "rehearsal and real do not mix",
            key=", ".join(kinds),
            found=f"{stack.name}, {model.name}, {host.name}; not of rehearsal: {', '.join(real)}",
            remedy="take all three from rehearsal, or none",
        )


def _shares(flags: Mapping[str, FlagValue]) -> Iterator[DeployKitError]:
    """A share of the memory outside 0 to 1 passes SGLang's parser and fails after the load."""
    share = flags.get("mem-fraction-static")
    if isinstance(share, int | float) and not isinstance(share, bool) and not 0 < share < 1:
        yield _refusal(
            "mem-fraction-static is a share of the GPU's memory",
            key="mem-fraction-static",
            found=str(share),
            allowed="above 0 and below 1, for example 0.9",
        )


def _parallelism(model: Model, host: Host, flags: Mapping[str, FlagValue]) -> Iterator[DeployKitError]:
    ranks = host.tensor_parallel
    if host.accelerator == "cuda" and ranks > host.gpus:
        yield _refusal(
            "more tensor-parallel ranks than GPUs",
            file=f"hosts/{host.name}.toml",
            key="tensor_parallel",
            found=ranks,
            allowed=f"1 to {host.gpus}",
            remedy="lower tensor_parallel, or correct gpus",
        )
    if model.attention_heads % ranks:
        allowed = [n for n in range(1, max(host.gpus, 1) + 1) if model.attention_heads % n == 0]
        yield _refusal(
            f"{model.attention_heads} attention heads do not divide by {ranks} ranks",
            file=f"hosts/{host.name}.toml",
            key="tensor_parallel",
            found=ranks,
            allowed=allowed,
            remedy=f"set tensor_parallel to one of these, or serve a model other than {model.name}",
        )
    experts = flags.get("ep-size")
    if isinstance(experts, int) and (
        ranks % experts or (model.routed_experts and model.routed_experts % experts)
    ):
        allowed = [n for n in range(1, ranks + 1) if ranks % n == 0 and model.routed_experts % n == 0]
        yield _refusal(
            "expert parallelism must divide the ranks and the routed experts",
            key="ep-size",
            found=experts,
            allowed=allowed,
        )


def _kernels(model: Model, host: Host, flags: Mapping[str, FlagValue]) -> Iterator[DeployKitError]:
    quantization = model.quantization or ""
    if "int4" in quantization and flags.get("moe-a2a-backend") == "deepep":
        yield _refusal(
            "DeepEP has no path for INT4 experts", key="moe-a2a-backend", found="deepep", allowed="none"
        )
    if host.capability not in ("12.0", "12.1"):
        return
    for key in ("attention-backend", "decode-attention-backend", "prefill-attention-backend"):
        if flags.get(key) in _NO_SM120_ATTENTION:
            yield _refusal(
                "this attention back end has no SM120 kernels",
                key=key,
                found=flags[key],
                allowed="triton, flashinfer",
            )
    if flags.get("moe-runner-backend") in _NO_SM120_MOE:
        yield _refusal(
            "this MoE runner has no SM120 kernels",
            key="moe-runner-backend",
            found=flags["moe-runner-backend"],
            allowed="auto, marlin, triton",
        )
    if str(flags.get("kv-cache-dtype", "")).startswith(("fp4", "nvfp4")):
        yield _refusal(
            "an FP4 KV cache has no SM120 kernels",
            key="kv-cache-dtype",
            found=flags["kv-cache-dtype"],
            allowed="auto, fp8_e4m3",
        )


def _lever(lever: Lever, stack: Stack, host: Host) -> Iterator[DeployKitError]:
    needs = lever.needs
    where = f"lever {lever.name}"
    if needs.accelerator is not None and needs.accelerator != host.accelerator:
        yield _refusal(f"{where} needs {needs.accelerator}", key="host.accelerator", found=host.accelerator)
    if needs.sglang_at_least and version_tuple(stack.versions.sglang) < version_tuple(needs.sglang_at_least):
        yield _refusal(
            f"{where} needs a newer SGLang",
            key=f"stack {stack.name}: sglang",
            found=stack.versions.sglang,
            allowed=f"{needs.sglang_at_least} or newer",
        )
    if needs.capabilities and host.capability not in needs.capabilities:
        yield _refusal(
            f"{where} does not apply to these GPUs ({lever.status_on_sm120} on SM120)",
            key="host.capability",
            found=host.capability,
            allowed=needs.capabilities,
        )
    if needs.tensor_parallel and host.tensor_parallel not in needs.tensor_parallel:
        yield _refusal(
            f"{where} does not work at this tensor-parallel size",
            key="host.tensor_parallel",
            found=host.tensor_parallel,
            allowed=needs.tensor_parallel,
        )
    if needs.nvlink is not None and needs.nvlink != host.nvlink:
        yield _refusal(
            f"{where} needs {'NVLink' if needs.nvlink else 'a box without NVLink'}",
            key="host.nvlink",
            found=host.nvlink,
        )
    if needs.patch and not any(patch.lever == lever.name for patch in stack.patches):
        yield _refusal(
            f"{where} needs a patch that stack {stack.name} does not carry",
            key="stack.patches",
            found=[patch.lever for patch in stack.patches] or "none",
            allowed="a stack that lists a patch for this lever",
        )
    if needs.package is not None and needs.package not in stack.lever_packages:
        # SGLang only warns and serves without it: a measurement would be the baseline's under the lever's
        # name.
        yield _refusal(
            f"{where} needs a package that stack {stack.name} does not hold",
            key="stack.lever_packages",
            found=stack.lever_packages or "none",
            allowed=needs.package,
            remedy="add it to the stack's requirements and to its lever_packages, and build the image",
        )


def _lever_pairs(levers: Sequence[Lever]) -> Iterator[DeployKitError]:
    names = {lever.name for lever in levers}
    for lever in levers:
        for other in lever.excludes:
            if other in names:
                yield _refusal(
                    f"levers {lever.name} and {other} are alternatives, not additions",
                    key="--lever",
                    found=sorted(names),
                    remedy=f"leave out {lever.name} or {other}",
                )
    set_by: dict[str, str] = {}
    for lever in levers:
        for key in (*lever.flags, *lever.environment):
            if key in set_by:
                yield _refusal(
                    f"levers {set_by[key]} and {lever.name} both set {key}",
                    key="--lever",
                    found=sorted(names),
                    remedy="a lever is one isolated change; use one of the two",
                )
            set_by[key] = lever.name


def _collectives(host: Host, levers: Sequence[Lever]) -> Iterator[DeployKitError]:
    for where, environment in (
        (f"host {host.name}", {**host.environment, **host.nccl}),
        *((f"lever {lever.name}", lever.environment) for lever in levers),
    ):
        algorithm = environment.get("NCCL_ALGO")
        if algorithm is not None and ":" not in algorithm:
            yield _refusal(
                f"{where}: NCCL_ALGO without a collective's name leaves other collectives with no algorithm",
                key="NCCL_ALGO",
                found=algorithm,
                allowed=f"allreduce:{algorithm.lower()}",
                remedy="name the collective; see nccl#317",
            )


def _refusal(
    summary: str,
    *,
    key: str,
    found: object,
    file: str | None = None,
    allowed: object = None,
    remedy: str | None = None,
) -> DeployKitError:
    return DeployKitError(
        summary, file=file, key=key, found=found, allowed=allowed, remedy=remedy, exit_code=ExitCode.CONFIG
    )
