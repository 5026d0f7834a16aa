"""Describing a drafter and its target from folders: configs, headers, the small maps, samples of the
values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy_kit.drafter.description import Description, Listed, MapFacts, TokenizerFacts, whole
from deploy_kit.drafter.weights_file import (
    Tensor,
    Weights,
    as_float32,
    batches,
    read_array,
    read_json,
    read_weights,
)
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import file_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FLOATS = ("BF16", "F16", "F32", "F64")
# Small tensors are read whole; of a large one so many pieces of this size, evenly spread.
_WHOLE_BYTES = 2**20
_SAMPLES, _SAMPLE_BYTES = 16, 64 * 1024
_SCAN_BYTES = 16 * 2**20
_MAP_LIMIT_BYTES = 64 * 2**20


def describe_folder(
    draft: Path,
    target: Path | None,
    *,
    sglang_version: str | None = None,
    flags: Mapping[str, str] | None = None,
    tensor_parallel: int | None = None,
    every_value: bool = False,
) -> Description:
    """Read a drafter (folder or single safetensors file) and its target (folder or config.json).

    With `every_value` all weights are read, in pieces, to find NaN and infinite values; otherwise
    samples are.
    """
    weights = read_weights(draft)
    folder = draft if draft.is_dir() else draft.parent
    config_path = folder / "config.json"
    config = _table(config_path, "draft config.json") if config_path.is_file() else None
    tensors = {name: Listed(name, tensor.dtype, tensor.shape) for name, tensor in weights.tensors.items()}
    return Description(
        source=str(draft),
        config=config,
        target=read_target_config(target),
        tensors=tensors,
        from_files=True,
        other_files=_names(folder),
        sglang_version=sglang_version,
        flags=dict(flags or {}),
        tensor_parallel=tensor_parallel,
        d2t=_map(weights),
        t2d=_mask(weights),
        tokenizers=compare_tokenizers(folder, _folder_of(target)),
        bad_values=tuple(bad_values(weights, every_value=every_value)),
        values_seen=True,
        same_checkpoint_as_target=_same(folder, _folder_of(target)),
        remarks=()
        if config is not None
        else (f"no config.json beside {draft.name}: only the weights can be looked at",),
    )


def read_target_config(target: Path | None) -> dict[str, Any] | None:
    """Return the target's config, given its folder or its config.json; None when no target was given."""
    if target is None:
        return None
    path = target / "config.json" if target.is_dir() else target
    return {**_table(path, "target config.json"), "_name_or_path": str(_folder_of(target))}


def _table(path: Path, what: str) -> dict[str, Any]:
    value = read_json(path, what=what)
    if not isinstance(value, dict):
        raise DeployKitError(f"this {what} is not a table", file=path, exit_code=ExitCode.INPUT)
    return value


def _folder_of(path: Path | None) -> Path | None:
    return None if path is None else path if path.is_dir() else path.parent


def _names(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(entry.name for entry in folder.iterdir()))
    except OSError as error:
        raise file_error("cannot list", folder, error) from error


def _same(draft: Path, target: Path | None) -> bool:
    try:
        return target is not None and draft.samefile(target)
    except OSError:
        return False


def find_map(weights: Weights, name: str) -> Tensor | None:
    """Return the tensor `d2t` or `t2d` of a checkpoint, under that name or with a prefix."""
    return next((t for key, t in weights.tensors.items() if key == name or key.endswith(f".{name}")), None)


def read_map(weights: Weights) -> NDArray[np.int64] | None:
    """Return d2t's values as int64, or None when there is no map that can be read as whole numbers."""
    import numpy as np

    tensor = find_map(weights, "d2t")
    if tensor is None or len(tensor.shape) != 1 or tensor.size_bytes > _MAP_LIMIT_BYTES:
        return None
    if tensor.dtype not in ("I64", "I32", "I16", "U16", "U32"):
        return None
    return np.asarray(read_array(tensor), dtype=np.int64)


def _map(weights: Weights) -> MapFacts | None:
    values = read_map(weights)
    return None if values is None or values.size == 0 else MapFacts(values=values)


def _mask(weights: Weights) -> NDArray[np.bool_] | None:
    import numpy as np

    tensor = find_map(weights, "t2d")
    if tensor is None or tensor.dtype not in ("BOOL", "U8") or len(tensor.shape) != 1:
        return None
    return np.asarray(read_array(tensor) != 0) if tensor.size_bytes <= _MAP_LIMIT_BYTES else None


def bad_values(weights: Weights, *, every_value: bool) -> list[tuple[str, str]]:
    """Return (tensor, "NaN" | "infinite" | "all-zero") for tensors whose values cannot be right, in
    reading order."""
    found = []
    for name, tensor in weights.tensors.items():
        if tensor.dtype not in _FLOATS or not tensor.shape or tensor.size_bytes == 0:
            continue
        what = _bad(tensor, every_value)
        if what is not None:
            found.append((name, what))
    return found


def _bad(tensor: Tensor, every_value: bool) -> str | None:
    import numpy as np

    any_value = False
    for rows in _pieces(tensor, every_value):
        values = as_float32(read_array(tensor, rows), tensor.dtype)
        if np.isnan(values).any():
            return "NaN"
        if np.isinf(values).any():
            return "infinite"
        any_value = any_value or bool(values.any())
    # A projection of zeros can be meant (a test model); a head or fc of zeros drafts nothing.
    if not any_value and tensor.name.endswith(("lm_head.weight", "fc.weight")):
        return "all-zero"
    return None


def _pieces(tensor: Tensor, every_value: bool) -> list[slice]:
    rows = tensor.shape[0]
    row_bytes = max(1, tensor.size_bytes // rows)
    if every_value or tensor.size_bytes <= _WHOLE_BYTES:
        return list(batches(rows, row_bytes, _SCAN_BYTES))
    count = max(1, _SAMPLE_BYTES // row_bytes)
    starts = sorted({index * max(0, rows - count) // (_SAMPLES - 1) for index in range(_SAMPLES)})
    return [slice(start, min(rows, start + count)) for start in starts]


def compare_tokenizers(draft: Path | None, target: Path | None) -> TokenizerFacts | None:
    """Return how two folders' tokenizers compare, or None where one has no tokenizer.json or
    tiktoken.model."""
    first, second = read_vocabulary(draft), read_vocabulary(target)
    if first is None or second is None:
        return None
    (mine, mine_added), (theirs, theirs_added) = first, second
    only_mine, only_theirs = mine.keys() - theirs.keys(), theirs.keys() - mine.keys()
    return TokenizerFacts(
        drafter_hash=_hash(mine),
        target_hash=_hash(theirs),
        drafter_size=len(mine),
        target_size=len(theirs),
        moved=sum(1 for token, number in mine.items() if theirs.get(token, number) != number),
        only_drafter=len(only_mine),
        only_target=len(only_theirs),
        added_only=only_mine <= mine_added and only_theirs <= theirs_added,
    )


def read_vocabulary(folder: Path | None) -> tuple[dict[str, int], set[str]] | None:
    """Return a folder's token table and which of its tokens are added ones; None where there is none to
    read."""
    if folder is None:
        return None
    added: set[str] = set()
    table: dict[str, int] = {}
    path, merged = folder / "tokenizer.json", folder / "tiktoken.model"
    if path.is_file():
        data = read_json(path, what="tokenizer", limit_bytes=256 * 2**20)
        model = data.get("model") if isinstance(data, dict) else None
        words = model.get("vocab") if isinstance(model, dict) else None
        if not isinstance(words, dict):
            return None
        table = {word: number for word, number in words.items() if type(number) is int}
        for entry in data.get("added_tokens") or []:
            if (
                isinstance(entry, dict)
                and isinstance(entry.get("content"), str)
                and type(entry.get("id")) is int
            ):
                table[entry["content"]] = entry["id"]
                added.add(entry["content"])
    elif merged.is_file():
        # tiktoken: one `base64 rank` a line; special tokens are in tokenizer_config.json.
        try:
            lines = merged.read_text(errors="replace").splitlines()
        except OSError as error:
            raise file_error("cannot read tokenizer", merged, error) from error
        for line in lines:
            word, _, rank = line.partition(" ")
            number = whole(rank)
            if number is not None:
                table[word] = number
        config = folder / "tokenizer_config.json"
        decoder = _table(config, "tokenizer config").get("added_tokens_decoder") if config.is_file() else None
        for key, entry in (decoder or {}).items() if isinstance(decoder, dict) else ():
            number = whole(str(key))
            if isinstance(entry, dict) and isinstance(entry.get("content"), str) and number is not None:
                table[entry["content"]] = number
                added.add(entry["content"])
    return (table, added) if table else None


def _hash(table: Mapping[str, int]) -> str:
    return hashlib.sha256(json.dumps(sorted(table.items()), ensure_ascii=False).encode()).hexdigest()
