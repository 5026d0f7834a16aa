"""What is known of a drafter and its target when it is checked: from folders, or from a pasted
description."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# The type of a tensor whose listing does not say it.
UNKNOWN_DTYPE = "?"


@dataclass(frozen=True)
class Listed:
    """A tensor as listed: name, dtype as safetensors spells it (or UNKNOWN_DTYPE), shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class MapFacts:
    """What is known of d2t's values: all of them, or the first ones, the last ones, or the extremes."""

    values: NDArray[np.int64] | None = None
    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    minimum: int | None = None
    maximum: int | None = None


@dataclass(frozen=True)
class TokenizerFacts:
    """How two tokenizers compare: sizes, tokens with another id, tokens only one of them has."""

    drafter_hash: str
    target_hash: str
    drafter_size: int
    target_size: int
    moved: int
    only_drafter: int
    only_target: int
    added_only: bool


@dataclass(frozen=True)
class Description:
    """Everything a check looks at; what is None or empty was not given."""

    source: str
    config: Mapping[str, Any] | None = None
    # False where the text says that fields were left out, so that a missing key means nothing.
    config_complete: bool = True
    target: Mapping[str, Any] | None = None
    tensors: Mapping[str, Listed] | None = None
    listing_complete: bool = True
    # True for files on disk: their config and header are whole, so engine defaults apply to absent keys.
    from_files: bool = False
    other_files: tuple[str, ...] = ()
    sglang_version: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    tensor_parallel: int | None = None
    log: str = ""
    d2t: MapFacts | None = None
    reference_d2t: MapFacts | None = None
    # (positions that agree, positions) of d2t and a known good one, where the text says so.
    agreement: tuple[int, int] | None = None
    t2d: NDArray[np.bool_] | None = None
    tokenizers: TokenizerFacts | None = None
    # Tensors with values that cannot be right: (name, "NaN" | "infinite" | "all zero" | …).
    bad_values: tuple[tuple[str, str], ...] = ()
    values_seen: bool = False
    same_checkpoint_as_target: bool = False
    remarks: tuple[str, ...] = ()


def text_config(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a model's text fields: of a multimodal config its `text_config` over the outer fields."""
    if not config:
        return {}
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, Mapping) else dict(config)


def count(config: Mapping[str, Any] | None, key: str) -> int | None:
    """Return a whole, positive number of a config, or None where it is absent or something else."""
    value = (config or {}).get(key)
    return value if type(value) is int and value > 0 else None


def whole(text: str | None) -> int | None:
    """Return a count written in plain digits (at most 18), or None for anything else."""
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,18}", text) else None
