"""The whole check: given a description, findings and facts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deploy_kit.drafter.aux_layers import auxiliary_ids, check_aux_layers
from deploy_kit.drafter.description import Description, count, text_config
from deploy_kit.drafter.findings import Finding, Report
from deploy_kit.drafter.identity import (
    architecture_of,
    check_identity,
    check_made_for,
    find_shape,
    inner_config,
)
from deploy_kit.drafter.serving import check_serving, context_of, quantization_of
from deploy_kit.drafter.shapes import check_sizes, check_weights, family_of
from deploy_kit.drafter.vocabulary import check_vocabulary


def check_drafter(known: Description) -> Report:
    """Given what is known of a drafter and its target, return findings (most basic first) and facts."""
    return Report(tuple(_findings(known)), facts_of(known))


def _findings(known: Description) -> Iterator[Finding]:
    for remark in known.remarks:
        yield Finding("input", "unknown", remark, essential=True)
    identity = list(check_identity(known))
    yield from identity
    family = family_of(known.config)
    # Another kind of checkpoint, or a class this engine has not: its shapes would be measured against
    # the wrong one.
    other_kind = any(
        finding.verdict == "reject" and finding.id not in ("layers", "model-type") for finding in identity
    )
    if family is None or other_kind:
        return
    yield from check_sizes(known, family)
    yield from check_weights(known, family)
    yield from check_vocabulary(known, family)
    yield from check_aux_layers(known)
    yield from check_serving(known, family)
    yield from check_made_for(known)


def facts_of(known: Description) -> dict[str, Any]:
    """Return the numbers the check rests on; what is not known is left out."""
    config = inner_config(known.config or {})
    target = text_config(known.target)
    hidden = count(config, "target_hidden_size") or count(config, "hidden_size")
    fc = find_shape(known.tensors, "fc.weight")
    facts = {
        "family": architecture_of(known.config),
        "hidden_size": count(config, "hidden_size"),
        "layers": count(config, "num_hidden_layers"),
        "vocabulary": count(config, "vocab_size"),
        "draft_vocab": count(config, "draft_vocab_size"),
        "aux_layers": auxiliary_ids(known.config)[0],
        "fc_inputs": fc[1] // hidden if fc and len(fc) == 2 and hidden and fc[1] % hidden == 0 else None,
        "tensors": None if known.tensors is None else len(known.tensors),
        "context": context_of(config),
        "quantization": quantization_of(known.config),
        "target": architecture_of(known.target),
        "target_hidden_size": count(target, "hidden_size"),
        "target_layers": count(target, "num_hidden_layers"),
        "target_vocabulary": count(target, "vocab_size"),
        "target_context": context_of(target),
        "target_quantization": quantization_of(known.target),
        "sglang_version": known.sglang_version,
    }
    return {key: value for key, value in facts.items() if value is not None}
