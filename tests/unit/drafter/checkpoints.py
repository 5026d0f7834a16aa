"""Small checkpoints written by the safetensors library itself, so that our reader is checked against it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import TensorSpec, serialize

HIDDEN, VOCABULARY, DRAFT = 32, 96, 24
LLAMA_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "draft_vocab_size": DRAFT,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5], "use_aux_hidden_state": True},
}
TARGET_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "num_hidden_layers": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
# Draft vocabularies: every fourth token, and a shifted, partly overlapping, unsorted one.
EVERY_FOURTH = np.arange(0, VOCABULARY, 4, dtype=np.int64)
OTHER = np.concatenate([np.arange(48, VOCABULARY, 4), np.arange(1, 48, 4)]).astype(np.int64)

Array = NDArray[Any]


def bf16(values: Array) -> Array:
    """Return float32 values cut to BF16's two bytes (raw)."""
    return (np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


def save(path: Path, tensors: dict[str, tuple[str, Array]]) -> None:
    """Write {name: (library's dtype name, array)} with the safetensors library."""
    held = {name: (dtype, np.ascontiguousarray(values)) for name, (dtype, values) in tensors.items()}
    specs = {
        name: TensorSpec(
            dtype=dtype, shape=list(values.shape), data_ptr=values.ctypes.data, data_len=values.nbytes
        )
        for name, (dtype, values) in held.items()
    }
    path.write_bytes(bytes(serialize(specs, {"format": "pt"})))


def llama_tensors(targets: Array = EVERY_FOURTH, *, seed: int = 0) -> dict[str, tuple[str, Array]]:
    """Return a whole Llama-style drafter whose vocabulary is `targets`."""
    random = np.random.default_rng(seed)

    def weight(*shape: int) -> tuple[str, Array]:
        return "bfloat16", bf16(random.standard_normal(shape))

    tensors = {
        "fc.weight": weight(HIDDEN, 3 * HIDDEN),
        "midlayer.hidden_norm.weight": weight(HIDDEN),
        "midlayer.input_layernorm.weight": weight(HIDDEN),
        "midlayer.post_attention_layernorm.weight": weight(HIDDEN),
        "midlayer.self_attn.q_proj.weight": weight(32, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": weight(16, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": weight(16, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": weight(HIDDEN, 32),
        "midlayer.mlp.gate_proj.weight": weight(48, HIDDEN),
        "midlayer.mlp.up_proj.weight": weight(48, HIDDEN),
        "midlayer.mlp.down_proj.weight": weight(HIDDEN, 48),
        "norm.weight": weight(HIDDEN),
        "lm_head.weight": weight(targets.size, HIDDEN),
    }
    mask = np.zeros(VOCABULARY, dtype=np.bool_)
    mask[targets] = True
    tensors["d2t"] = ("int64", targets - np.arange(targets.size, dtype=np.int64))
    tensors["t2d"] = ("bool", mask)
    return tensors


def write_model(folder: Path, config: dict[str, Any] | None, tensors: dict[str, tuple[str, Array]]) -> Path:
    """Write config.json and model.safetensors into a new folder."""
    folder.mkdir(parents=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    save(folder / "model.safetensors", tensors)
    return folder


def write_drafter(folder: Path, targets: Array = EVERY_FOURTH, **changes: Any) -> Path:
    """Write a good Llama-style drafter, its config changed as asked."""
    config = {**LLAMA_CONFIG, "draft_vocab_size": int(targets.size), **changes}
    return write_model(folder, config, llama_tensors(targets))


def write_target(folder: Path, **changes: Any) -> Path:
    """Write a target: config.json and a head, enough for what the drafter commands read."""
    head = bf16(np.random.default_rng(7).standard_normal((VOCABULARY, HIDDEN)))
    return write_model(folder, {**TARGET_CONFIG, **changes}, {"lm_head.weight": ("bfloat16", head)})
