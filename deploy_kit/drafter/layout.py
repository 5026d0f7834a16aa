"""The parameters SGLang's two EAGLE-3 classes build from a config, and what of a file ends up in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from deploy_kit.drafter.description import Listed, count
from deploy_kit.drafter.engine import (
    LLAMA_EAGLE3,
    LLAMA_LAYER_NAMES_SINCE,
    MLA_EAGLE3,
    has_feature,
)

# A norm that is not in the file keeps its initial ones; everything else keeps uninitialised memory.
_LEGACY_NAMES = (
    ("midlayer", "layers.0"),
    ("aux_norm_low", "fc_norm.0"),
    ("aux_norm_mid", "fc_norm.1"),
    ("aux_norm_high", "fc_norm.2"),
)


@dataclass(frozen=True)
class Parameter:
    """One weight as checkpoints name it. `shape` holds None where the config does not tell a size."""

    name: str
    shape: tuple[int | None, ...]
    required: bool = True

    @property
    def is_norm(self) -> bool:
        return "norm" in self.name


@dataclass(frozen=True)
class Load:
    """What loading a listing gives: wrong shapes, parameters left without a value, weights passed over."""

    mismatched: tuple[tuple[Parameter, Listed], ...]
    missing: tuple[Parameter, ...]
    skipped: tuple[Listed, ...]


def auxiliary_count(family: str, config: Mapping[str, Any], version: str | None) -> int:
    """Return how many captured layers make the width of `fc` in this class and version."""
    if family == LLAMA_EAGLE3 and has_feature(version, LLAMA_LAYER_NAMES_SINCE) is False:
        return 3
    explicit = count(config, "num_aux_hidden_states") if family == LLAMA_EAGLE3 else None
    inner = config.get("eagle_config")
    ids = inner.get("eagle_aux_hidden_state_layer_ids") if isinstance(inner, Mapping) else None
    if ids is None and family == MLA_EAGLE3:
        ids = config.get("eagle_aux_hidden_state_layer_ids")
    return explicit or (len(ids) if isinstance(ids, list) and ids else 3)


def wants_fc_norm(config: Mapping[str, Any]) -> bool:
    """Tell whether the config asks for a norm of each captured layer before `fc` (EAGLE-3.1)."""
    return bool(config.get("fc_norm") or config.get("use_aux_norm"))


def wants_input_norm(config: Mapping[str, Any]) -> bool:
    """Tell whether the config asks for one norm over all captured layers before `fc`."""
    inner = config.get("eagle_config")
    nested = inner.get("norm_before_fc") if isinstance(inner, Mapping) else None
    return bool(config.get("norm_before_fc") if nested is None else nested)


def expected_parameters(family: str, config: Mapping[str, Any], version: str | None) -> list[Parameter]:
    """Return what the class builds from `config`: names as published checkpoints spell them, shapes
    [out, in]."""
    hidden = count(config, "hidden_size")
    target_hidden = count(config, "target_hidden_size") or hidden
    aux = auxiliary_count(family, config, version)
    width = target_hidden * aux if target_hidden else None
    vocabulary = count(config, "vocab_size")
    head_rows = count(config, "draft_vocab_size") or vocabulary
    tied = bool(config.get("tie_word_embeddings"))
    borrowed = config.get("draft_vocab_size") is None
    own_embedding = target_hidden != hidden
    parameters = [
        Parameter("fc.weight", (hidden, width)),
        Parameter("norm.weight", (hidden,)),
        Parameter("embed_tokens.weight", (vocabulary, hidden), required=own_embedding),
    ]
    if config.get("bias"):
        parameters.append(Parameter("fc.bias", (hidden,)))
    if not tied:
        parameters.append(Parameter("lm_head.weight", (head_rows, hidden), required=not borrowed))
    if wants_fc_norm(config):
        parameters += [Parameter(f"fc_norm.{index}.weight", (target_hidden,)) for index in range(aux)]
    if wants_input_norm(config) and family == LLAMA_EAGLE3:
        parameters.append(Parameter("input_norm.weight", (width,)))
    layers = count(config, "num_hidden_layers") or 1
    for index in range(layers if family == LLAMA_EAGLE3 else 1):
        parameters += _layer(family, config, hidden, index)
    return parameters


def _layer(family: str, config: Mapping[str, Any], hidden: int | None, index: int) -> list[Parameter]:
    name = f"layers.{index}"
    inner = count(config, "intermediate_size")
    heads = count(config, "num_attention_heads")
    attention_in = None if hidden is None else 2 * hidden if index == 0 else hidden
    parameters = [
        Parameter(f"{name}.hidden_norm.weight", (hidden,)),
        Parameter(f"{name}.input_layernorm.weight", (hidden,), required=index == 0),
        Parameter(f"{name}.post_attention_layernorm.weight", (hidden,)),
        Parameter(f"{name}.mlp.gate_proj.weight", (inner, hidden)),
        Parameter(f"{name}.mlp.up_proj.weight", (inner, hidden)),
        Parameter(f"{name}.mlp.down_proj.weight", (hidden, inner)),
    ]
    if family == LLAMA_EAGLE3:
        head_size = count(config, "head_dim") or (hidden // heads if hidden and heads else None)
        kv_heads = count(config, "num_key_value_heads") or heads
        queries = heads * head_size if heads and head_size else None
        keys = kv_heads * head_size if kv_heads and head_size else None
        return [
            *parameters,
            Parameter(f"{name}.self_attn.q_proj.weight", (queries, attention_in)),
            Parameter(f"{name}.self_attn.k_proj.weight", (keys, attention_in)),
            Parameter(f"{name}.self_attn.v_proj.weight", (keys, attention_in)),
            Parameter(f"{name}.self_attn.o_proj.weight", (hidden, queries)),
        ]
    rank, kv_rank = count(config, "q_lora_rank"), count(config, "kv_lora_rank")
    nope, rope = count(config, "qk_nope_head_dim"), count(config, "qk_rope_head_dim")
    values = count(config, "v_head_dim")
    queries = heads * (nope + rope) if heads and nope and rope else None
    compressed = kv_rank + rope if kv_rank and rope else None
    keys_values = heads * (nope + values) if heads and nope and values else None
    return [
        *parameters,
        Parameter(f"{name}.self_attn.q_a_proj.weight", (rank, attention_in)),
        Parameter(f"{name}.self_attn.q_a_layernorm.weight", (rank,)),
        Parameter(f"{name}.self_attn.q_b_proj.weight", (queries, rank)),
        Parameter(f"{name}.self_attn.kv_a_proj_with_mqa.weight", (compressed, attention_in)),
        Parameter(f"{name}.self_attn.kv_a_layernorm.weight", (kv_rank,)),
        Parameter(f"{name}.self_attn.kv_b_proj.weight", (keys_values, kv_rank)),
        Parameter(f"{name}.self_attn.o_proj.weight", (hidden, heads * values if heads and values else None)),
    ]


def engine_name(family: str, name: str, version: str | None) -> str:
    """Return the parameter (in checkpoint spelling) that the class loads a file's weight into, or "" for
    none."""
    if family == MLA_EAGLE3:
        # `layers.0.` becomes `midlayer.`; everything but lm_head gets `model.` in front, so a name that
        # already
        # has it is not found.
        if name.startswith("model."):
            return ""
        return re.sub(r"^midlayer\.", "layers.0.", name)
    if has_feature(version, LLAMA_LAYER_NAMES_SINCE) is False:
        if re.match(r"(model\.)?(layers\.\d+|fc_norm)\.", name):
            return ""
        return re.sub(r"^(model\.)?midlayer\.", "layers.0.", name.removeprefix("model."))
    for legacy, new in _LEGACY_NAMES:
        name = name.replace(legacy, new)
    return name.removeprefix("model.")


def is_map(name: str) -> bool:
    """Tell whether a weight is one of the vocabulary maps."""
    return name in ("d2t", "t2d") or name.endswith((".d2t", ".t2d"))


def simulate_load(
    family: str, parameters: Iterable[Parameter], tensors: Mapping[str, Listed], version: str | None
) -> Load:
    """Return what the class's `load_weights` would do with the listing."""
    known = {parameter.name: parameter for parameter in parameters}
    filled: set[str] = set()
    mismatched: list[tuple[Parameter, Listed]] = []
    skipped: list[Listed] = []
    for tensor in tensors.values():
        if is_map(tensor.name):
            continue
        parameter = known.get(engine_name(family, tensor.name, version))
        if parameter is None:
            skipped.append(tensor)
            continue
        filled.add(parameter.name)
        if not _fits(parameter.shape, tensor.shape):
            mismatched.append((parameter, tensor))
    missing = [
        parameter for parameter in known.values() if parameter.required and parameter.name not in filled
    ]
    return Load(tuple(mismatched), tuple(missing), tuple(skipped))


def _fits(wanted: tuple[int | None, ...], found: tuple[int, ...]) -> bool:
    return len(wanted) == len(found) and all(
        want is None or want == have for want, have in zip(wanted, found, strict=True)
    )


def shape_text(shape: tuple[int | None, ...]) -> str:
    """Return a shape as people write it, with ? for a size that is not known."""
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
