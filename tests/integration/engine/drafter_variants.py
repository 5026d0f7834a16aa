"""Drafters made from one good rehearsal drafter by one change each, and its twin with latent attention.

A change takes and returns a config and the tensors (name, safetensors dtype, shape, bytes).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from deploy_kit.drafter.weights_file import header_bytes, read_array, read_weights

Item = tuple[str, str, tuple[int, ...], bytes]
Config = dict[str, Any]
Change = Callable[[Config, list[Item]], tuple[Config, list[Item]]]

# The twin's sizes: latents as wide as the hidden state, so that they carry it whole.
_HEADS, _PLAIN, _ROTARY, _VALUE, _HIDDEN = 4, 64, 32, 64, 256
_ONE_BF16 = 0x3F80


def write(folder: Path, config: Config, items: list[Item]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    layout = [(name, dtype, shape, len(data)) for name, dtype, shape, data in items]
    data = b"".join(piece for *_, piece in items)
    (folder / "model.safetensors").write_bytes(header_bytes(layout, {"format": "pt"}) + data)
    return folder


def read(folder: Path) -> tuple[Config, list[Item]]:
    tensors = read_weights(folder).tensors.values()
    items = [(t.name, t.dtype, t.shape, read_array(t).tobytes()) for t in tensors]
    return json.loads((folder / "config.json").read_text()), items


def keys(**changes: Any) -> Change:
    return lambda config, items: ({**config, **changes}, items)


def without_key(key: str) -> Change:
    return lambda config, items: ({name: value for name, value in config.items() if name != key}, items)


def without(ending: str) -> Change:
    return lambda config, items: (config, [item for item in items if not item[0].endswith(ending)])


def renamed(old: str, new: str) -> Change:
    return lambda config, items: (config, [(name.replace(old, new), *rest) for name, *rest in items])


def replaced(name: str, dtype: str, values: np.ndarray[Any, Any]) -> Change:
    """The tensor of that name with other values, given in the dtype's own bytes."""
    new = (name, dtype, values.shape, np.ascontiguousarray(values).tobytes())
    return lambda config, items: (config, [new if item[0] == name else item for item in items])


def both(first: Change, second: Change) -> Change:
    return lambda config, items: second(*first(config, items))


def layers(*ids: int) -> Change:
    return keys(eagle_config={"eagle_aux_hidden_state_layer_ids": list(ids), "use_aux_hidden_state": True})


def with_map(values: np.ndarray[Any, Any]) -> Change:
    """d2t with these values, as int64."""
    return replaced("d2t", "I64", values.astype("<i8"))


def raw(items: list[Item], name: str) -> np.ndarray[Any, Any]:
    """A BF16 tensor's raw two bytes, in its shape."""
    _, _, shape, data = next(item for item in items if item[0] == name)
    return np.frombuffer(data, dtype="<u2").reshape(shape)


def narrow_fc(config: Config, items: list[Item]) -> tuple[Config, list[Item]]:
    fc = raw(items, "fc.weight")
    return replaced("fc.weight", "BF16", fc[:, : fc.shape[1] * 2 // 3])(config, items)


def other_width(config: Config, items: list[Item]) -> tuple[Config, list[Item]]:
    """Made for a target half as wide: fc takes half, the embedding is its own."""
    fc = raw(items, "fc.weight")
    embedding = np.zeros((config["vocab_size"], config["hidden_size"]), dtype="<u2")
    made = replaced("fc.weight", "BF16", fc[:, : fc.shape[1] // 2])(config, items)[1]
    return (
        {**config, "target_hidden_size": config["hidden_size"] // 2},
        [*made, ("embed_tokens.weight", "BF16", embedding.shape, embedding.tobytes())],
    )


def reads_hidden_states(config: Config, items: list[Item]) -> tuple[Config, list[Item]]:
    """Draws on the captured layers alone: its attention says nothing, and fc moves each place on by one.

    A captured layer holds the place of the token that is fed in beside it, so the place moved on is that of
    the token to draft: the first draft is right. A later step gets the drafter's own output, which passes fc
    by, and names the same token again: accept length 2. Without captured layers (one hidden state, fc passed
    by) the first draft is the token just said: 1. It holds up to the circle's last word, where places end.
    """
    fc = raw(items, "fc.weight")
    silent = np.zeros_like(raw(items, "midlayer.self_attn.o_proj.weight"))
    config, items = replaced("fc.weight", "BF16", np.roll(fc, 1, axis=0))(config, items)
    return replaced("midlayer.self_attn.o_proj.weight", "BF16", silent)(config, items)


def eagle1(config: Config, items: list[Item]) -> tuple[Config, list[Item]]:
    """An EAGLE-1/2 head: fc over two hidden states, attention over one, a plain class."""
    fc = raw(items, "fc.weight")
    made = replaced("fc.weight", "BF16", fc[:, : fc.shape[1] * 2 // 3])(config, items)[1]
    for part in "qkv":
        name = f"midlayer.self_attn.{part}_proj.weight"
        weight = raw(made, name)
        made = replaced(name, "BF16", weight[:, : weight.shape[1] // 2])(config, made)[1]
    made = [item for item in made if item[0] not in ("lm_head.weight", "d2t", "t2d")]
    plain = {key: value for key, value in config.items() if key not in ("draft_vocab_size", "eagle_config")}
    return {**plain, "architectures": ["LlamaForCausalLM"]}, renamed("midlayer.", "layers.0.")(plain, made)[1]


def speculators(config: Config, items: list[Item]) -> tuple[Config, list[Item]]:
    return {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": config["draft_vocab_size"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": {key: value for key, value in config.items() if key != "architectures"},
    }, items


def mla_twin(config: Config, items: list[Item]) -> tuple[Config, list[Item]]:
    """The same drafter with latent attention (`Eagle3DeepseekV2ForCausalLM`): it drafts the same tokens.

    Both latents are the normed embedding itself, so queries and keys are the same codes and values the
    same places as in the Llama-style one; the rotary parts are zero.
    """
    attention = "midlayer.self_attn"
    codes = raw(items, f"{attention}.q_proj.weight")[:_PLAIN, :_HIDDEN]
    identity = np.zeros((_HIDDEN, _HIDDEN), dtype="<u2")
    np.fill_diagonal(identity, _ONE_BF16)
    nothing = np.zeros_like(identity)
    ones = np.full(_HIDDEN, _ONE_BF16, dtype="<u2")
    turned = np.zeros((_ROTARY, _HIDDEN), dtype="<u2")
    latent = np.concatenate([identity, nothing], axis=1)
    made = {
        "q_a_proj": latent,
        "q_a_layernorm": ones,
        "q_b_proj": np.concatenate([np.concatenate([codes, turned])] * _HEADS),
        "kv_a_proj_with_mqa": np.concatenate([latent, np.concatenate([turned, turned], axis=1)]),
        "kv_a_layernorm": ones,
        "kv_b_proj": np.concatenate(
            [
                part
                for head in range(_HEADS)
                for part in (codes, identity[head * _VALUE : (head + 1) * _VALUE])
            ]
        ),
    }
    kept = [item for item in items if not item[0].startswith(attention) or "o_proj" in item[0]]
    new: list[Item] = [
        (f"{attention}.{name}.weight", "BF16", value.shape, value.tobytes()) for name, value in made.items()
    ]
    new_config = {
        **{key: value for key, value in config.items() if key not in ("head_dim", "num_key_value_heads")},
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "kimi_k2",
        "num_key_value_heads": _HEADS,
        "q_lora_rank": _HIDDEN,
        "kv_lora_rank": _HIDDEN,
        "qk_nope_head_dim": _PLAIN,
        "qk_rope_head_dim": _ROTARY,
        "v_head_dim": _VALUE,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "mscale_all_dim": 1.0,
        },
    }
    return new_config, renamed("midlayer.", "layers.0.")(new_config, kept + new)[1]


def borrowing(config: Config, items: list[Item]) -> tuple[Config, list[Item]]:
    """No head and no map of its own: draft_vocab_size null borrows the target's head."""
    left = [item for item in items if item[0] not in ("lm_head.weight", "d2t", "t2d")]
    return {**config, "draft_vocab_size": None}, left
