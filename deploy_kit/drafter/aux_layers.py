"""Which layers of the target are captured for the drafter, and whether the target has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deploy_kit.drafter.description import Description, count, text_config
from deploy_kit.drafter.engine import captured_layers, default_layers, is_deepseek_target
from deploy_kit.drafter.findings import WILL_NOT_ACCEPT, WILL_NOT_LOAD, Finding
from deploy_kit.drafter.identity import architecture_of

_NEVER_CAPTURED = (
    "RuntimeError: captured … of … aux hidden states (DeepSeek-like targets), or mat1 and mat2 shapes "
    "cannot be multiplied "
    "(others), at the first forward, before the server is ready"
)


def auxiliary_ids(config: Mapping[str, Any] | None) -> tuple[list[Any] | None, bool]:
    """Return the ids that a config names, and whether they stand where the engine reads them
    (eagle_config)."""
    inner = (config or {}).get("eagle_config")
    nested = inner.get("eagle_aux_hidden_state_layer_ids") if isinstance(inner, Mapping) else None
    if isinstance(nested, list):
        return nested, True
    outer = (config or {}).get("eagle_aux_hidden_state_layer_ids")
    return (outer, False) if isinstance(outer, list) else (None, False)


def check_aux_layers(known: Description) -> Iterator[Finding]:
    """Yield what is wrong or right with the auxiliary layer ids."""
    config = known.config or {}
    inner = config.get("eagle_config")
    if isinstance(inner, Mapping) and inner.get("use_aux_hidden_state") is False:
        yield Finding(
            "aux-off",
            "reject",
            "use_aux_hidden_state is false: the target hands over one hidden state, fc is passed over, "
            "and the drafter sees "
            "what it was not trained on",
            kind=WILL_NOT_ACCEPT,
            remedy="set it to true if fc was trained on several layers; otherwise this is not an "
            "EAGLE-3 drafter",
        )
    ids, read = auxiliary_ids(config)
    target = text_config(known.target)
    layers = count(target, "num_hidden_layers")
    if ids is None:
        text = "" if layers is None else f" ({default_layers(layers)} of {layers})"
        yield Finding("aux-layers", "unknown", f"no auxiliary layer ids: the engine takes its own{text}")
        return
    if not ids or any(type(number) is not int for number in ids):
        yield Finding(
            "aux-layers",
            "reject",
            f"eagle_aux_hidden_state_layer_ids is {ids!r}: layer numbers are needed",
            kind=WILL_NOT_LOAD,
            remedy="name the layers that the drafter was trained with",
        )
        return
    wrong = list(_impossible(ids, layers, known))
    yield from wrong
    if not read and layers is not None:
        yield from _not_read(ids, layers)
    if len(ids) == len(set(ids)) and ids != sorted(ids):
        yield Finding(
            "aux-order",
            "warn",
            f"auxiliary layers {ids} are not in rising order; the engine hands them over in the order "
            "of the layers",
            kind=WILL_NOT_ACCEPT,
            remedy="sort them, if the drafter was trained on the layers in rising order",
        )
    if not wrong and layers is not None:
        deepseek = is_deepseek_target(architecture_of(known.target))
        shown = (
            ""
            if deepseek is None
            else ", captured before layers "
            f"{captured_layers(ids, deepseek=deepseek, version=known.sglang_version)}"
        )
        yield Finding("aux-layers", "ok", f"auxiliary layers {ids} exist in a {layers}-layer target{shown}")


def _impossible(ids: list[int], layers: int | None, known: Description) -> Iterator[Finding]:
    if len(set(ids)) < len(ids):
        yield Finding(
            "aux-layers",
            "reject",
            f"auxiliary layers {ids} name a layer twice: it is captured once, fc gets fewer inputs than "
            "it takes",
            kind=WILL_NOT_LOAD,
            error=_NEVER_CAPTURED,
            remedy="name the layers that the drafter was trained with",
        )
    if min(ids) < 0:
        yield Finding(
            "aux-layers",
            "reject",
            f"auxiliary layer {min(ids)} does not exist: ids count from 0, and -1 is not the last layer here",
            kind=WILL_NOT_LOAD,
            error=_NEVER_CAPTURED,
            remedy="name the layers by number",
        )
    if layers is None:
        return
    far = [number for number in ids if number > layers]
    if far:
        yield Finding(
            "aux-layers",
            "reject",
            f"auxiliary layer {far[-1]} does not exist in a {layers}-layer target: drafter of another "
            "generation",
            kind=WILL_NOT_LOAD,
            error=_NEVER_CAPTURED,
            remedy="use a drafter made for this target",
        )
        return
    deepseek = is_deepseek_target(architecture_of(known.target))
    rules = (True, False) if deepseek is None else (deepseek,)
    captured = [captured_layers(ids, deepseek=rule, version=known.sglang_version) for rule in rules]
    if all(max(numbers) >= layers for numbers in captured):
        certain = known.sglang_version is not None
        yield Finding(
            "aux-layers-edge",
            "reject" if certain else "warn",
            f"auxiliary layer {max(ids)} is at the end of a {layers}-layer target: exporters count "
            "before or after the layer, "
            "and this engine captures a layer's input only, so the last output is out of reach",
            kind=WILL_NOT_LOAD,
            error=_NEVER_CAPTURED,
            remedy="if the exporter counts from 1, lower every id by one; the last layer itself cannot "
            "be captured",
        )


def _not_read(ids: list[int], layers: int) -> Iterator[Finding]:
    taken = default_layers(layers)
    if ids not in (taken, [number - 1 for number in taken]):
        yield Finding(
            "aux-layers-place",
            "warn",
            f"the ids {ids} stand outside eagle_config, where the engine does not read them: it "
            f"captures {taken}",
            kind=WILL_NOT_ACCEPT,
            remedy='move them: "eagle_config": {"eagle_aux_hidden_state_layer_ids": [...]}',
        )
