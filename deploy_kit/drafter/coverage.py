"""How much of what a target says a draft vocabulary can name: the ceiling of acceptance."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import read_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

_FREQUENCIES_LIMIT_BYTES = 64 * 2**20
_TEXT_LIMIT_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Ceiling:
    """`covered`: share of token occurrences in the vocabulary; `accept_length`: the most `steps` drafts
    can reach."""

    covered: float
    accept_length: float
    steps: int
    how: str


def read_frequencies(path: Path, vocabulary: int) -> NDArray[np.float64]:
    """Return counts by token id from JSON ({id: count} or a list), or lines of `id count` (space, tab or
    comma).

    Ids outside the vocabulary and counts that are not numbers ≥ 0 are a `DeployKitError`.
    """
    import numpy as np

    text = read_text(path, what="token frequencies", limit_bytes=_FREQUENCIES_LIMIT_BYTES)
    counts = np.zeros(vocabulary, dtype=np.float64)
    for place, (token, number) in enumerate(_pairs(text, path)):
        try:
            index, value = int(token), float(number)
        except (TypeError, ValueError) as error:
            raise _bad(
                path, f"entry {place + 1}", f"{token!r}: {number!r}", "a token id and a count"
            ) from error
        if not 0 <= index < vocabulary:
            raise _bad(path, f"entry {place + 1}", f"token id {index}", f"0 to {vocabulary - 1}")
        if not 0 <= value < 1e18:
            raise _bad(path, f"entry {place + 1}", f"count {value}", "a number from 0")
        counts[index] += value
    if not counts.any():
        raise _bad(path, "counts", "none above 0", "at least one token that occurs")
    return counts


def _pairs(text: str, path: Path) -> Iterable[tuple[Any, Any]]:
    if text.lstrip()[:1] in ("{", "["):
        try:
            table = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _bad(path, "file", str(error)[:100], "JSON, or lines of `id count`") from error
        return table.items() if isinstance(table, dict) else enumerate(table)
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    separator = "," if "," in text[:200] else None
    rows = csv.reader(lines) if separator else (line.split() for line in lines)
    return ((row[0], row[1] if len(row) > 1 else None) for row in rows if row)


def tokens_of_text(text_file: Path, target: Path) -> NDArray[np.int64]:
    """Return the token ids of a text under the target's tokenizer: its tokenizer.json, else its
    tiktoken.model."""
    import numpy as np

    text = read_text(text_file, what="sample text", limit_bytes=_TEXT_LIMIT_BYTES)
    tokenizer = _tokenizer(target if target.is_dir() else target.parent)
    ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)
    if ids.size == 0:
        raise DeployKitError("the sample text has no tokens", file=text_file, exit_code=ExitCode.INPUT)
    return ids


def _tokenizer(folder: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    from deploy_kit.drafter import tiktoken_file

    path = folder / "tokenizer.json"
    if not path.is_file():
        if (folder / tiktoken_file.NAME).is_file():
            return tiktoken_file.read_tokenizer(folder)
        raise DeployKitError(
            "the target has no tokenizer.json and no tiktoken.model",
            file=folder,
            remedy="give token counts instead (--frequencies), made with the target's own tokenizer",
            exit_code=ExitCode.INPUT,
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception for a damaged file
        raise DeployKitError(
            f"the tokenizer cannot be read: {str(error)[:120]}", file=path, exit_code=ExitCode.INPUT
        ) from error


def ceiling_from_counts(counts: NDArray[np.float64], draft: NDArray[np.int64], steps: int) -> Ceiling:
    """Return the ceiling when tokens come independently at these frequencies: 1 + c + c² + …"""
    import numpy as np

    covered = float(counts[np.unique(draft)].sum() / counts.sum())
    length = 1.0 + sum(covered**place for place in range(1, steps + 1))
    return Ceiling(covered, length, steps, "frequencies, tokens taken as independent")


def ceiling_from_tokens(
    tokens: Sequence[int] | NDArray[np.int64], draft: NDArray[np.int64], steps: int
) -> Ceiling:
    """Return the ceiling over this very sequence: a perfect drafter stops at the first token it cannot
    name."""
    import numpy as np

    ids = np.asarray(tokens, dtype=np.int64)
    inside = np.isin(ids, draft)
    place = verifies = 0
    while place < ids.size:
        run = inside[place : place + steps]
        accepted = int(run.size if run.all() else np.argmin(run))
        place += accepted + 1
        verifies += 1
    return Ceiling(float(inside.mean()), ids.size / verifies, steps, "the sample text, token by token")


def most_frequent(counts: NDArray[np.float64], size: int) -> NDArray[np.int64]:
    """Return the `size` most frequent token ids, rising; ties go to the lower id."""
    import numpy as np

    if not 1 <= size <= counts.size:
        raise DeployKitError(
            "a draft vocabulary of that size cannot be made",
            key="--size",
            found=size,
            allowed=f"1 to {counts.size}",
            exit_code=ExitCode.USAGE,
        )
    return np.sort(np.argsort(-counts, kind="stable")[:size]).astype(np.int64)


def _bad(path: Path, key: str, found: str, allowed: str) -> DeployKitError:
    return DeployKitError(
        "these token frequencies cannot be used",
        file=path,
        key=key,
        found=found,
        allowed=allowed,
        exit_code=ExitCode.INPUT,
    )
