"""What kind of drafter this is, and whether the engine's EAGLE-3 path has a class for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deploy_kit.drafter.description import Description, Listed, count, text_config
from deploy_kit.drafter.engine import (
    CLASS_SINCE,
    EAGLE3_CLASSES,
    LLAMA_EAGLE3,
    MLA_EAGLE3,
    MODEL_TYPE_SINCE,
    NEWEST_READ,
    OLDEST_READ,
    has_feature,
)
from deploy_kit.drafter.findings import WILL_NOT_ACCEPT, WILL_NOT_LOAD, Finding

_NO_MODEL_TYPE = "ValueError: Unrecognized model … Should have a `model_type` key in its config.json"
# More layers than any EAGLE-3 drafter has: a whole language model.
_WHOLE_MODEL_LAYERS = 8


def architecture_of(config: Mapping[str, Any] | None) -> str | None:
    """Return the first architecture that a config names."""
    names = (config or {}).get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


def find_shape(tensors: Mapping[str, Listed] | None, ending: str) -> tuple[int, ...] | None:
    """Return the shape of the first tensor whose name ends so."""
    for tensor in (tensors or {}).values():
        if tensor.name.endswith(ending):
            return tensor.shape
    return None


def inner_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the drafter's sizes wherever they are: the outer fields, or speculators'
    transformer_layer_config."""
    inner = config.get("transformer_layer_config")
    return {**inner, **config} if isinstance(inner, Mapping) else dict(config)


def check_identity(known: Description) -> Iterator[Finding]:
    """Yield what kind of checkpoint this is; at most one reject, since the first one makes the rest
    meaningless."""
    config, tensors = known.config, known.tensors
    if config is None:
        yield Finding(
            "config",
            "unknown",
            "no draft config.json was given",
            essential=True,
            remedy="give the drafter's config.json",
        )
        return
    architecture = architecture_of(config)
    other = _other_kind(known, config, architecture, tensors)
    if other is not None:
        yield other
        return
    if architecture is None:
        yield Finding(
            "architecture",
            "reject" if known.config_complete else "unknown",
            "config.json names no architecture",
            kind=WILL_NOT_LOAD,
            essential=True,
            error="TypeError: 'NoneType' object is not subscriptable (while the draft's config is read)",
            remedy='set "architectures" to the class the drafter was trained for: '
            f"{' or '.join(EAGLE3_CLASSES)}",
        )
        return
    if architecture not in EAGLE3_CLASSES:
        yield _unknown_class(architecture, tensors)
        return
    yield from _class_and_version(known, config, architecture)


def _other_kind(
    known: Description,
    config: Mapping[str, Any],
    architecture: str | None,
    tensors: Mapping[str, Listed] | None,
) -> Finding | None:
    names = tuple(tensors or {})
    if known.same_checkpoint_as_target or _is_target(known, config, architecture):
        return Finding(
            "target-as-drafter",
            "reject",
            f"this is a target model ({architecture}, {count(text_config(config), 'num_hidden_layers')} "
            "layers), "
            "not a drafter: the target would be loaded a second time as its own draft",
            kind=WILL_NOT_LOAD,
            error="out of memory while the second copy loads, or AttributeError: no attribute 'set_embed' / "
            "'hot_token_id' (sglang#36528)",
            remedy="give the EAGLE-3 drafter's folder as --speculative-draft-model-path",
            flags=("--speculative-draft-model-path",),
        )
    if (
        config.get("speculators_config")
        or config.get("speculators_model_type")
        or config.get("speculators_version")
    ):
        return _speculators(config, architecture)
    if (
        "medusa" in (architecture or "").lower()
        or str(config.get("model_type")).lower() == "medusa"
        or any(name.startswith("medusa_head") for name in names)
        or "medusa_num_heads" in config
    ):
        return Finding(
            "medusa",
            "reject",
            "Medusa heads, not an EAGLE-3 drafter: SGLang has no class for them",
            kind=WILL_NOT_LOAD,
            error=_not_supported(architecture or "Medusa") if config.get("model_type") else _NO_MODEL_TYPE,
            remedy="use an EAGLE-3 drafter made for this target",
        )
    if (architecture or "").startswith(("DFlash", "DSpark")) or "dflash_config" in config:
        return Finding(
            "dflash",
            "reject",
            f"a {'DSpark' if 'DSpark' in (architecture or '') else 'DFlash'} block drafter, not an "
            "EAGLE-3 drafter",
            kind=WILL_NOT_LOAD,
            error="AttributeError: the class has no EAGLE-3 hooks (`hot_token_id`)",
            remedy="serve it with --speculative-algorithm DFLASH (or DSPARK), in a version that has it "
            f"(DFlashDraftModel since {CLASS_SINCE['DFlashDraftModel']}), or use an EAGLE-3 drafter",
        )
    endings = ("eh_proj.weight", "enorm.weight", "hnorm.weight")
    if (architecture or "").endswith(("NextN", "MTP")) or sum(
        any(name.endswith(ending) for name in names) for ending in endings
    ) >= 2:
        return Finding(
            "nextn",
            "reject",
            "a multi-token-prediction (MTP / NextN) layer, not an EAGLE-3 drafter: it reads one hidden state "
            "(eh_proj), and its class has no d2t and captures no auxiliary layers",
            kind=WILL_NOT_LOAD,
            error="AttributeError: no attribute 'hot_token_id'",
            remedy="use it with --speculative-algorithm EAGLE (NEXTN), not EAGLE3",
        )
    return _eagle1(config, architecture, tensors)


def _is_target(known: Description, config: Mapping[str, Any], architecture: str | None) -> bool:
    if architecture in EAGLE3_CLASSES:
        return False
    own, target = text_config(config), text_config(known.target)
    layers = count(own, "num_hidden_layers")
    has_fc = find_shape(known.tensors, "fc.weight") is not None
    if has_fc or layers is None:
        return False
    same = architecture is not None and architecture == architecture_of(known.target)
    return layers >= _WHOLE_MODEL_LAYERS and (
        same or layers == count(target, "num_hidden_layers") or "fc.weight" not in (known.tensors or {})
    )


def _speculators(config: Mapping[str, Any], architecture: str | None) -> Finding:
    nested = isinstance(config.get("transformer_layer_config"), Mapping)
    return Finding(
        "speculators-format",
        "reject",
        f"speculators layout ({architecture or 'no architecture'}): "
        + ("sizes are inside transformer_layer_config; " if nested else "")
        + "no SGLang version read registers this architecture or converts the layout",
        kind=WILL_NOT_LOAD,
        error=f"{_NO_MODEL_TYPE} (no model_type outside); with one: "
        f"{_not_supported(architecture or 'Eagle3DraftModel')}. Read in {OLDEST_READ} to {NEWEST_READ}",
        remedy="convert config and names (sizes to the top level, architecture "
        f"{LLAMA_EAGLE3}, eagle_config.eagle_aux_hidden_state_layer_ids), or use an engine that reads the "
        "speculators format; then re-check with the pinned version",
    )


def _eagle1(
    config: Mapping[str, Any], architecture: str | None, tensors: Mapping[str, Listed] | None
) -> Finding | None:
    sizes = inner_config(config)
    hidden = count(sizes, "hidden_size")
    fc, query = find_shape(tensors, "fc.weight"), find_shape(tensors, "self_attn.q_proj.weight")
    narrow_fc = bool(hidden and fc and len(fc) == 2 and fc[1] == 2 * hidden)
    narrow_attention = bool(hidden and query and len(query) == 2 and query[1] == hidden)
    named = (architecture or "").endswith("Eagle") or (architecture or "").startswith("Eagle1")
    if architecture in EAGLE3_CLASSES:
        inner = config.get("eagle_config")
        ids = inner.get("eagle_aux_hidden_state_layer_ids") if isinstance(inner, Mapping) else None
        two_layers = isinstance(ids, list) and len(ids) == 2
        if not narrow_fc or two_layers or (query is not None and not narrow_attention):
            return None
    elif not (named or (narrow_fc and (query is None or narrow_attention))):
        return None
    return Finding(
        "eagle1-head",
        "reject",
        "EAGLE-1/2 head (fc input is 2 x hidden, attention input 1 x hidden), not EAGLE-3",
        kind=WILL_NOT_LOAD,
        error="AttributeError: 'LlamaForCausalLM' object has no attribute 'hot_token_id' (plain class), or "
        "AssertionError: Attempted to load weight … into parameter … (EAGLE-3 class)",
        remedy="use it with --speculative-algorithm EAGLE, not EAGLE3, or take a drafter trained for "
        "EAGLE-3; "
        "another architecture name does not change the weights",
    )


def _unknown_class(architecture: str, tensors: Mapping[str, Listed] | None) -> Finding:
    fc = find_shape(tensors, "fc.weight")
    return Finding(
        "architecture",
        "reject",
        f"{architecture} is not a class of SGLang's EAGLE-3 path ({OLDEST_READ} to {NEWEST_READ} read)",
        kind=WILL_NOT_LOAD,
        error=_not_supported(architecture),
        remedy=f"use a drafter exported as {LLAMA_EAGLE3} or {MLA_EAGLE3}"
        + (
            "; where the weights are the Llama or MLA layout (check the shapes), export them again "
            "under that class"
            if fc is not None
            else ""
        ),
    )


def _class_and_version(known: Description, config: Mapping[str, Any], architecture: str) -> Iterator[Finding]:
    version = known.sglang_version
    present = has_feature(version, CLASS_SINCE[architecture])
    if present is False:
        yield Finding(
            "class-version",
            "reject",
            f"{architecture} is unknown to SGLang {version}: it came with {CLASS_SINCE[architecture]}",
            kind=WILL_NOT_LOAD,
            error=_not_supported(architecture)
            + (
                "; before that ValueError: … model type `kimi_k2` but Transformers does not recognize "
                "this architecture"
                if config.get("model_type") == "kimi_k2"
                else ""
            ),
            remedy=f"a stack with SGLang {CLASS_SINCE[architecture]} or newer, or a {LLAMA_EAGLE3} drafter",
        )
        return
    if present is None:
        yield Finding(
            "class-version",
            "unknown",
            f"{architecture} needs SGLang {CLASS_SINCE[architecture]} or newer; no version was given",
            remedy="give --stack",
        )
    model_type = config.get("model_type")
    if model_type is None:
        if known.config_complete:
            yield Finding(
                "model-type",
                "reject" if known.from_files else "warn",
                "config.json has no model_type",
                kind=WILL_NOT_LOAD,
                error=_NO_MODEL_TYPE,
                remedy=f'add "model_type": "{"llama" if architecture == LLAMA_EAGLE3 else "kimi_k2"}"',
            )
    elif has_feature(version, MODEL_TYPE_SINCE.get(str(model_type))) is False:
        yield Finding(
            "model-type",
            "reject",
            f"model_type {model_type} is unknown to SGLang {version} (since "
            f"{MODEL_TYPE_SINCE[str(model_type)]})",
            kind=WILL_NOT_LOAD,
            error=f"ValueError: … model type `{model_type}` but Transformers does not recognize this "
            "architecture",
            remedy="a newer stack",
        )
    layers = count(config, "num_hidden_layers")
    if layers is not None and layers > 1:
        several = architecture == LLAMA_EAGLE3 and has_feature(version, "0.5.12")
        if not several:
            yield Finding(
                "layers",
                "warn" if several is None else "reject",
                f"{layers} layers: "
                + (
                    "the MLA class takes exactly one"
                    if architecture == MLA_EAGLE3
                    else "SGLang before 0.5.12 takes exactly one"
                ),
                kind=WILL_NOT_LOAD,
                error="ValueError: EAGLE3 currently only supports 1 layer",
                remedy="use a drafter of one layer"
                + ("" if architecture == MLA_EAGLE3 else ", or SGLang 0.5.12 or newer"),
            )
    target = architecture_of(known.target)
    if target == "KimiK25ForConditionalGeneration" and has_feature(version, "0.5.10") is False:
        yield Finding(
            "target-hooks",
            "reject",
            f"SGLang {version} captures no layers of {target} (since 0.5.10)",
            kind=WILL_NOT_LOAD,
            error=f"AttributeError: {target} has no set_eagle3_layers_to_capture",
            remedy="a stack with SGLang 0.5.10 or newer",
        )


def check_made_for(known: Description) -> Iterator[Finding]:
    """Yield a warning when the drafter's config names another target than the one given."""
    config = known.config or {}
    hints = [
        config.get(key)
        for key in (
            "target_model_name_or_path",
            "target_model",
            "base_model_name_or_path",
            "base_model",
            "verifier",
        )
    ]
    given = (known.target or {}).get("_name_or_path")
    made_for = next((hint for hint in hints if isinstance(hint, str) and hint), None)
    if made_for and isinstance(given, str) and given and _base(made_for) != _base(given):
        yield Finding(
            "made-for",
            "warn",
            f"the drafter says that it was made for {made_for}, the target is {given}",
            kind=WILL_NOT_ACCEPT,
            remedy="compare it with a drafter of this target (deploy-kit drafter compare): sister "
            "models agree in "
            "shapes, not in vocabulary positions",
        )


def _base(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1].lower()


def _not_supported(architecture: str) -> str:
    return (
        f"ValueError: Cannot find model module. '{architecture}' is not a registered model in the "
        f"Transformers library (0.5.23; older: Model architectures ['{architecture}'] are not "
        "supported for now)"
    )
