"""Stand-ins for broken all-reduces, so that the harness's classification is tested with real processes.

Each says in its name what it is; none is ever part of a default search.
"""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass
from typing import Any

import torch

FAULTS = ("hang", "crash", "raise", "wrong", "wrong-in-graph", "stale", "late", "no-memory")


@dataclass
class Fault:
    """What goes wrong, on which rank, in which step ("any": in every step)."""

    kind: str
    rank: int
    step: str

    @classmethod
    def from_job(cls, value: dict[str, Any] | None, rank: int) -> Fault | None:
        """Given the job's fault, return it if it is this rank's."""
        if value is None or value["rank"] != rank:
            return None
        return cls(value["kind"], value["rank"], value["step"])

    def before(self, step: str) -> None:
        """Do what goes wrong before a collective of this step: hang, die, raise or be late."""
        if self.step not in ("any", step):
            return
        if self.kind == "hang":
            while True:
                time.sleep(60)
        if self.kind == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.kind == "raise":
            raise RuntimeError("stand-in fault: NCCL error: unhandled system error")
        if self.kind == "no-memory":
            raise torch.OutOfMemoryError("stand-in fault: CUDA out of memory")
        if self.kind == "late":
            # Late by up to a millisecond, as a rank may be: never an error.
            time.sleep(random.random() / 1000)  # noqa: S311

    def after(self, step: str, tensor: torch.Tensor, previous: torch.Tensor | None) -> None:
        """Do what goes wrong with a result: one element off, or the previous result in place of this one."""
        in_graph = step in ("replay", "measure")
        if self.kind == "wrong" or (self.kind == "wrong-in-graph" and in_graph):
            if self.step in ("any", step):
                flat = tensor.view(-1)
                flat[flat.numel() // 2] += 1
        elif self.kind == "stale" and in_graph and previous is not None and previous.shape == tensor.shape:
            # What a kernel without an end barrier does now and then: part of the last call's result.
            half = tensor.shape[-1] // 2
            tensor[..., half:] = previous[..., half:]


def stand_in_landscape_seconds(environment: dict[str, str]) -> float:
    """Return a made-up delay for each all-reduce from NCCL settings, so that a rehearsed search has something
    to find (gloo ignores the settings). Zero unless the stand-in is asked for by its variable."""
    if environment.get("DEPLOY_KIT_PROBE_STANDIN_LANDSCAPE") != "1":
        return 0.0
    protocol = {"LL": 0.5, "LL128": 0.8, "Simple": 1.5}.get(environment.get("NCCL_PROTO", ""), 1.0)
    channels = {"4": 0.7, "8": 0.35, "16": 0.8, "2": 1.4, "1": 2.0}.get(
        environment.get("NCCL_MIN_NCHANNELS", ""), 1.0
    )
    return 0.02 * protocol * channels
