"""Turning configurations into SGLang flags: pure functions that return tuples of argv words."""

from __future__ import annotations

from collections.abc import Mapping

from deploy_kit.configs.schema import Drafter, Flags, Host, Model, Profile

FlagValue = bool | int | float | str | list[int | str]


def make_flags(flags: Mapping[str, FlagValue]) -> tuple[str, ...]:
    """Given flags without their dashes, return argv words, sorted by name.

    >>> make_flags({"tp-size": 8, "trust-remote-code": True, "enable-x": False})
    ('--tp-size', '8', '--trust-remote-code')
    """
    words: list[str] = []
    for name in sorted(flags):
        value = flags[name]
        if value is True:
            words.append(f"--{name}")
        elif isinstance(value, list):
            words += [f"--{name}", *(str(item) for item in value)]
        elif value is not False:
            words += [f"--{name}", str(value)]
    return tuple(words)


def make_model_flags(model: Model, host: Host) -> Flags:
    """Given a model and a host, return the flags that load it there."""
    return {
        "model-path": model.path,
        "served-model-name": model.served_name,
        "tp-size": host.tensor_parallel,
        **model.flags,
        **host.flags,
    }


def make_server_flags(*, address: str, port: int) -> Flags:
    """Given where to listen, return the flags every engine of ours has."""
    return {"host": address, "port": port, "enable-metrics": True}


def make_speculation_flags(profile: Profile, drafter: Drafter | None) -> Flags:
    """Given a profile and its drafter, return the speculation flags; none for plain decoding.

    >>> make_speculation_flags(ngram_with_8_draft_tokens, None)
    {'speculative-algorithm': 'NGRAM', 'speculative-num-draft-tokens': 8}
    """
    if profile.speculative_algorithm is None:
        return {}
    flags: Flags = {"speculative-algorithm": profile.speculative_algorithm}
    if profile.draft_tokens is not None:
        flags["speculative-num-draft-tokens"] = profile.draft_tokens
    if profile.steps is not None:
        flags["speculative-num-steps"] = profile.steps
    if profile.topk is not None:
        flags["speculative-eagle-topk"] = profile.topk
    if profile.adaptive:
        flags["speculative-adaptive"] = True
    if drafter is not None:
        flags["speculative-draft-model-path"] = drafter.path
        # Unless told, the drafter inherits both from the target (sglang#23490, #28196).
        if drafter.attention_backend is not None:
            flags["speculative-draft-attention-backend"] = drafter.attention_backend
        if drafter.quantization is not None:
            flags["speculative-draft-model-quantization"] = drafter.quantization
    return flags


def make_numa_flag(host: Host) -> list[int | str]:
    """Given a host, return the NUMA node of each rank: rank i runs on GPU i."""
    node_of = {gpu: node.node for node in host.numa for gpu in node.gpus}
    return [node_of.get(rank, 0) for rank in range(host.tensor_parallel)]
