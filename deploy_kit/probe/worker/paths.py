"""The all-reduce implementations a candidate can name. Each is made after the process group is up."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist


class UnsupportedError(Exception):
    """This implementation cannot run here, for the reason given."""


class AllReduce(Protocol):
    """Sum over the ranks. `reduce` may work in place or return another tensor."""

    in_place: bool

    def inputs(self, numel: int, device: torch.device) -> torch.Tensor:
        """Return zeroed bf16 memory for inputs, of the kind that this implementation reads."""
        ...

    def reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over the ranks of `tensor` ([tokens, hidden], bf16)."""
        ...

    def capturing(self) -> contextlib.AbstractContextManager[None]:
        """Return what must be entered around a graph capture."""
        ...


class _Plain:
    in_place = True

    def inputs(self, numel: int, device: torch.device) -> torch.Tensor:
        return torch.zeros(numel, dtype=torch.bfloat16, device=device)

    def capturing(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class ProcessGroupAllReduce(_Plain):
    """The process group's own all-reduce: NCCL on GPUs, gloo without."""

    def reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor)
        return tensor


class SymmetricMemoryAllReduce(_Plain):
    """torch symmetric memory over peer pointers; never its multicast operations.

    `one-shot`: every rank reads all peers. `two-shot`: reduce-scatter, then all-gather. Both copy the
    activation into symmetric memory, as an engine must; `bare` has its inputs there from the start, to show
    what the copy costs.
    """

    def __init__(self, style: str, max_numel: int, device: torch.device) -> None:
        _needs_cuda(device)
        try:
            symmetric = importlib.import_module("torch.distributed._symmetric_memory")
        except ImportError as error:
            raise UnsupportedError(f"this torch has no symmetric memory: {error}") from error
        if dist.group.WORLD is None:
            raise UnsupportedError("there is no process group")
        self._group = dist.group.WORLD.group_name
        self._symmetric = symmetric
        self._style = style
        self.in_place = style == "two-shot"
        try:
            self._buffer = symmetric.empty(max_numel, dtype=torch.bfloat16, device=device)
            self._handle = symmetric.rendezvous(self._buffer, self._group)
        except RuntimeError as error:
            raise UnsupportedError(
                f"symmetric memory cannot be shared between these GPUs: {first_line(error)}"
            ) from error
        self._ops = torch.ops.symm_mem
        self._fused_copy = hasattr(self._ops, "one_shot_all_reduce_copy")

    def reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._style == "bare":
            return self._ops.one_shot_all_reduce(tensor, "sum", self._group)
        window = self._buffer[: tensor.numel()]
        if self._style == "one-shot":
            if self._fused_copy:
                flat = self._ops.one_shot_all_reduce_copy(window, tensor.view(-1), "sum", self._group)
            else:
                window.copy_(tensor.view(-1))
                flat = self._ops.one_shot_all_reduce(window, "sum", self._group)
            return flat.view_as(tensor)
        window.copy_(tensor.view(-1))
        self._ops.two_shot_all_reduce_(window, "sum", self._group)
        tensor.view(-1).copy_(window)
        return tensor

    def inputs(self, numel: int, device: torch.device) -> torch.Tensor:
        if self._style != "bare":
            return super().inputs(numel, device)
        memory = self._symmetric.empty(numel, dtype=torch.bfloat16, device=device)
        self._symmetric.rendezvous(memory, self._group)
        return memory.zero_()


class FlashInferPcieIpcAllReduce(_Plain):
    """FlashInfer's all-reduce over PCIe peer memory. Its kernels spin without a time limit of their own."""

    in_place = False

    def __init__(
        self, hidden: int, tokens: Sequence[int], max_numel: int, device: torch.device, *, tune: bool
    ) -> None:
        _needs_cuda(device)
        comm = _import("flashinfer.comm", "flashinfer-python 0.7.0 or newer")
        workspace = getattr(comm, "PcieIpcAllReduceWorkspace", None)
        if workspace is None:
            raise UnsupportedError("this FlashInfer has no PCIe IPC all-reduce; it needs 0.7.0 or newer")
        if dist.get_world_size() not in (2, 4, 8):
            raise UnsupportedError(f"it runs on 2, 4 or 8 ranks, not on {dist.get_world_size()}")
        self._workspace = workspace(group=dist.group.WORLD, max_numel=max_numel, dtype=torch.bfloat16)
        # Tactics measured here and now, as the engine does at start; without, a slower seed policy runs.
        if tune:
            self._workspace.tune([hidden], dtype=torch.bfloat16, tune_group=dist.new_group(backend="gloo"))
        # The ranks agree on each shape's tactic now: inside a graph's capture they cannot.
        self._workspace.prepare([(count, hidden) for count in tokens], dtype=torch.bfloat16)
        self._stream: torch.cuda.Stream | None = None

    def reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        stream = torch.cuda.current_stream()
        # A torch stream is never unequal to None, so that case has to be asked for.
        if self._stream is None or stream != self._stream:
            # One workspace serves one stream; capture uses another one than eager calls.
            self._workspace.rebind_stream()
            self._stream = stream
        if not self._workspace.supports(tensor):
            raise UnsupportedError(f"it does not take the shape {tuple(tensor.shape)}")
        return self._workspace.all_reduce(tensor)


class SglangCustomAllReduce(_Plain):
    """SGLang's custom all-reduce, version 2 where this SGLang has it and it applies, else version 1."""

    in_place = False

    def __init__(self, device: torch.device) -> None:
        _needs_cuda(device)
        module = _import("sglang.srt.distributed.device_communicators.custom_all_reduce", "sglang")
        # Its peer-access check asks the engine's own world group; that stands on the one we have made.
        state = _import("sglang.srt.distributed.parallel_state", "sglang")
        rank, world_size = dist.get_rank(), dist.get_world_size()
        state.init_distributed_environment(world_size, rank, local_rank=rank, backend="nccl")
        dispatch = getattr(module, "dispatch_custom_allreduce", None)
        group = dist.new_group(backend="gloo")
        if dispatch is None:
            kind = module.CustomAllreduce
        else:
            # Older versions look at the environment only.
            takes_group = "group" in inspect.signature(dispatch).parameters
            kind = dispatch(group=group, device=device) if takes_group else dispatch()
        self._communicator: Any = kind(group=group, device=device)
        if self._communicator.disabled:
            raise UnsupportedError(
                "SGLang switches its custom all-reduce off here: it wants NVLink, or two peer GPUs"
            )

    def reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self._communicator.should_custom_ar(tensor):
            raise UnsupportedError(f"it leaves the shape {tuple(tensor.shape)} to NCCL")
        out = self._communicator.custom_all_reduce(tensor)
        if out is None:
            raise UnsupportedError("it left this call to NCCL")
        return out

    def capturing(self) -> contextlib.AbstractContextManager[None]:
        context: contextlib.AbstractContextManager[None] = self._communicator.capture()
        return context


class FlashInferFusedAllReduce(_Plain):
    """FlashInfer's TRT-LLM kernel with residual add and RMSNorm, used as all-reduce: the fusion lever's.

    Its latency includes the add and the norm, which the other candidates leave to two more kernels. As an
    all-reduce candidate it is checked through `residual_out` with a zero residual, which is the plain sum.
    """

    in_place = False

    def __init__(self, hidden: int, max_tokens: int, device: torch.device) -> None:
        self._fused = FlashInferFusion(hidden, max_tokens, device)
        self._zeros = torch.zeros(max_tokens, hidden, dtype=torch.bfloat16, device=device)
        self._weight = torch.ones(hidden, dtype=torch.bfloat16, device=device)

    def reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._fused.apply(tensor, self._zeros[: tensor.shape[0]], self._weight, 1e-6)[1]


class FlashInferFusion:
    """FlashInfer's fused all-reduce + residual add + RMSNorm (TRT-LLM back end, no multicast).

    `one_shot` None leaves the choice between its two kernels to FlashInfer, as the engine does.
    """

    def __init__(
        self, hidden: int, max_tokens: int, device: torch.device, one_shot: bool | None = None
    ) -> None:
        _needs_cuda(device)
        self._comm = _import("flashinfer.comm", "flashinfer-python")
        try:
            allreduce = importlib.import_module("flashinfer.comm.allreduce")
        except ImportError as error:
            raise UnsupportedError(f"this FlashInfer has no unified fusion interface: {error}") from error
        if dist.get_world_size() not in (2, 4, 8, 16):
            raise UnsupportedError(f"it runs on 2, 4, 8 or 16 ranks, not on {dist.get_world_size()}")
        self._one_shot = one_shot
        self._run = allreduce.allreduce_fusion
        self._pattern = self._comm.AllReduceFusionPattern.kARResidualRMSNorm
        self._workspace = allreduce.create_allreduce_fusion_workspace(
            backend="trtllm",
            world_size=dist.get_world_size(),
            rank=dist.get_rank(),
            max_token_num=max_tokens,
            hidden_dim=hidden,
            dtype=torch.bfloat16,
        )

    def apply(
        self, tensor: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (norm of sum + residual, sum + residual)."""
        normed, summed = torch.empty_like(tensor), torch.empty_like(tensor)
        self._run(
            input=tensor,
            workspace=self._workspace,
            pattern=self._pattern,
            launch_with_pdl=False,
            residual_in=residual,
            residual_out=summed,
            norm_out=normed,
            rms_gamma=weight,
            rms_eps=epsilon,
            use_oneshot=self._one_shot,
        )
        return normed, summed


class MscclppAllReduce(_Plain):
    """MSCCL++ through SGLang's communicator, which is how the engine would run it."""

    in_place = False

    def __init__(self, device: torch.device) -> None:
        _needs_cuda(device)
        _import("mscclpp", "mscclpp")
        if dist.get_world_size() < 4:
            raise UnsupportedError("SGLang uses MSCCL++ from 4 ranks on")
        module = _import("sglang.srt.distributed.device_communicators.pymscclpp", "sglang")
        self._communicator: Any = module.PyMscclppCommunicator(
            group=dist.new_group(backend="gloo"), device=device
        )
        if getattr(self._communicator, "disabled", False):
            raise UnsupportedError("SGLang's MSCCL++ communicator switched itself off")

    def reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._communicator.change_state(enable=True):
            return self._communicator.all_reduce(tensor)


def make_path(
    kind: str, hidden: int, tokens: Sequence[int], device: torch.device, *, tune: bool = True
) -> AllReduce:
    """Given a path's name, the hidden size and the sizes in tokens, return it; raises `UnsupportedError`.

    `tune` False leaves out measuring tactics, which ranks that take turns on one GPU would do for minutes.
    """
    max_tokens = max(tokens)
    max_numel = max_tokens * hidden
    if kind == "process-group":
        return ProcessGroupAllReduce()
    if kind.startswith("symm-"):
        return SymmetricMemoryAllReduce(kind.removeprefix("symm-"), max_numel, device)
    if kind == "flashinfer-pcie-ipc":
        return FlashInferPcieIpcAllReduce(hidden, tokens, max_numel, device, tune=tune)
    if kind == "flashinfer-fused":
        return FlashInferFusedAllReduce(hidden, max_tokens, device)
    if kind == "sglang-custom":
        return SglangCustomAllReduce(device)
    if kind == "mscclpp":
        return MscclppAllReduce(device)
    raise UnsupportedError(f"no all-reduce path is called {kind}")


# What an implementation imports, and the functions that compile its modules, or load those that an earlier
# run compiled. A function that this version lacks is left to the set-up.
_Needs = tuple[str, tuple[tuple[str, str], ...]]
_FUSED: _Needs = ("flashinfer.comm.allreduce", (("flashinfer.comm.trtllm_ar", "get_trtllm_comm_module"),))
_NEEDS: dict[str, _Needs] = {
    "flashinfer-pcie-ipc": (
        "flashinfer.comm",
        (
            ("flashinfer.comm.pcie_ipc_ar", "get_pcie_ipc_comm_module"),
            ("flashinfer.tllm_utils", "get_trtllm_utils_module"),  # its tuner's delay kernel
        ),
    ),
    "flashinfer-fused": _FUSED,
    "flashinfer-auto": _FUSED,
    "flashinfer-one-shot": _FUSED,
    "flashinfer-two-shot": _FUSED,
    "sglang-custom": ("sglang.srt.distributed.device_communicators.custom_all_reduce", ()),
    "mscclpp": ("mscclpp", ()),
}


def prepare_path(kind: str, rank: int) -> None:
    """Given the name of a path or of a fused operation, import and compile what it needs on this rank.

    What does not import is left to the set-up, which says why; what does not compile ends here.
    """
    package, compiled = _NEEDS.get(kind, ("", ()))
    try:
        if package:
            importlib.import_module(package)
        makers = [getattr(importlib.import_module(module), name, None) for module, name in compiled]
    except Exception:  # noqa: BLE001  (an import may fail in any way of its own)
        return
    for make in makers:
        if make is not None:
            make()
    if kind == "sglang-custom" and rank == 0:
        _let_sglang_check_peers()


def _let_sglang_check_peers() -> None:
    """Have SGLang try peer access between all GPUs, which it does once and keeps in a file.

    It takes half a minute and more, in which the other ranks would wait.
    """
    utilities = importlib.import_module("sglang.srt.distributed.device_communicators.custom_all_reduce_utils")
    check = getattr(utilities, "gpu_p2p_access_check", None)
    if check is not None and torch.cuda.device_count() > 1:
        check(0, 1)


def first_line(error: BaseException) -> str:
    """Return the first line that says something of an exception's text, or its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:400] if lines else type(error).__name__


def _needs_cuda(device: torch.device) -> None:
    if device.type != "cuda":
        raise UnsupportedError("it needs CUDA GPUs")


def _import(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnsupportedError(
            f"{package} is not installed or does not import: {first_line(error)}"
        ) from error
    except Exception as error:  # an import may fail in any way of its own
        raise UnsupportedError(
            f"{name} does not import: {type(error).__name__}: {first_line(error)}"
        ) from error
