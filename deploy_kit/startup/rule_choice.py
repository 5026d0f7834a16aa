"""Rules whose cause depends on where the exception came from: which phase, target or drafter, which path."""

from __future__ import annotations

import re
from collections.abc import Callable

from deploy_kit.startup.rule import Place, given_name, named_groups

DRAFT_FRAMES = re.compile(r"eagle|draft|speculative|/spec_|mtp|nextn", re.IGNORECASE)
CAPTURE_FRAMES = re.compile(r"cuda_graph|:capture\b|graph_runner|capture_", re.IGNORECASE)
KV_FRAMES = re.compile(
    r"memory_pool|kv_cache_config|:init_memory_pool|pool_configurator|token_to_kv|kv_pool|_create_buffers|alloc_kv",
    re.IGNORECASE,
)
LOAD_FRAMES = re.compile(
    r"load_model|weight_loader|weight_utils|model_loader|load_weights|create_weights|initialize_model"
    r"|process_weights_after_loading",
    re.IGNORECASE,
)
ARGUMENT_FRAMES = re.compile(r"server_args\.py:\S+\s*\Z|arg_groups/\S+\s*\Z", re.IGNORECASE)
SERVE_FRAMES = re.compile(r"event_loop|run_batch|process_batch", re.IGNORECASE)


def out_of_memory(place: Place, match: re.Match[str]) -> str:
    """Which out of memory it is: by the frames, then by the phase."""
    if CAPTURE_FRAMES.search(place.frames) or "capture" in match.string[:200].lower():
        return "oom-capture"
    if SERVE_FRAMES.search(place.frames) or place.ready:
        return "oom-serving"
    if KV_FRAMES.search(place.frames):
        return "oom-kv"
    if LOAD_FRAMES.search(place.frames):
        return "oom-load"
    return {
        "loading": "oom-load",
        "allocating": "oom-kv",
        "capturing": "oom-capture",
        "starting": "oom-load",
    }.get(place.phase, "oom-serving")


def is_draft(place: Place, match: re.Match[str]) -> bool:
    """Whether the exception is the drafter's."""
    return bool(
        place.drafting or DRAFT_FRAMES.search(place.frames) or DRAFT_FRAMES.search(match.string[:300])
    )


def draft_or(other: str) -> Callable[[Place, re.Match[str]], str]:
    """A choice: the drafter does not fit, or `other` for the target."""

    def choose(place: Place, match: re.Match[str]) -> str:
        return "drafter-mismatch" if is_draft(place, match) else other

    return choose


def inherited_or_mismatch(place: Place, match: re.Match[str]) -> str:
    """A plain `.weight` that the drafter's class does not know: a quantization taken over from the target
    renames its parameters; without one the drafter itself does not fit."""
    plain = re.search(r"KeyError: '[\w.]+\.weight'", match.string)
    return "quantization" if place.quantized and plain else "drafter-mismatch"


def missing_path(place: Place, match: re.Match[str]) -> str:
    """Whose file or folder is missing."""
    path = (named_groups(match).get("path") or given_name(match.string)).rstrip("/.")
    draft = (place.draft_path or "").rstrip("/")
    if draft and path and (path.startswith(draft) or draft.endswith(path)):
        return "drafter-missing"
    if path.endswith((".safetensors", ".bin")):
        return "weights-incomplete"
    return "drafter-missing" if is_draft(place, match) else "weights-missing"


def hub_or_path(place: Place, match: re.Match[str]) -> str:
    """A name that is a path is a missing folder, any other one the hub's."""
    path = named_groups(match).get("path") or given_name(match.string)
    if path.startswith(("/", ".", "~")):
        return missing_path(place, match)
    if place.draft_path and path and path == place.draft_path:
        return "drafter-missing"
    return "hub-offline"


def no_space(place: Place, match: re.Match[str]) -> str:
    """Shared memory or a disk."""
    shared = re.search(r"/dev/shm|shm_open|posix_fallocate|psm_|shared memory", match.string)  # noqa: S108
    return "shm-too-small" if shared and not place.ready else "disk-full"


def refused(place: Place, match: re.Match[str]) -> str:
    """A cache of ours, or the weights."""
    path = match.groupdict().get("path") or ""
    cached = re.search(
        r"cache|/tmp|triton|flashinfer|torchinductor|tvm|jit", path + place.frames[-600:], re.IGNORECASE
    )
    return "permission" if cached else "weights-unreadable"


def named_port(_place: Place, match: re.Match[str]) -> str:
    """The HTTP port or one of the engine's own."""
    internal = re.match(r"nccl|dist|detok|sched|metrics|zmq", match["name"])
    return "rendezvous-port-taken" if internal else "port-taken"


def rendezvous(place: Place, match: re.Match[str]) -> str:
    """The HTTP port or the rendezvous of the ranks."""
    http = re.search(r"http_server|uvicorn|launch_server", place.frames) and "DistNetwork" not in match.string
    return "port-taken" if http else "rendezvous-port-taken"
