"""What the target and the server's flags do to a drafter: quantization, attention backend, context,
algorithm."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from deploy_kit.drafter.description import Description, count, text_config, whole
from deploy_kit.drafter.engine import (
    HIDDEN_DEFAULT_CONTEXT,
    LLAMA_EAGLE3,
    MLA_EAGLE3,
    MLA_ONLY_BACKENDS,
    ONLINE_QUANTIZATION,
)
from deploy_kit.drafter.findings import WILL_NOT_ACCEPT, WILL_NOT_LOAD, Finding

_CONTEXT_KEYS = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)
_ALLOW_LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_ATTENTION_FLAGS = ("attention-backend", "decode-attention-backend", "prefill-attention-backend")
# Log lines (`accept len: 1.00`), metrics (`spec_accept_length{…} 1.0`), `acceptance length of 1.00`.
_ACCEPT_LENGTH = re.compile(
    r"accept(?:ance|ed)?[_ ]len(?:gth)?\b[^\n\d{]{0,16}(?:\{[^}\n]*\})?[^\n\d{]{0,4}(\d+(?:\.\d+)?)",
    re.IGNORECASE,
)
# Up to here an accept length is the bonus token alone.
_NOTHING_ACCEPTED = 1.05


def quantization_of(config: Mapping[str, Any] | None) -> str | None:
    """Return the quantization method that a config names (outer or text level), or None."""
    for level in (config or {}, text_config(config)):
        table = level.get("quantization_config") or level.get("compression_config")
        if isinstance(table, Mapping):
            return str(table.get("quant_method") or table.get("quant_algo") or "unnamed").lower()
    return None


def check_serving(known: Description, family: str) -> Iterator[Finding]:
    """Yield what serving this drafter with this target and these flags does."""
    yield from _algorithm(known)
    yield from _quantization(known, family)
    yield from _attention(known, family)
    yield from _context(known, family)
    yield from _parallel(known)
    yield from _steps(known)
    yield from _tree_backend(known, family)
    yield from _observed(known)


def _algorithm(known: Description) -> Iterator[Finding]:
    algorithm = known.flags.get("speculative-algorithm", known.flags.get("speculative-algo"))
    if algorithm is None:
        return
    name = algorithm.upper()
    if name in ("EAGLE", "NEXTN"):
        yield Finding(
            "algorithm",
            "reject",
            f"an EAGLE-3 drafter under --speculative-algorithm {algorithm}: no auxiliary layers are "
            "captured, fc is passed "
            "over, accept length is exactly 1.00",
            kind=WILL_NOT_ACCEPT,
            error="none (sgl-project/sglang#21272)",
            remedy="--speculative-algorithm EAGLE3",
            flags=("--speculative-algorithm EAGLE3",),
        )
    elif name != "EAGLE3":
        yield Finding(
            "algorithm",
            "reject",
            f"--speculative-algorithm {algorithm} does not take an EAGLE-3 drafter",
            kind=WILL_NOT_LOAD,
            remedy="--speculative-algorithm EAGLE3",
            flags=("--speculative-algorithm EAGLE3",),
        )
    elif (path := _draft_path(known)) is not None and path == known.flags.get(
        "model-path", known.flags.get("model")
    ):
        yield Finding(
            "draft-path",
            "reject",
            f"the draft model's path is the target's ({path}): the target itself is loaded as the draft",
            kind=WILL_NOT_LOAD,
            error="out of memory, or AttributeError: 'set_embed' / 'hot_token_id' (sglang#36528)",
            remedy="name the drafter's folder",
            flags=("--speculative-draft-model-path",),
        )
    elif path is None:
        yield Finding(
            "draft-path",
            "reject",
            "EAGLE3 without --speculative-draft-model-path: the target itself is loaded as the draft",
            kind=WILL_NOT_LOAD,
            error="out of memory, or AttributeError: 'set_embed' / 'hot_token_id' (sglang#36528)",
            remedy="name the drafter's folder",
            flags=("--speculative-draft-model-path",),
        )
    if "speculative-token-map" in known.flags and name == "EAGLE3":
        yield Finding(
            "token-map",
            "unknown",
            "--speculative-token-map is ignored under EAGLE3 (a warning in the log): the drafter's d2t "
            "counts",
        )


def _draft_path(known: Description) -> str | None:
    return known.flags.get("speculative-draft-model-path", known.flags.get("speculative-draft-model"))


def _quantization(known: Description, family: str) -> Iterator[Finding]:
    own, target = quantization_of(known.config), quantization_of(known.target)
    given = known.flags.get("quantization")
    told = known.flags.get("speculative-draft-model-quantization")
    flag = "--speculative-draft-model-quantization unquant"
    if own is not None:
        if family == MLA_EAGLE3 and "fp8" in own:
            yield Finding(
                "quantization",
                "warn",
                "a quantized MLA drafter: its class splits kv_b_proj in floating point only",
                kind=WILL_NOT_LOAD,
                error="NotImplementedError: Eagle3 MLA draft post_load_weights only supports float dtypes",
                remedy="leave kv_b_proj unquantized in the drafter, or use the BF16 drafter",
            )
        return
    if told is not None:
        if told == "unquant":
            yield Finding("quantization", "ok", "the drafter is told to be unquantized")
        return
    if given is not None and given not in ("unquant", "None"):
        online = given in ONLINE_QUANTIZATION and target != given
        yield Finding(
            "quantization",
            "warn" if online else "reject",
            f"the drafter inherits --quantization {given} though its weights are not quantized"
            + (": they are quantized while loading, which can cost acceptance" if online else ""),
            kind=WILL_NOT_ACCEPT if online else WILL_NOT_LOAD,
            error="" if online else f"ValueError: Cannot find the config file for {given} (sglang#28196)",
            remedy=flag,
            flags=(flag,),
        )
    elif target is not None:
        certain = known.sglang_version is not None
        yield Finding(
            "quantization",
            "ok" if certain else "warn",
            f"the target is quantized ({target}), the drafter is not: "
            + (
                "it inherits --quantization where that is given or set by the engine itself (SM100)"
                if certain
                else "a drafter inherits the target's quantization unless told otherwise (sglang#28196)"
            ),
            kind=None if certain else WILL_NOT_LOAD,
            error="" if certain else f"ValueError: Cannot find the config file for {target}",
            remedy=flag,
            flags=(flag,),
        )


def _attention(known: Description, family: str) -> Iterator[Finding]:
    told = known.flags.get("speculative-draft-attention-backend")
    given = [known.flags[name] for name in _ATTENTION_FLAGS if name in known.flags]
    inherited = next((name for name in given if name in MLA_ONLY_BACKENDS), None)
    if family == LLAMA_EAGLE3 and (told or inherited) in MLA_ONLY_BACKENDS:
        yield Finding(
            "attention-backend",
            "reject",
            f"a Llama-style drafter {'is given' if told else 'inherits'} the attention backend "
            f"{told or inherited}, which "
            "serves MLA models only",
            kind=WILL_NOT_LOAD,
            error=f"ValueError: {told or inherited} backend can only be used with MLA models. "
            "(sglang#20298, #23490)",
            remedy="--speculative-draft-attention-backend triton (or flashinfer)",
            flags=("--speculative-draft-attention-backend triton",),
        )
    elif given and not told:
        yield Finding(
            "attention-backend",
            "unknown",
            f"the drafter inherits the attention backend {given[0]}",
            flags=("--speculative-draft-attention-backend triton",),
        )


def context_of(config: Mapping[str, Any]) -> int | None:
    """Return the context length SGLang derives from a config, or None where it names none."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    factor: float = 1
    if isinstance(scaling, Mapping):
        factor = scaling.get("factor") or 1
        if "original_max_position_embeddings" in scaling or scaling.get("rope_type") == "llama3":
            factor = 1
    for key in _CONTEXT_KEYS:
        value = config.get(key)
        if type(value) is int:
            return int(value * factor) if isinstance(factor, (int, float)) else value
    return None


def _context(known: Description, family: str) -> Iterator[Finding]:
    config = known.config or {}
    target = text_config(known.target)
    given = known.flags.get("context-length", known.flags.get("max-model-len"))
    number = whole(given)
    wanted = context_of(target) if number is None else number
    own = context_of(config)
    missing = own is None
    if own is None:
        own = HIDDEN_DEFAULT_CONTEXT[family]
        if not known.from_files:
            yield Finding(
                "context",
                "unknown",
                f"max_position_embeddings was not given; left out of config.json it counts as {own}",
            )
            return
    if wanted is None:
        yield Finding("context", "unknown", f"the drafter's context is {own}; the target's was not given")
        return
    if own >= wanted:
        yield Finding("context", "ok", f"the drafter's context {own} covers the target's {wanted}")
        return
    allowed = known.environment.get(_ALLOW_LONGER, "").lower() in ("1", "true", "yes", "on")
    yield Finding(
        "context",
        "warn" if allowed else "reject",
        f"the drafter's context is {own}"
        + (" (no max_position_embeddings: the class's default)" if missing else "")
        + f", the target's {wanted}"
        + (
            ": beyond it the drafter guesses at positions it was not trained on, acceptance drops"
            if allowed
            else ""
        ),
        kind=WILL_NOT_ACCEPT if allowed else WILL_NOT_LOAD,
        error=""
        if allowed
        else f"ValueError: Warning: Target model's context_length ({wanted}) is greater than the "
        "derived context_length "
        f"({own}). (all versions read)",
        remedy=f"--context-length {own}; or {_ALLOW_LONGER}=1 (longer prompts are then drafted badly), "
        "or raise "
        "max_position_embeddings if it was trained so",
        flags=(f"--context-length {own}", f"{_ALLOW_LONGER}=1"),
    )


def _parallel(known: Description) -> Iterator[Finding]:
    given = known.flags.get("tp-size", known.flags.get("tensor-parallel-size", known.flags.get("tp")))
    size = known.tensor_parallel or whole(given)
    config = known.config or {}
    if not size or size < 2:
        return
    for key in ("num_attention_heads", "intermediate_size"):
        number = count(config, key)
        if number is not None and number % size:
            yield Finding(
                "tensor-parallel",
                "reject",
                f"{key} {number} cannot be divided among {size} GPUs",
                kind=WILL_NOT_LOAD,
                error=f"AssertionError: {number} is not divisible by {size}",
                remedy="a tensor-parallel size that divides it, or another drafter",
            )
    kv = count(config, "num_key_value_heads")
    if kv is not None and config.get("kv_lora_rank") is None and kv % size and size % kv:
        yield Finding(
            "tensor-parallel",
            "reject",
            f"num_key_value_heads {kv} and {size} GPUs do not divide each other",
            kind=WILL_NOT_LOAD,
            error="AssertionError while the drafter's attention is built",
            remedy="another tensor-parallel size, or another drafter",
        )


def _steps(known: Description) -> Iterator[Finding]:
    steps, topk, drafts = (
        whole(known.flags.get(f"speculative-{name}"))
        for name in ("num-steps", "eagle-topk", "num-draft-tokens")
    )
    if (
        steps is None
        and (topk is not None or drafts is not None)
        and "speculative-adaptive" not in known.flags
    ):
        yield Finding(
            "steps",
            "reject",
            "--speculative-eagle-topk or --speculative-num-draft-tokens without --speculative-num-steps",
            kind=WILL_NOT_LOAD,
            error="AssertionError while the flags are resolved",
            remedy="give all three, or none",
        )
    if topk == 1 and steps is not None and drafts is not None and drafts != steps + 1:
        yield Finding(
            "steps",
            "warn",
            f"top-k 1 with {steps} steps makes {steps + 1} draft tokens, not {drafts}: the engine "
            "changes it with a warning",
            remedy=f"--speculative-num-draft-tokens {steps + 1}",
            flags=(f"--speculative-num-draft-tokens {steps + 1}",),
        )
    if topk is not None and topk > 1 and steps is not None and drafts is not None:
        most = 1 + topk + (steps - 1) * topk * topk
        if drafts > most:
            yield Finding(
                "steps",
                "reject",
                f"{drafts} draft tokens cannot be chosen from a tree of {most} (top-k {topk}, {steps} steps)",
                kind=WILL_NOT_LOAD,
                remedy=f"--speculative-num-draft-tokens {most} or fewer",
            )


def _tree_backend(known: Description, family: str) -> Iterator[Finding]:
    topk = whole(known.flags.get("speculative-eagle-topk"))
    if topk is None or topk < 2:
        return
    backend = next((known.flags[name] for name in _ATTENTION_FLAGS if name in known.flags), None)
    drafts_with = known.flags.get("speculative-draft-attention-backend", backend)
    chains_only = (*MLA_ONLY_BACKENDS, "trtllm_mha")
    if backend in chains_only:
        error = "ValueError: … only supports topk = 1 for speculative decoding"
    elif family == MLA_EAGLE3 and drafts_with == "flashinfer":
        backend, error = drafts_with, "Currently Flashinfer MLA only supports topk=1 for speculative decoding"
    else:
        return
    yield Finding(
        "topk",
        "reject",
        f"top-k {topk} on attention backend {backend}, which drafts chains only"
        + ("" if backend in chains_only else " for a drafter with latent attention"),
        kind=WILL_NOT_LOAD,
        error=error,
        remedy="--speculative-eagle-topk 1, or --attention-backend triton",
        flags=("--speculative-eagle-topk 1",),
    )


def _observed(known: Description) -> Iterator[Finding]:
    found = (float(number) for number in _ACCEPT_LENGTH.findall(known.log))
    lengths = [length for length in found if length > 0]  # 0: nothing was decoded yet
    if lengths and max(lengths) <= _NOTHING_ACCEPTED:
        yield Finding(
            "observed",
            "reject",
            f"the log shows accept length {max(lengths):.2f}: nothing is accepted",
            kind=WILL_NOT_ACCEPT,
            remedy="see the other findings; where there are none, compare with a drafter known to be good",
        )
