"""Rows of a pasted listing of weights: name, type and shape, in the forms that tools print them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from deploy_kit.drafter.description import UNKNOWN_DTYPE, Listed
from deploy_kit.drafter.weights_file import DTYPE_BITS

# Spellings of types that are not safetensors' own in lower case.
_OTHER_DTYPES = {
    "bfloat16": "BF16", "fp16": "F16", "float16": "F16", "half": "F16", "fp32": "F32", "float32": "F32",
    "float": "F32", "float64": "F64", "int64": "I64", "long": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint8": "U8", "f8_e4m3fn": "F8_E4M3", "float8_e4m3fn": "F8_E4M3", "fp8": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}  # fmt: skip
_DTYPES = {**{dtype.lower(): dtype for dtype in DTYPE_BITS}, **_OTHER_DTYPES}
# What stands before the name: bullets, numbers, opening brackets, the word "tensor".
_LEAD = re.compile(r"^(?:[\s>*|\[(+-]+|\d+[.:)]\s+|(?:tensor|param|parameter|weight)[\s:]+)+", re.IGNORECASE)
_NAME = r"[\"']?(?P<name>[A-Za-z_][\w.\-/]*)[\"']?"
_TYPE = rf"(?:torch\.)?(?P<dtype>{'|'.join(sorted(_DTYPES, key=len, reverse=True))})(?![A-Za-z0-9_])"
_SHAPE = r"(?:torch\.Size\()?[\[(]\s*(?P<shape>[0-9][0-9,\sx]*|)\s*,?\s*[\])]\)?"
_BETWEEN = r"[\s:|,=\"'()]"
_WORDS = r"(?:dtype[=:\s\"']*)?(?:shape[=:\s\"']*)?"
_GAP = rf"{_BETWEEN}+{_WORDS}"
_ROWS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # name (a count of bytes) type shape; name shape type.
        rf"{_NAME}{_GAP}(?:\d+{_BETWEEN}+)?{_TYPE}{_BETWEEN}*{_WORDS}{_SHAPE}(?P<rest>.*)",
        rf"{_NAME}{_GAP}{_SHAPE}{_GAP}{_TYPE}(?P<rest>.*)",
        # Sizes without brackets: all that is left of the line, or joined by x.
        rf"{_NAME}{_GAP}{_TYPE}{_BETWEEN}+(?P<shape>\d+(?:[\s,|x]+\d+)*)(?P<rest>)\s*$",
        rf"{_NAME}{_GAP}{_TYPE}\s+(?P<shape>[0-9]+(?:\s*x\s*[0-9]+)*)(?P<rest>.*)$",
    )
)
# Without a type only what is named like a weight counts as one.
_UNTYPED = re.compile(
    r"[\"']?(?P<name>(?:[\w\-/]+\.)*(?:[\w\-/]+\.(?:weight|bias|weight_scale|weight_packed)|[dt]2[dt]))[\"']?"
    rf"{_GAP}{_SHAPE}(?P<rest>.*)",
    re.IGNORECASE,
)
_ROWS_LIMIT, _LINE_LIMIT = 100_000, 400
_DIGITS_LIMIT = 16


def rows_in(body: str) -> list[tuple[Listed, str]]:
    """Return the rows of a listing with what follows each on its line; other lines are passed over."""
    found = []
    for raw in body.split("\n")[:_ROWS_LIMIT]:
        line = raw[:_LINE_LIMIT].replace("\u00d7", "x").replace("`", "").strip().strip("|").strip()
        row = _row(_LEAD.sub("", line, count=1)) or _row(line)
        if row is not None:
            found.append(row)
    return found


def _row(line: str) -> tuple[Listed, str] | None:
    for pattern in (*_ROWS, _UNTYPED):
        match = pattern.match(line)
        if match is not None:
            sizes = tuple(
                int(size) for size in re.findall(r"\d+", match["shape"]) if len(size) < _DIGITS_LIMIT
            )
            dtype = UNKNOWN_DTYPE if pattern is _UNTYPED else _DTYPES[match["dtype"].lower()]
            return Listed(match["name"], dtype, sizes), match["rest"]
    return None


def is_header(table: Mapping[str, Any]) -> bool:
    """Tell whether a JSON table is a safetensors header: every entry has a shape."""
    entries = [value for key, value in table.items() if key != "__metadata__"]
    return bool(entries) and all(isinstance(entry, Mapping) and "shape" in entry for entry in entries)


def header_rows(table: Mapping[str, Any]) -> list[Listed]:
    """Return the tensors of a safetensors header given as JSON; entries without a usable shape are left
    out."""
    rows = []
    for name, entry in table.items():
        shape = entry.get("shape") if isinstance(entry, Mapping) else None
        if isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape):
            dtype = str(entry.get("dtype", UNKNOWN_DTYPE))
            rows.append(Listed(name, _DTYPES.get(dtype.lower().removeprefix("torch."), dtype), tuple(shape)))
    return rows
