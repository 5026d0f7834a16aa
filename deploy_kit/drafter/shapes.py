"""The weights against what the engine's class builds: shapes, gaps, names it passes over, types, values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deploy_kit.drafter.description import UNKNOWN_DTYPE, Description, Listed, count, text_config
from deploy_kit.drafter.engine import (
    EAGLE3_CLASSES,
    LLAMA_EAGLE3,
    LLAMA_EAGLE31_SINCE,
    LLAMA_LAYER_NAMES_SINCE,
    LLAMA_NORM_BEFORE_FC_SINCE,
    MLA_EAGLE3,
    MLA_EAGLE31_SINCE,
    has_feature,
)
from deploy_kit.drafter.findings import WILL_NOT_ACCEPT, WILL_NOT_LOAD, Finding
from deploy_kit.drafter.identity import find_shape
from deploy_kit.drafter.layout import (
    Parameter,
    auxiliary_count,
    expected_parameters,
    is_map,
    shape_text,
    simulate_load,
    wants_fc_norm,
    wants_input_norm,
)

_FLOAT_TYPES = ("BF16", "F16", "F32")
_SIZE_KEYS = {
    LLAMA_EAGLE3: ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"),
    MLA_EAGLE3: (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "vocab_size",
        "q_lora_rank",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
    ),
}


def check_sizes(known: Description, family: str) -> Iterator[Finding]:
    """Yield whether the drafter's sizes are there, whole numbers, and the target's."""
    config = known.config or {}
    absent = [key for key in _SIZE_KEYS[family] if config.get(key) is None]
    counts = (*_SIZE_KEYS[family], "num_hidden_layers", "draft_vocab_size")
    odd = [key for key in counts if config.get(key) is not None and count(config, key) is None]
    if odd:
        yield Finding(
            "config-values",
            "reject",
            "config.json: "
            + ", ".join(f"{key} is {config[key]!r}" for key in odd)
            + ", whole numbers above 0 are needed",
            kind=WILL_NOT_LOAD,
            remedy="correct config.json",
        )
    if absent:
        yield Finding(
            "config-sizes",
            "warn" if known.from_files else "unknown",
            f"config.json does not say {', '.join(absent)}",
            kind=WILL_NOT_LOAD,
            remedy="add the sizes that the drafter was trained with; the engine's defaults are another "
            "model's",
        )
    hidden, target_hidden = count(config, "hidden_size"), count(config, "target_hidden_size")
    target = text_config(known.target)
    real = count(target, "hidden_size")
    if "target_hidden_size" in config and config["target_hidden_size"] is None and family == LLAMA_EAGLE3:
        yield Finding(
            "target-hidden-size",
            "reject",
            "target_hidden_size is null: the Llama class multiplies it as it is",
            kind=WILL_NOT_LOAD,
            error="TypeError: unsupported operand type(s) for *: 'NoneType' and 'int' (all versions read)",
            remedy="remove the key, or set it to the target's hidden_size",
        )
    if real is None:
        yield Finding(
            "target",
            "unknown",
            "the target's hidden_size was not given",
            essential=not target,
            remedy="give the target's config.json (--target)",
        )
    elif (target_hidden or hidden) not in (None, real):
        yield Finding(
            "hidden-size",
            "reject",
            f"made for hidden states of {target_hidden or hidden}, the target's are {real}",
            kind=WILL_NOT_LOAD,
            error="RuntimeError: mat1 and mat2 shapes cannot be multiplied (first forward, before the "
            "server is ready)",
            remedy="use a drafter made for this target",
        )


def check_weights(known: Description, family: str) -> Iterator[Finding]:
    """Yield what loading the listed weights into the class would do."""
    tensors, config, version = known.tensors, known.config or {}, known.sglang_version
    if tensors is None:
        yield Finding(
            "weights",
            "unknown",
            "no listing of the weights was given",
            essential=True,
            remedy="give the folder, or a listing of name, dtype, shape",
        )
        return
    parameters = expected_parameters(family, config, version)
    load = simulate_load(family, parameters, tensors, version)
    yield from _fc(known, config, family)
    for parameter, tensor in load.mismatched:
        if parameter.name in ("fc.weight", "lm_head.weight"):
            continue
        yield Finding(
            "shape",
            "reject",
            f"{tensor.name} has shape {list(tensor.shape)}, {family} builds "
            f"{shape_text(parameter.shape)} from this config",
            kind=WILL_NOT_LOAD,
            error="AssertionError or RuntimeError on the sizes while weights load; a divided projection that "
            "is too large is cut silently",
            remedy="weights and config.json are of different drafters: take both from one place",
        )
    yield from _missing(known, family, load.missing, len(parameters))
    yield from _skipped(family, config, load.skipped)
    yield from _types(known, config)
    yield from _eagle31(known, family, config)
    yield from _embedding(known, config)
    for name, what in known.bad_values:
        yield Finding(
            "values",
            "reject",
            f"{name}: {what} values",
            kind=WILL_NOT_ACCEPT,
            remedy="the export or the download is damaged: fetch it again, or export again",
        )
    if known.values_seen and not known.bad_values:
        yield Finding("values", "ok", "no NaN, infinite or all-zero values where they were looked at")


def _fc(known: Description, config: Mapping[str, Any], family: str) -> Iterator[Finding]:
    fc = find_shape(known.tensors, "fc.weight")
    hidden = count(config, "target_hidden_size") or count(config, "hidden_size")
    if fc is None or hidden is None or len(fc) != 2:
        return
    aux = auxiliary_count(family, config, known.sglang_version)
    if fc[1] == hidden * aux and fc[0] == count(config, "hidden_size"):
        yield Finding("fc", "ok", f"fc takes {aux} x {hidden}")
        return
    whole = fc[1] / hidden
    width = (
        f"{fc[1]} = {int(whole)} x {hidden}" if whole == int(whole) else f"{fc[1]}, no multiple of {hidden}"
    )
    built = [count(config, "hidden_size"), hidden * aux]
    cause = f"fc.weight {list(fc)} (input {width}), the config's {aux} captured layers make {built}"
    if known.sglang_version and has_feature(known.sglang_version, LLAMA_LAYER_NAMES_SINCE) is False:
        cause += f" (SGLang {known.sglang_version} always takes 3)"
    yield Finding(
        "fc",
        "reject",
        cause,
        kind=WILL_NOT_LOAD,
        error=f"AssertionError: Attempted to load weight (torch.Size({list(fc)})) into parameter "
        f"(torch.Size({built}))",
        remedy="name as many eagle_aux_hidden_state_layer_ids as the drafter was trained with"
        if whole == int(whole)
        else "use a drafter made for this target",
    )


def _missing(
    known: Description, family: str, missing: tuple[Parameter, ...], expected: int
) -> Iterator[Finding]:
    # lm_head and the embedding have findings of their own.
    absent = [
        parameter for parameter in missing if parameter.name not in ("lm_head.weight", "embed_tokens.weight")
    ]
    absent = [parameter for parameter in absent if not parameter.name.startswith("fc_norm.")]
    if not absent:
        return
    names = ", ".join(parameter.name for parameter in absent[:4]) + (
        f" and {len(absent) - 4} more" if len(absent) > 4 else ""
    )
    excerpt = not known.from_files and (not known.listing_complete or len(known.tensors or {}) * 2 < expected)
    if excerpt:
        yield Finding(
            "weights-missing",
            "unknown",
            f"the listing looks shortened: {names} are not in it",
            essential=True,
            remedy="give the whole listing, or the folder",
        )
        return
    matrices = [parameter for parameter in absent if not parameter.is_norm]
    yield Finding(
        "weights-missing",
        "reject" if matrices else "warn",
        f"{family} finds no {names}: "
        + (
            "they stay uninitialised, nothing sensible is drafted"
            if matrices
            else "these norms keep their initial ones, acceptance drops"
        ),
        kind=WILL_NOT_ACCEPT,
        error="none: SGLang does not check that every parameter was loaded (all versions read)",
        remedy="add the weights under the names the class reads"
        + (
            f"; `layers.0.` names are read by the Llama class since {LLAMA_LAYER_NAMES_SINCE}, older "
            "ones need `midlayer.`"
            if family == LLAMA_EAGLE3 and has_feature(known.sglang_version, LLAMA_LAYER_NAMES_SINCE) is False
            else ""
        )
        + ("; the MLA class takes no `model.` in front" if _prefixed(known, family) else ""),
    )


def _prefixed(known: Description, family: str) -> bool:
    return family == MLA_EAGLE3 and any(name.startswith("model.") for name in known.tensors or {})


def _skipped(family: str, config: Mapping[str, Any], skipped: tuple[Listed, ...]) -> Iterator[Finding]:
    quantized = bool(config.get("quantization_config") or config.get("compression_config"))
    names = [
        tensor.name
        for tensor in skipped
        if not tensor.name.startswith(("fc_norm", "aux_norm", "input_norm"))
        and not (tensor.name.endswith("lm_head.weight") and config.get("tie_word_embeddings"))
    ]
    if quantized:
        names = [
            name for name in names if name.endswith(".bias") or ("scale" not in name and "pack" not in name)
        ]
    if not names:
        return
    listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    scales = [name for name in names if "scale" in name or "packed" in name or "zero_point" in name]
    if scales:
        yield Finding(
            "quantized-without-config",
            "reject",
            f"quantized weights ({listed}) but no quantization_config in config.json: scales are passed over",
            kind=WILL_NOT_ACCEPT,
            remedy="add the quantization_config, or use the unquantized drafter",
        )
        return
    harmless = all("rotary_emb" in name or "inv_freq" in name for name in names)
    if harmless:
        return
    yield Finding(
        "weights-skipped",
        "warn",
        f"{family} passes over {listed}"
        + (
            " without a word"
            if family == LLAMA_EAGLE3
            else " (a warning in the log: skipping unexpected weight)"
        ),
        kind=WILL_NOT_ACCEPT,
        remedy="these were trained but are not used: see whether another class or version reads them",
    )


def _types(known: Description, config: Mapping[str, Any]) -> Iterator[Finding]:
    quantized = bool(config.get("quantization_config") or config.get("compression_config"))
    matrices = [t for t in (known.tensors or {}).values() if not is_map(t.name) and len(t.shape) >= 1]
    odd = [t for t in matrices if t.dtype not in (*_FLOAT_TYPES, UNKNOWN_DTYPE)]
    if odd and not quantized and not any("scale" in t.name or "pack" in t.name for t in matrices):
        yield Finding(
            "weight-type",
            "reject",
            f"{odd[0].name} is stored as {odd[0].dtype} and config.json has no quantization_config: the "
            "numbers are copied "
            "as they are, without scales",
            kind=WILL_NOT_ACCEPT,
            remedy="add the quantization_config and scales, or use the BF16 drafter",
        )
    declared = config.get("dtype") or config.get("torch_dtype")
    target = text_config(known.target)
    wanted = target.get("dtype") or target.get("torch_dtype")
    if known.flags.get("dtype", "auto") != "auto":
        return
    if declared is None and known.from_files:
        yield _dtype_finding("config.json has no torch_dtype: the engine then takes float16", wanted)
    elif declared and wanted and str(declared).removeprefix("torch.") != str(wanted).removeprefix("torch."):
        yield _dtype_finding(f"the drafter runs in {declared}, the target in {wanted}", wanted)


def _dtype_finding(cause: str, wanted: Any) -> Finding:
    return Finding(
        "dtype",
        "reject" if wanted else "warn",
        cause + ", and the target's hidden states are not converted for it",
        kind=WILL_NOT_LOAD,
        error="RuntimeError: … must have the same dtype … (first forward, before the server is ready)",
        remedy=f"set torch_dtype to the target's ({wanted or 'bfloat16'}), or give --dtype",
        flags=("--dtype",),
    )


def _eagle31(known: Description, family: str, config: Mapping[str, Any]) -> Iterator[Finding]:
    aux = auxiliary_count(family, config, None)
    names = tuple(known.tensors or {})
    norms = [name for name in names if "fc_norm." in name or "aux_norm_" in name]
    since = MLA_EAGLE31_SINCE if family == MLA_EAGLE3 else LLAMA_EAGLE31_SINCE
    flags = [key for key in ("fc_norm", "use_aux_norm", "norm_output") if config.get(key)]
    if wants_fc_norm(config) and len(norms) < aux:
        yield Finding(
            "fc-norm",
            "unknown" if not known.listing_complete else "reject",
            f"fc_norm is true, but {len(norms)} of the {aux} fc_norm tensors are in the file: the norms "
            "stay at their "
            "initial ones",
            kind=WILL_NOT_ACCEPT,
            essential=True,
            remedy="add fc_norm.0 … from the training, or set fc_norm to false if it was trained without",
        )
    if norms and not wants_fc_norm(config) and known.config_complete:
        yield Finding(
            "fc-norm",
            "reject",
            f"the file holds fc_norm tensors ({norms[0]} …) but config.json does not set fc_norm: they "
            "are passed over",
            kind=WILL_NOT_ACCEPT,
            remedy='add "fc_norm": true to config.json (an EAGLE-3.1 drafter usually also needs '
            '"norm_output": true)',
        )
    if flags:
        has = has_feature(known.sglang_version, since)
        named = ", ".join(flags)
        what = f"EAGLE-3.1 flags ({named}) need an SGLang with #26506 (MLA) / #24663 (MHA), that is {since}"
        if has:
            yield Finding(
                "eagle31",
                "ok",
                f"EAGLE-3.1 flags ({named}): SGLang {known.sglang_version} has them",
            )
        else:
            yield Finding(
                "eagle31",
                "warn" if has is None else "reject",
                what + " or newer: an older one ignores them and acceptance drops silently"
                if has is None
                else what + f" or newer; {known.sglang_version} ignores them and acceptance drops silently",
                kind=WILL_NOT_ACCEPT,
                error="none",
                remedy="check the pinned version (--stack)"
                if has is None
                else f"a stack with SGLang {since} or newer",
            )
    if wants_input_norm(config):
        has = (
            has_feature(known.sglang_version, LLAMA_NORM_BEFORE_FC_SINCE) if family == LLAMA_EAGLE3 else False
        )
        if not has:
            yield Finding(
                "norm-before-fc",
                "warn" if has is None else "reject",
                "norm_before_fc is "
                + (
                    "not known to the MLA class"
                    if family == MLA_EAGLE3
                    else f"known since SGLang {LLAMA_NORM_BEFORE_FC_SINCE}; an older one ignores it"
                )
                + ": acceptance drops silently",
                kind=WILL_NOT_ACCEPT,
                remedy="check the pinned version (--stack)"
                if has is None
                else "use a drafter trained without it, or a stack that has it",
            )
    if config.get("norm_before_residual"):
        yield Finding(
            "norm-before-residual",
            "warn",
            "norm_before_residual is read by no SGLang version: the residual is taken before the norm, "
            "acceptance drops",
            kind=WILL_NOT_ACCEPT,
            remedy="use a drafter trained with norm_before_residual false, or an engine that reads it",
        )


def _embedding(known: Description, config: Mapping[str, Any]) -> Iterator[Finding]:
    hidden, target_hidden = count(config, "hidden_size"), count(config, "target_hidden_size")
    own = find_shape(known.tensors, "embed_tokens.weight")
    separate = target_hidden is not None and hidden is not None and target_hidden != hidden
    if separate and own is None:
        yield Finding(
            "embedding",
            "reject" if known.listing_complete else "unknown",
            f"no embed_tokens, and the target's ({target_hidden} wide) cannot be borrowed by a drafter "
            f"of {hidden}: it stays "
            "randomly initialised",
            kind=WILL_NOT_ACCEPT,
            essential=True,
            remedy="add the drafter's embedding to the weights",
        )
    elif separate:
        yield Finding(
            "embedding", "ok", "the drafter's own embed_tokens is used (its width is not the target's)"
        )
    elif own is None:
        yield Finding("embedding", "ok", "no embed_tokens needed: SGLang uses the target's")
    else:
        yield Finding("embedding", "ok", "embed_tokens in the file is replaced by the target's")


def family_of(config: Mapping[str, Any] | None) -> str | None:
    """Return the EAGLE-3 class a config names, or None."""
    names = (config or {}).get("architectures")
    first = names[0] if isinstance(names, list) and names else None
    return first if first in EAGLE3_CLASSES else None
