"""Numeric acceptance of a fused all-reduce + residual add + RMSNorm: one rank's part."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch
import torch.distributed as dist

from .data import compare, digest, reals, sum_over_ranks
from .paths import FlashInferFusion, UnsupportedError
from .session import Session, WrongError, _rounded, _where

_EPSILON = 1e-6
_ONE_SHOT: dict[str, bool | None] = {
    "flashinfer-auto": None,
    "flashinfer-one-shot": True,
    "flashinfer-two-shot": False,
}


class Fusion(Protocol):
    """Given this rank's part, the residual and the weight: the norm of sum + residual, and sum + residual."""

    def apply(
        self, tensor: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (norm, sum + residual), both bf16."""
        ...


class UnfusedReference:
    """The process group's all-reduce, then residual add and RMSNorm as torch operations: what is replaced."""

    def apply(
        self, tensor: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (norm, sum + residual), both bf16; the input is left as it was."""
        reduced = tensor.clone()
        dist.all_reduce(reduced)
        summed = reduced.float() + residual.float()
        scale = torch.rsqrt(summed.pow(2).mean(dim=-1, keepdim=True) + epsilon)
        return (summed * scale * weight.float()).to(torch.bfloat16), summed.to(torch.bfloat16)


class FusionSession(Session):
    """The steps of `Session`, for a fused operation in place of an all-reduce."""

    def join(self) -> dict[str, Any]:
        """Join as an all-reduce over the process group, then make the fused operation."""
        kind, self.job["path"] = self.job["path"], "process-group"
        result = super().join()
        self.unfused = UnfusedReference()
        self.fused: Fusion
        if kind == "unfused":
            self.fused = UnfusedReference()
        elif kind in _ONE_SHOT:
            if kind == "flashinfer-two-shot":
                # Its kernel divides the tokens among the ranks and takes no fewer than one more than those.
                self.tokens = [tokens for tokens in self.tokens if tokens > self.world_size]
                if not self.tokens:
                    raise UnsupportedError(f"the two-shot kernel needs more than {self.world_size} tokens")
            self.fused = FlashInferFusion(self.hidden, max(self.tokens), self.device, _ONE_SHOT[kind])
        else:
            raise UnsupportedError(f"no fused operation is called {kind}")
        self.weight = (1 + reals(self.hidden, 7, self.device) / 4).to(torch.bfloat16)
        self.fused_graphs: dict[tuple[int, str], torch.cuda.CUDAGraph] = {}
        self.static: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.results: dict[tuple[int, str], list[tuple[torch.Tensor, torch.Tensor]]] = {}
        return result

    def check(self, repeats: int) -> dict[str, Any]:
        """Compare eager results with the float64 reference on every size, one rank late from the second."""
        digests: list[int] = []
        worst = {"norm": 0.0, "residual": 0.0}
        for tokens in self.tokens:
            for repeat in range(repeats):
                late = (repeat + tokens) % self.world_size if repeat else None
                self.channel.at(_where(tokens, f"eager repeat {repeat + 1} of {repeats}", late))
                self.serial += 1
                own, residual = self._operands(tokens, self.serial)
                self._be_late(late)
                normed, summed = self._apply(own, residual, "check", None)
                self._compare(normed, summed, tokens, self.serial, "eager")
                plain_norm, plain_sum = self.unfused.apply(own, residual, self.weight, _EPSILON)
                worst["norm"] = max(worst["norm"], _gap(normed, plain_norm))
                worst["residual"] = max(worst["residual"], _gap(summed, plain_sum))
                digests += [digest(normed), digest(summed)]
        return {"digests": digests, "largest_gap_to_unfused": worst}

    def capture(self) -> dict[str, Any]:
        """Capture `count` fused operations, and as many unfused ones, in one CUDA graph a size."""
        for tokens in self.tokens:
            self.channel.at(_where(tokens, "graph capture", None))
            self._fault_before("capture")
            shape = (self._buffers(tokens), tokens, self.hidden)
            self.static[tokens] = (
                torch.zeros(shape, dtype=torch.bfloat16, device=self.device),
                torch.zeros(shape, dtype=torch.bfloat16, device=self.device),
            )
            if self.on_gpu:
                # gloo's all-reduce, which stands in for NCCL on a shared GPU, cannot be captured.
                for name in ("fused",) if self.shared_gpu else ("fused", "unfused"):
                    self._capture_named(tokens, name)
        return {"graph": self.on_gpu}

    def replay(self, repeats: int) -> dict[str, Any]:
        """Replay with new inputs each time and compare every output: a missing end barrier shows here."""
        for tokens in self.tokens:
            for repeat in range(repeats):
                late = (repeat + tokens) % self.world_size if repeat else None
                self.channel.at(_where(tokens, f"graph replay {repeat + 1} of {repeats}", late))
                serials = self._refill_static(tokens)
                self._be_late(late)
                self._run_named(tokens, "fused", "replay")
                self._synchronize()
                for index, (normed, summed) in enumerate(self.results[tokens, "fused"]):
                    where = f"operation {index + 1} of {self.count} in the graph"
                    self._compare(normed, summed, tokens, serials[index % len(serials)], where)
        return {}

    def measure(self, tokens: list[int], replays: int, warmup: int, eager_calls: int) -> dict[str, Any]:
        """Return microseconds per operation for fused and unfused graphs, alternating."""
        del eager_calls
        found: dict[str, dict[str, list[float]]] = {"fused": {}, "unfused": {}}
        for size in (size for size in tokens if size in self.tokens):
            self.channel.at(_where(size, "timed replays", None))
            for name, samples in found.items():
                for _ in range(warmup):
                    self._run_named(size, name, "measure")
                samples[str(size)] = self._timed_named(size, name, replays)
        return {"graph_us": found["fused"], "unfused_us": found["unfused"]}

    def _operands(self, tokens: int, serial: int) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (tokens, self.hidden)
        numel = tokens * self.hidden
        own = reals(numel, serial * self.world_size + self.rank, self.device).view(shape)
        # The residual is the same on every rank, as in tensor parallel serving.
        residual = (reals(numel, serial + 0x55555, self.device) * 4).view(shape)
        return own, residual

    def _apply(
        self, own: torch.Tensor, residual: torch.Tensor, step: str, previous: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._fault_before(step)
        normed, summed = self.fused.apply(own, residual, self.weight, _EPSILON)
        if self.fault is not None:
            self.fault.after(step, normed, previous)
        return normed, summed

    def _compare(
        self, normed: torch.Tensor, summed: torch.Tensor, tokens: int, serial: int, where: str
    ) -> None:
        numel = tokens * self.hidden
        seeds = [serial * self.world_size + rank for rank in range(self.world_size)]
        total, magnitude = sum_over_ranks(numel, seeds, self.device, exact=False)
        residual = (reals(numel, serial + 0x55555, self.device) * 4).double()
        exact = (total + residual).view(tokens, self.hidden)
        # One bf16 rounding (2^-9 of the value) for each partial sum, the add and the store.
        slack = ((magnitude + residual.abs()) * ((self.world_size + 1) * 2.0**-8)).view_as(exact)
        difference = compare(summed, exact, slack.reshape(-1))
        if difference.count:
            raise WrongError(f"{tokens} tokens, {where}, sum with residual: {difference.text()}")
        root = (exact.pow(2).mean(dim=-1, keepdim=True) + _EPSILON).sqrt()
        weight = self.weight.double()
        norm = exact / root * weight
        tolerance = (slack / root * weight.abs() + norm.abs() * 2.0**-7).reshape(-1)
        difference = compare(normed, norm, tolerance)
        if difference.count:
            raise WrongError(f"{tokens} tokens, {where}, norm: {difference.text()}")

    def _buffers(self, tokens: int) -> int:
        return max(1, min(self.count, int(self.job["working_set_bytes"]) // (tokens * self.hidden * 4)))

    def _refill_static(self, tokens: int) -> list[int]:
        own, residual = self.static[tokens]
        serials = []
        for index in range(len(own)):
            self.serial += 1
            serials.append(self.serial)
            part, rest = self._operands(tokens, self.serial)
            own[index].copy_(part)
            residual[index].copy_(rest)
        self._synchronize()
        return serials

    def _capture_named(self, tokens: int, name: str) -> None:
        operation: Fusion = self.fused if name == "fused" else self.unfused
        own, residual = self.static[tokens]
        operation.apply(own[0], residual[0], self.weight, _EPSILON)
        self._synchronize()
        graph = torch.cuda.CUDAGraph()
        outputs = []
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for index in range(self.count):
                place = index % len(own)
                outputs.append(operation.apply(own[place], residual[place], self.weight, _EPSILON))
        self.fused_graphs[tokens, name] = graph
        self.results[tokens, name] = outputs

    def _run_named(self, tokens: int, name: str, step: str) -> None:
        if self.on_gpu:
            self._fault_before(step)
            self.fused_graphs[tokens, name].replay()
            return
        own, residual = self.static[tokens]
        outputs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for index in range(self.count):
            place = index % len(own)
            if name == "fused":
                outputs.append(
                    self._apply(own[place], residual[place], step, outputs[-1][0] if outputs else None)
                )
            else:
                outputs.append(self.unfused.apply(own[place], residual[place], self.weight, _EPSILON))
        self.results[tokens, name] = outputs

    def _timed_named(self, tokens: int, name: str, replays: int) -> list[float]:
        if not self.on_gpu:
            samples = []
            for _ in range(replays):
                started = time.perf_counter()
                self._run_named(tokens, name, "measure")
                samples.append((time.perf_counter() - started) * 1e6 / self.count)
            return _rounded(samples)
        events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(replays)
        ]
        for begin, end in events:
            begin.record()
            self.fused_graphs[tokens, name].replay()
            end.record()
        self._synchronize()
        return _rounded([begin.elapsed_time(end) * 1e3 / self.count for begin, end in events])


def _gap(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left.float() - right.float()).abs().max())
