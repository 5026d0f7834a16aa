"""How SGLang loads drafters, read from its published wheels 0.5.8 to 0.5.23 (0.5.19 was not read).

A feature's version is the first whose code has it. "Silent" features fail without an error in older versions.
"""

from __future__ import annotations

import re

LLAMA_EAGLE3 = "LlamaForCausalLMEagle3"
MLA_EAGLE3 = "Eagle3DeepseekV2ForCausalLM"
EAGLE3_CLASSES = (LLAMA_EAGLE3, MLA_EAGLE3)
OLDEST_READ, NEWEST_READ = "0.5.8", "0.5.23"

# First version that registers the class; None: already in the oldest read.
CLASS_SINCE: dict[str, str | None] = {
    LLAMA_EAGLE3: None,
    MLA_EAGLE3: "0.5.12",
    "LlamaForCausalLMEagle": None,
    "Qwen2ForCausalLMEagle": None,
    "MistralForCausalLMEagle": "0.5.11",
    "MistralLarge3ForCausalLMEagle": None,
    "DFlashDraftModel": "0.5.11",
    "DFlash2DraftModel": "0.5.20",
    "DSparkDraftModel": "0.5.17",
    "DeepseekV3ForCausalLMNextN": None,
}
MODEL_TYPE_SINCE = {"kimi_k2": "0.5.12"}
MLA_EAGLE31_SINCE = "0.5.13"  # fc_norm, norm_output in the MLA class (sglang#26506)
LLAMA_EAGLE31_SINCE = "0.5.12"  # the same in the Llama class (sglang#24663)
LLAMA_NORM_BEFORE_FC_SINCE = "0.5.17"
LLAMA_LAYER_NAMES_SINCE = "0.5.12"  # `layers.0.` names, several layers, another number of auxiliary layers
DEEPSEEK_CAPTURE_RULE_SINCE = "0.5.13"  # ids that do not start with 1 are taken as they are
KIMI_TARGET_SINCE = "0.5.10"  # capture hooks in KimiK25ForConditionalGeneration

# Attention backends that serve MLA models only; a Llama-style drafter that inherits one fails at start.
MLA_ONLY_BACKENDS = ("trtllm_mla", "cutlass_mla", "flashmla", "cutedsl_mla", "tokenspeed_mla")
# `--quantization` values that quantize plain weights at load; the others look for a config the drafter lacks.
ONLINE_QUANTIZATION = ("fp8", "mxfp8", "nvfp4_online", "w8a8_int8", "w8a8_fp8", "bitsandbytes", "torchao")
HIDDEN_DEFAULT_CONTEXT = {
    LLAMA_EAGLE3: 2048,
    MLA_EAGLE3: 4096,
}  # transformers' defaults of the two config classes


def version_key(version: str) -> tuple[int, ...]:
    """Return a version as numbers to compare: "0.5.12.post1" → (0, 5, 12, 1)."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:4])


def has_feature(version: str | None, since: str | None) -> bool | None:
    """Tell whether `version` has what came with `since`; None when the version is not known."""
    if since is None:
        return True
    if version is None:
        return None
    return version_key(version)[:3] >= version_key(since)[:3]


def is_deepseek_target(architecture: str | None) -> bool | None:
    """Tell whether the target's class counts captured layers as DeepSeek's does; None when not known."""
    if architecture is None:
        return None
    return architecture.startswith(("Deepseek", "KimiK25"))


def captured_layers(ids: list[int], *, deepseek: bool, version: str | None) -> list[int]:
    """Return the layers whose input SGLang captures for the drafter, given the config's ids.

    Llama-like targets take ids + 1. DeepSeek-like ones did so too before 0.5.13; since then only when
    the first id is 1.
    """
    plain = deepseek and has_feature(version, DEEPSEEK_CAPTURE_RULE_SINCE) is not False and ids[:1] != [1]
    return list(ids) if plain else [number + 1 for number in ids]


def default_layers(layers: int) -> list[int]:
    """Return the layers captured when the drafter's config names none."""
    return [2, layers // 2, layers - 3]
