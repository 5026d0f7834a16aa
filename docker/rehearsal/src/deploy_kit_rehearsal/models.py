"""The rehearsal models: configurations and weights made so that speech and acceptance are known beforehand.

Target: every token's embedding is a single 1 at the place of its successor, attention and feed-forward
outputs are zero, and the head reads that place: the next token depends on the current one only. Attention and
experts are still computed, with arbitrary weights; only their last projection is zero.

Drafter (EAGLE-3): its one layer attends, by codes of the token's successor, to positions that hold the same
code, so the attention's output is the current token's embedding, whatever came before; the head reads the
successor's place. A token that is never to be drafted has its head row turned away, and the row of the
circle's next token says its place instead.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from deploy_kit_rehearsal.expect import Speech
from deploy_kit_rehearsal.tensors import Weights, arbitrary, signs
from deploy_kit_rehearsal.vocabulary import END, Vocabulary

HIDDEN_SIZE = 256
LAYERS = 6
HEADS = 4
HEAD_SIZE = HIDDEN_SIZE // HEADS
MAX_POSITIONS = 4096
# Target layers whose outputs the drafter reads (0-based; each + 1 must stay below LAYERS).
AUXILIARY_LAYERS = (1, 2, 4)
# Score of a position with the same code in the drafter's attention, against about ±half of it elsewhere.
SAME_CODE_SCORE = 60.0
# How much the drafter's attention output outweighs what its residual stream carries over from earlier steps.
ATTENTION_GAIN = 64.0
# Rows of a pruned drafter vocabulary: the tokens that can be said, and some more.
DRAFT_VOCABULARY = 192


@dataclass(frozen=True)
class Places:
    """For every token that can be said, its place (0 …) in the hidden state."""

    of: dict[int, int]

    @classmethod
    def for_speech(cls, speech: Speech) -> "Places":
        said = (*speech.circle, speech.opening)
        if len(said) > HIDDEN_SIZE:
            raise ValueError(f"{len(said)} tokens to say do not fit a hidden state of {HIDDEN_SIZE}")
        return cls({token: place for place, token in enumerate(said)})


def _embedding(vocabulary: Vocabulary, places: Places) -> np.ndarray[Any, np.dtype[np.float32]]:
    """One row a token: 1 at its successor's place. Rows past the tokenizer's tokens stay zero; they are never
    read."""
    table = np.zeros((vocabulary.size, HIDDEN_SIZE), np.float32)
    for token in range(vocabulary.tokenizer.get_vocab_size(with_added_tokens=True)):
        table[token, places.of[vocabulary.speech.successor(token)]] = 1.0
    return table


def _head(rows: int, places: Places) -> np.ndarray[Any, np.dtype[np.float32]]:
    table = np.zeros((rows, HIDDEN_SIZE), np.float32)
    for token, place in places.of.items():
        table[token, place] = 1.0
    return table


def _ones(size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.ones(size, np.float32)


def _zeros(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.zeros(shape, np.float32)


def _feed_forward(prefix: str, width: int) -> Weights:
    return {
        f"{prefix}.gate_proj.weight": arbitrary(f"{prefix}.gate", width, HIDDEN_SIZE, scale=0.02),
        f"{prefix}.up_proj.weight": arbitrary(f"{prefix}.up", width, HIDDEN_SIZE, scale=0.02),
        f"{prefix}.down_proj.weight": _zeros(HIDDEN_SIZE, width),
    }


def _common_config(vocabulary: Vocabulary) -> dict[str, Any]:
    tokenizer = vocabulary.tokenizer
    return {
        "hidden_size": HIDDEN_SIZE,
        "num_attention_heads": HEADS,
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "vocab_size": vocabulary.size,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": tokenizer.token_to_id("<|begin|>"),
        "eos_token_id": tokenizer.token_to_id(END),
        "pad_token_id": tokenizer.token_to_id(END),
    }


def llama_target(vocabulary: Vocabulary) -> tuple[dict[str, Any], Weights]:
    """Return configuration and weights of the default target, a small Llama."""
    kv_heads, width = 2, 256
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **_common_config(vocabulary),
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": kv_heads,
        "head_dim": HEAD_SIZE,
        "intermediate_size": width,
        "rope_theta": 10000.0,
    }
    places = Places.for_speech(vocabulary.speech)
    weights: Weights = {
        "model.embed_tokens.weight": _embedding(vocabulary, places),
        "model.norm.weight": _ones(HIDDEN_SIZE),
        "lm_head.weight": _head(vocabulary.size, places),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        weights |= {
            f"{name}.input_layernorm.weight": _ones(HIDDEN_SIZE),
            f"{name}.post_attention_layernorm.weight": _ones(HIDDEN_SIZE),
            f"{name}.self_attn.q_proj.weight": arbitrary(
                f"{name}.q", HEADS * HEAD_SIZE, HIDDEN_SIZE, scale=0.05
            ),
            f"{name}.self_attn.k_proj.weight": arbitrary(
                f"{name}.k", kv_heads * HEAD_SIZE, HIDDEN_SIZE, scale=0.05
            ),
            f"{name}.self_attn.v_proj.weight": arbitrary(
                f"{name}.v", kv_heads * HEAD_SIZE, HIDDEN_SIZE, scale=0.05
            ),
            f"{name}.self_attn.o_proj.weight": _zeros(HIDDEN_SIZE, HEADS * HEAD_SIZE),
            **_feed_forward(f"{name}.mlp", width),
        }
    return config, weights


def deepseek_target(vocabulary: Vocabulary) -> tuple[dict[str, Any], Weights]:
    """Return configuration and weights of the MLA twin: DeepSeek-V3's (so Kimi-K2.5's) attention and experts,
    small.

    It says the same as the Llama-like target, and the same drafters fit it.
    """
    latent, query_latent, plain, rotary, value = 64, 96, 32, 16, 32
    width, expert_width, experts = 256, 64, 8
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        **_common_config(vocabulary),
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": HEADS,
        "intermediate_size": width,
        "moe_intermediate_size": expert_width,
        "q_lora_rank": query_latent,
        "kv_lora_rank": latent,
        "qk_nope_head_dim": plain,
        "qk_rope_head_dim": rotary,
        "v_head_dim": value,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_routed_experts": experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 0,
        "rope_theta": 10000.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": MAX_POSITIONS // 2,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    }
    places = Places.for_speech(vocabulary.speech)
    weights: Weights = {
        "model.embed_tokens.weight": _embedding(vocabulary, places),
        "model.norm.weight": _ones(HIDDEN_SIZE),
        "lm_head.weight": _head(vocabulary.size, places),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        attention = f"{name}.self_attn"
        shapes = {
            "q_a_proj": (query_latent, HIDDEN_SIZE),
            "q_b_proj": (HEADS * (plain + rotary), query_latent),
            "kv_a_proj_with_mqa": (latent + rotary, HIDDEN_SIZE),
            "kv_b_proj": (HEADS * (plain + value), latent),
        }
        weights |= {
            f"{name}.input_layernorm.weight": _ones(HIDDEN_SIZE),
            f"{name}.post_attention_layernorm.weight": _ones(HIDDEN_SIZE),
            f"{attention}.q_a_layernorm.weight": _ones(query_latent),
            f"{attention}.kv_a_layernorm.weight": _ones(latent),
            f"{attention}.o_proj.weight": _zeros(HIDDEN_SIZE, HEADS * value),
            **{
                f"{attention}.{part}.weight": arbitrary(f"{attention}.{part}", *shape, scale=0.05)
                for part, shape in shapes.items()
            },
        }
        if layer == 0:
            weights |= _feed_forward(f"{name}.mlp", width)
            continue
        weights[f"{name}.mlp.gate.weight"] = arbitrary(f"{name}.gate", experts, HIDDEN_SIZE, scale=0.05)
        weights[f"{name}.mlp.gate.e_score_correction_bias"] = _zeros(experts)
        for expert in range(experts):
            weights |= _feed_forward(f"{name}.mlp.experts.{expert}", expert_width)
        weights |= _feed_forward(f"{name}.mlp.shared_experts", expert_width)
    return config, weights


def draft_tokens(vocabulary: Vocabulary) -> list[int]:
    """Return the target tokens of a pruned drafter vocabulary, ascending: all that can be said, and the
    lowest others."""
    said = {*vocabulary.speech.circle, vocabulary.speech.opening}
    others = (token for token in range(vocabulary.size) if token not in said)
    return sorted(said | {next(others) for _ in range(DRAFT_VOCABULARY - len(said))})


def _draft_head(
    targets: list[int], speech: Speech, places: Places, never_drafted: Collection[int]
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """One row a draft token, for target tokens `targets`."""
    table = np.zeros((len(targets), HIDDEN_SIZE), np.float32)
    row_of = {token: row for row, token in enumerate(targets)}
    for token, place in places.of.items():
        if token in never_drafted:
            table[row_of[token], place] = -1.0
            table[row_of[speech.successor(token)], place] = 1.0
        else:
            table[row_of[token], place] = 1.0
    return table


def eagle3_drafter(
    vocabulary: Vocabulary, never_drafted: Collection[int], *, pruned: bool = True, wrong_map: bool = False
) -> tuple[dict[str, Any], Weights]:
    """Return configuration and weights of an EAGLE-3 drafter for the targets here.

    never_drafted: tokens that it names wrongly wherever they are next. pruned: a vocabulary of its own,
    mapped by `d2t` (offsets: target id = d2t[i] + i), else the target's. wrong_map: the head is right
    everywhere and `d2t` is wrong at the never drafted tokens instead, as with the drafter of a sister model.
    """
    width = 256
    speech, places = vocabulary.speech, Places.for_speech(vocabulary.speech)
    targets = draft_tokens(vocabulary) if pruned else list(range(vocabulary.size))
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **_common_config(vocabulary),
        "num_hidden_layers": 1,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_SIZE,
        "intermediate_size": width,
        "rope_theta": 10000.0,
        "draft_vocab_size": len(targets),
        "target_hidden_size": HIDDEN_SIZE,
        # The next draft step reads the normed output, so that what is carried over does not grow step by
        # step.
        "norm_output": True,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(AUXILIARY_LAYERS),
            "use_aux_hidden_state": True,
        },
    }

    # Queries and keys are the successor's code, values its place; every head has the same codes and a quarter
    # of the places. A normed embedding is sqrt(hidden) at one place, so a score of two equal codes is (gain
    # ** 2) * hidden / sqrt(head size).
    gain = np.float32(np.sqrt(SAME_CODE_SCORE * np.sqrt(HEAD_SIZE) / HIDDEN_SIZE))
    codes = np.tile((signs("drafter.codes", HIDDEN_SIZE, HEAD_SIZE) * gain).T, (HEADS, 1))
    nothing = _zeros(HIDDEN_SIZE, HIDDEN_SIZE)
    identity = np.eye(HIDDEN_SIZE, dtype=np.float32)
    average = np.concatenate([identity / np.float32(len(AUXILIARY_LAYERS))] * len(AUXILIARY_LAYERS), axis=1)
    weights: Weights = {
        "fc.weight": average,
        "norm.weight": _ones(HIDDEN_SIZE),
        "midlayer.hidden_norm.weight": _ones(HIDDEN_SIZE),
        "midlayer.input_layernorm.weight": _ones(HIDDEN_SIZE),
        "midlayer.post_attention_layernorm.weight": _ones(HIDDEN_SIZE),
        "midlayer.self_attn.q_proj.weight": np.concatenate([codes, nothing], axis=1),
        "midlayer.self_attn.k_proj.weight": np.concatenate([codes, nothing], axis=1),
        "midlayer.self_attn.v_proj.weight": np.concatenate([identity, nothing], axis=1),
        "midlayer.self_attn.o_proj.weight": identity * np.float32(ATTENTION_GAIN),
        **_feed_forward("midlayer.mlp", width),
        "lm_head.weight": _draft_head(targets, speech, places, () if wrong_map else never_drafted),
    }
    if pruned:
        mapped = list(targets)
        if wrong_map:
            wrong = [row for row, token in enumerate(targets) if token in never_drafted]
            for row, token in zip(wrong, [targets[row] for row in wrong[1:] + wrong[:1]], strict=True):
                mapped[row] = token
        weights["d2t"] = np.array(mapped, dtype=np.int64) - np.arange(len(mapped), dtype=np.int64)
        known = np.zeros(vocabulary.size, dtype=np.bool_)
        known[mapped] = True
        weights["t2d"] = known
    return config, weights
