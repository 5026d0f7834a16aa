"""An image's size by layer, as Docker reports it, so that two images can be compared."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from deploy_kit.stacks.local_image import ask_docker

# What makes each layer of our GPU image, by a part of the step's command.
OURS = (
    ("ca-certificates libgomp1", "Python, libnuma, libgomp"),
    ("--no-install-recommends g++", "g++, Python.h, patch"),
    ('layer.sh "$STACK" cuda', "lock group cuda"),
    ('layer.sh "$STACK" torch', "lock group torch"),
    ('layer.sh "$STACK" kernels', "lock group kernels"),
    ('layer.sh "$STACK" others', "lock group others"),
    ("--no-install-recommends numactl", "numactl"),
    ("COPY /opt/cuda", "CUDA home (links, driver stub)"),
    ("COPY /out/site", "compiled modules"),
    ("COPY /kit", "deploy_kit"),
    ("deploy-kit patches", "patch, assertions"),
)
SHOWN_CHARACTERS = 72


@dataclass(frozen=True)
class Layer:
    """One layer: what made it, and its bytes unpacked."""

    made_by: str
    size_bytes: int


def parse_history(text: str) -> list[Layer]:
    """Given `docker history --no-trunc --human=false --format {{json .}}`, return the layers that hold
    anything, the base first.

    >>> parse_history('{"CreatedBy": "RUN /bin/sh -c make # buildkit", "Size": "7"}')
    [Layer(made_by='make', size_bytes=7)]
    """
    steps = [json.loads(line) for line in text.splitlines() if line.strip()]
    layers = [Layer(describe(str(step["CreatedBy"])), int(step["Size"])) for step in reversed(steps)]
    return [layer for layer in layers if layer.size_bytes > 0]


def describe(command: str) -> str:
    """Given the command of a step, return in a few words what it does."""
    ours = next((words for part, words in OURS if part in command), None)
    if ours is not None:
        return ours
    bare = re.sub(r"\s*# buildkit$", "", command)
    bare = re.sub(r"^(?:RUN )?(?:\|\d+ .*? )?/bin/(?:ba)?sh (?:-o pipefail )?-\w+ (?:#\(nop\) )?", "", bare)
    words = " ".join(bare.split()) or "base"
    return words if len(words) <= SHOWN_CHARACTERS else words[: SHOWN_CHARACTERS - 1] + "…"


def read_layers(image: str) -> list[Layer]:
    """Return a local image's layers; a `DeployKitError` when there is no such image or no Docker."""
    words = ("history", "--no-trunc", "--human=false", "--format", "{{json .}}", image)
    return parse_history(ask_docker(words, failure="the image has no history here", key="IMAGE"))


def total_bytes(layers: Iterable[Layer]) -> int:
    """Return an image's size unpacked."""
    return sum(layer.size_bytes for layer in layers)
