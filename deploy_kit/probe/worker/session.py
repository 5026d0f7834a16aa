"""What one rank does for one candidate: join, check, capture, check the replay, measure."""

from __future__ import annotations

import datetime
import gc
import os
import platform
import random
import resource
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from .channel import Channel
from .data import compare, digest, exact_rows, integers, reals, sum_over_ranks
from .faults import Fault, stand_in_landscape_seconds
from .paths import AllReduce, make_path, prepare_path

# A GPU spins for about this many cycles a microsecond; only has to be right within a factor of two.
_CYCLES_PER_US = 1800
_MAX_SKEW_US = 1000
_CHUNK_ELEMENTS = 4 * 1024**2  # of a graph's outputs are compared at once: 32 MiB in float64


class WrongError(Exception):
    """A result differs from its reference."""


class Session:
    """The state of one rank between commands. Every method is one step and returns what it found."""

    def __init__(self, job: dict[str, Any], channel: Channel) -> None:
        self.job = job
        self.channel = channel
        self.rank = int(job["rank"])
        self.world_size = int(job["world_size"])
        self.hidden = int(job["hidden"])
        self.tokens = [int(count) for count in job["tokens"]]
        self.count = int(job["count"])
        self.fault = Fault.from_job(job.get("fault"), self.rank)
        self.on_gpu = job["device"] == "cuda"
        self.landscape_seconds = 0.0 if self.on_gpu else stand_in_landscape_seconds(dict(os.environ))
        # Ranks that share one GPU check results only: their kernels take turns, so times mean nothing.
        self.shared_gpu = bool(job.get("shared_gpu"))
        index = 0 if self.shared_gpu else self.rank
        self.device = torch.device("cuda", index) if self.on_gpu else torch.device("cpu")
        self.skew = random.Random(1000 + self.rank)  # noqa: S311
        self.serial = 0
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.inputs: dict[int, torch.Tensor] = {}
        self.outputs: dict[int, list[torch.Tensor]] = {}
        self.path: AllReduce | None = None

    # --- steps -------------------------------------------------------------------------------------------

    def ready(self) -> dict[str, Any]:
        """Take the device; return what this rank runs on."""
        torch.set_num_threads(1)
        facts: dict[str, Any] = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "pid": os.getpid(),
            "device": "cpu",
        }
        if self.on_gpu:
            found = torch.cuda.device_count()
            if (self.device.index or 0) >= found:
                raise RuntimeError(f"rank {self.rank} has no GPU: torch sees {found}")
            torch.cuda.set_device(self.device)
            torch.zeros(1, device=self.device)
            torch.cuda.synchronize()
            properties = torch.cuda.get_device_properties(self.device)
            facts |= {
                "device": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "cuda": str(torch.version.cuda),
                "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()),
            }
        return facts

    def prepare(self) -> dict[str, Any]:
        """Import and compile what the candidate's implementation needs: work of the CPU, which may take
        minutes the first time, and says nothing about the all-reduce."""
        started = time.perf_counter()
        self.channel.at(f"importing and compiling what {self.job['path']} needs")
        self._fault_before("prepare")
        prepare_path(self.job["path"], self.rank)
        return {"seconds": round(time.perf_counter() - started, 3)}

    def join(self) -> dict[str, Any]:
        """Make the process group and the candidate's implementation, then reduce once."""
        started = time.perf_counter()
        # NCCL refuses two ranks on one GPU.
        backend = "cpu:gloo,cuda:nccl" if self.on_gpu and not self.shared_gpu else "gloo"
        self.channel.at("making the process group")
        self._fault_before("join")
        dist.init_process_group(
            backend,
            init_method=f"file://{self.job['rendezvous']}",
            rank=self.rank,
            world_size=self.world_size,
            timeout=datetime.timedelta(seconds=float(self.job["collective_limit_seconds"])),
        )
        self.channel.at(f"setting up {self.job['path']}")
        self.path = make_path(
            self.job["path"], self.hidden, self.tokens, self.device, tune=not self.shared_gpu
        )
        self.channel.at("the first all-reduce")
        tensor = self.path.inputs(self.hidden, self.device).fill_(1).view(1, self.hidden)
        self._reduce(tensor, "join")
        self._synchronize()
        return {"seconds": round(time.perf_counter() - started, 3)}

    def check(self, repeats: int) -> dict[str, Any]:
        """Compare eager results with references: exact integers and reals, all ranks together and one late.

        Also runs the other collectives that serving needs (all-gather, broadcast, reduce-scatter): a setting
        that leaves one of them without an algorithm kills the engine at graph capture.
        """
        digests: list[int] = []
        for tokens in self.tokens:
            for repeat in range(repeats):
                for exact in (True, False):
                    late = (repeat + tokens) % self.world_size if repeat else None
                    self.channel.at(_where(tokens, f"eager repeat {repeat + 1} of {repeats}", late))
                    value = self._fill(tokens, exact)
                    self._be_late(late)
                    result = self._reduce(value, "check")
                    self._verify(result, tokens, exact)
                    if not exact:
                        digests.append(digest(result))
        self._other_collectives()
        return {"digests": digests}

    def capture(self) -> dict[str, Any]:
        """Capture, for each size, `count` all-reduces in one CUDA graph; on CPU a loop stands for it."""
        seconds: dict[str, float] = {}
        for tokens in self.tokens:
            self.channel.at(_where(tokens, "graph capture", None))
            started = time.perf_counter()
            self._capture_size(tokens)
            seconds[str(tokens)] = round(time.perf_counter() - started, 4)
        return {"seconds": seconds, "graph": self.on_gpu}

    def replay(self, repeats: int) -> dict[str, Any]:
        """Replay with new inputs each time, with and without a late rank, and compare every output."""
        for tokens in self.tokens:
            for repeat in range(repeats):
                late = (repeat + tokens) % self.world_size if repeat else None
                self.channel.at(_where(tokens, f"graph replay {repeat + 1} of {repeats}", late))
                self._replay_checked(tokens, late)
        if self.on_gpu:
            for tokens in sorted({min(self.tokens), max(self.tokens)}):
                self.channel.at(_where(tokens, "graph with ranks drifting apart inside", None))
                self._drifting_graph(tokens)
        return {}

    def measure(self, tokens: list[int], replays: int, warmup: int, eager_calls: int) -> dict[str, Any]:
        """Return microseconds per all-reduce: one sample a replay, or `eager_calls` eager calls."""
        graph: dict[str, list[float]] = {}
        eager: dict[str, list[float]] = {}
        gc.disable()
        try:
            for size in tokens:
                self.channel.at(_where(size, "timed replays", None))
                graph[str(size)] = self._timed_replays(size, replays, warmup)
                if eager_calls:
                    self.channel.at(_where(size, "timed eager calls", None))
                    eager[str(size)] = self._timed_eager(size, eager_calls)
        finally:
            gc.enable()
        return {"graph_us": graph, "eager_us": eager}

    def leave(self) -> dict[str, Any]:
        """Report memory; the process ends right after, which frees everything without another collective."""
        facts: dict[str, Any] = {"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        if self.on_gpu:
            free, total = torch.cuda.mem_get_info(self.device)
            facts |= {"gpu_free_bytes": free, "gpu_total_bytes": total}
        return facts

    # --- parts -------------------------------------------------------------------------------------------

    def _reduce(self, tensor: torch.Tensor, step: str, previous: torch.Tensor | None = None) -> torch.Tensor:
        if self.path is None:
            raise RuntimeError("join comes first")
        self._fault_before(step)
        if self.landscape_seconds:
            time.sleep(self.landscape_seconds)
        result = self.path.reduce(tensor)
        if self.fault is not None:
            self.fault.after(step, result, previous)
        return result

    def _fault_before(self, step: str) -> None:
        if self.fault is not None:
            self.fault.before(step)

    def _synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def _seeds(self) -> list[int]:
        return [self.serial * self.world_size + rank for rank in range(self.world_size)]

    def _fill(self, tokens: int, exact: bool) -> torch.Tensor:
        if self.path is None:
            raise RuntimeError("join comes first")
        self.serial += 1
        numel = tokens * self.hidden
        if 0 not in self.inputs:
            self.inputs[0] = self.path.inputs(max(self.tokens) * self.hidden, self.device)
        value = self.inputs[0][:numel]
        value.copy_(self._own(numel, exact))
        return value.view(tokens, self.hidden)

    def _own(self, numel: int, exact: bool) -> torch.Tensor:
        seed = self._seeds()[self.rank]
        return (
            integers(numel, seed, self.world_size, self.device) if exact else reals(numel, seed, self.device)
        )

    def _verify(self, result: torch.Tensor, tokens: int, exact: bool) -> None:
        total, magnitude = sum_over_ranks(tokens * self.hidden, self._seeds(), self.device, exact=exact)
        # A bf16 rounding errs by at most 2^-9 of the value; there is one for each rank.
        tolerance: torch.Tensor | float = 0.0 if exact else magnitude * (self.world_size * 2.0**-8)
        difference = compare(result, total, tolerance)
        if difference.count:
            kind = "exact integers" if exact else "reals"
            raise WrongError(f"{tokens} tokens, {kind}: {difference.text()}")

    def _be_late(self, late: int | None) -> None:
        if late != self.rank:
            return
        delay_us = self.skew.uniform(100, _MAX_SKEW_US)
        if self.on_gpu:
            torch.cuda._sleep(int(delay_us * _CYCLES_PER_US))
        else:
            time.sleep(delay_us / 1e6)

    def _buffers(self, tokens: int) -> int:
        """How many distinct inputs a graph works on: all of them, as far as they stay in a GPU's cache."""
        fitting = int(self.job["working_set_bytes"]) // (tokens * self.hidden * 2)
        power_of_two = self.world_size & (self.world_size - 1) == 0
        if not power_of_two and self.path is not None and self.path.in_place:
            # Repeated sums over three or six ranks are not exact; each input is then reduced once.
            return self.count
        return max(1, min(self.count, fitting))

    def _capture_size(self, tokens: int) -> None:
        if self.path is None:
            raise RuntimeError("join comes first")
        buffers = self._buffers(tokens)
        numel = tokens * self.hidden
        source = self.path.inputs(buffers * numel, self.device).view(buffers, tokens, self.hidden)
        self.inputs[tokens] = source
        self._fault_before("capture")
        if not self.on_gpu:
            self.outputs[tokens] = [source[index % buffers] for index in range(self.count)]
            return
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.path.reduce(source[0])
        torch.cuda.current_stream().wait_stream(side)
        self._synchronize()
        graph = torch.cuda.CUDAGraph()
        outputs = []
        with self.path.capturing(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for index in range(self.count):
                outputs.append(self.path.reduce(source[index % buffers]))  # noqa: PERF401
        self.graphs[tokens] = graph
        self.outputs[tokens] = outputs

    def _run_graph(self, tokens: int, step: str) -> None:
        if self.on_gpu:
            self._fault_before(step)
            self.graphs[tokens].replay()
            return
        source = self.inputs[tokens]
        outputs: list[torch.Tensor] = []
        for index in range(self.count):
            previous = outputs[-1].clone() if outputs and self.fault is not None else None
            outputs.append(self._reduce(source[index % len(source)], step, previous))
        self.outputs[tokens] = outputs

    def _replay_checked(self, tokens: int, late: int | None) -> None:
        source = self.inputs[tokens]
        serials = self._refill(source)
        self._be_late(late)
        self._run_graph(tokens, "replay")
        self._synchronize()
        self._verify_outputs(self.outputs[tokens], serials, tokens)

    def _refill(self, source: torch.Tensor) -> list[int]:
        """Put new exact integers into every input of a graph; return their serial numbers."""
        serials = list(range(self.serial + 1, self.serial + 1 + len(source)))
        self.serial = serials[-1]
        numel = source[0].numel()
        for first, last in _chunks(len(source), numel):
            seeds = [serial * self.world_size + self.rank for serial in serials[first:last]]
            own = exact_rows(numel, seeds, self.world_size, self.device)
            source[first:last].copy_(own.view_as(source[first:last]))
        self._synchronize()
        return serials

    def _verify_outputs(self, outputs: list[torch.Tensor], serials: list[int], tokens: int) -> None:
        """Compare a graph's outputs with the exact sums, many at once; the first wrong one is named."""
        in_place = self.path is not None and self.path.in_place
        buffers = len(serials)
        # In place, only the last pass over the buffers is still there.
        start = max(0, len(outputs) - buffers) if in_place else 0
        numel = tokens * self.hidden
        for low, high in _chunks(len(outputs) - start, numel):
            indexes = range(start + low, start + high)
            expected = torch.zeros(len(indexes), numel, dtype=torch.float64, device=self.device)
            for rank in range(self.world_size):
                seeds = [serials[index % buffers] * self.world_size + rank for index in indexes]
                expected += exact_rows(numel, seeds, self.world_size, self.device)
            if in_place:
                times = [float(self.world_size) ** (index // buffers) for index in indexes]
                expected *= torch.tensor(times, dtype=torch.float64, device=self.device)[:, None]
            found = torch.stack([outputs[index].reshape(-1) for index in indexes])
            wrong = ~(found.double() == expected).all(dim=1)
            if bool(wrong.any()):
                row = int(wrong.nonzero()[0])
                text = compare(found[row], expected[row], 0.0).text()
                where = f"all-reduce {indexes[row] + 1} of {len(outputs)} in the graph"
                raise WrongError(f"{where}: {tokens} tokens, exact integers: {text}")

    def _drifting_graph(self, tokens: int) -> None:
        """Capture a short graph in which each rank pauses at places of its own, replay it three times."""
        if self.path is None:
            return
        source = self.inputs[tokens]
        length = min(16, len(source))
        graph = torch.cuda.CUDAGraph()
        outputs = []
        with self.path.capturing(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for index in range(length):
                if self.skew.random() < 0.3:
                    torch.cuda._sleep(int(self.skew.uniform(20, _MAX_SKEW_US) * _CYCLES_PER_US))
                outputs.append(self.path.reduce(source[index]))
        for _ in range(3):
            serials = self._refill(source[:length])
            graph.replay()
            self._synchronize()
            self._verify_outputs(outputs, serials, tokens)

    def _timed_replays(self, tokens: int, replays: int, warmup: int) -> list[float]:
        source = self.inputs[tokens]
        fresh = source.clone()
        for _ in range(warmup):
            source.copy_(fresh)
            self._run_graph(tokens, "measure")
        if not self.on_gpu:
            samples = []
            for _ in range(replays):
                source.copy_(fresh)
                started = time.perf_counter()
                self._run_graph(tokens, "measure")
                samples.append((time.perf_counter() - started) * 1e6 / self.count)
            return _rounded(samples)
        events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(replays)
        ]
        # Everything is queued before anything is waited for, so that launches are never part of a sample.
        for begin, end in events:
            source.copy_(fresh)
            begin.record()
            self.graphs[tokens].replay()
            end.record()
        self._synchronize()
        return _rounded([begin.elapsed_time(end) * 1e3 / self.count for begin, end in events])

    def _timed_eager(self, tokens: int, calls: int) -> list[float]:
        source = self.inputs[tokens][0]
        fresh = source.clone()
        samples = []
        for _ in range(3):
            source.copy_(fresh)
            self._synchronize()
            started = time.perf_counter()
            for _ in range(calls):
                self._reduce(source, "measure")
            self._synchronize()
            samples.append((time.perf_counter() - started) * 1e6 / calls)
        return _rounded(samples)

    def _other_collectives(self) -> None:
        if self.job["path"] != "process-group":
            return
        value = torch.full((self.hidden,), float(self.rank + 1), dtype=torch.bfloat16, device=self.device)
        steps: list[tuple[str, Callable[[], torch.Tensor], float]] = [
            ("all-gather", lambda: self._gathered(value)[-1], float(self.world_size)),
            ("broadcast", lambda: self._broadcast(value), 1.0),
        ]
        if self.on_gpu:
            steps.append(("reduce-scatter", self._scattered, float(self.world_size)))
        for name, run, expected in steps:
            self.channel.at(f"{name}, which serving needs too")
            result = run()
            self._synchronize()
            difference = compare(result, torch.full_like(result, expected), 0.0)
            if difference.count:
                raise WrongError(f"{name}: {difference.text()}")

    def _gathered(self, value: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(value) for _ in range(self.world_size)]
        dist.all_gather(parts, value)
        return torch.stack(parts)

    def _broadcast(self, value: torch.Tensor) -> torch.Tensor:
        copy = value.clone()
        dist.broadcast(copy, src=0)
        return copy

    def _scattered(self) -> torch.Tensor:
        whole = torch.ones(self.world_size * self.hidden, dtype=torch.bfloat16, device=self.device)
        part = torch.empty(self.hidden, dtype=torch.bfloat16, device=self.device)
        dist.reduce_scatter_tensor(part, whole)
        return part


def _chunks(rows: int, numel: int) -> list[tuple[int, int]]:
    """Given rows of `numel` elements, return (first, end) of the rows that are handled at once."""
    each = max(1, _CHUNK_ELEMENTS // numel)
    return [(first, min(first + each, rows)) for first in range(0, rows, each)]


def _where(tokens: int, doing: str, late: int | None) -> str:
    return f"{tokens} tokens, {doing}" + ("" if late is None else f", rank {late} late")


def _rounded(samples: list[float]) -> list[float]:
    return [round(sample, 3) for sample in samples]
