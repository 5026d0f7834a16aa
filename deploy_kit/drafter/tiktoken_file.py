"""A target's tokenizer where it is a `tiktoken.model` (Kimi, DeepSeek's and Qwen's first releases): read as
data, its Python never run."""

from __future__ import annotations

import ast
import base64
import binascii
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy_kit.drafter.weights_file import read_json
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import read_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NAME = "tiktoken.model"
_RANKS_LIMIT_BYTES, _CODE_LIMIT_BYTES = 64 * 2**20, 4 * 2**20
_BYTES, _TOKEN_LIMIT_BYTES = 256, 1024


def read_tokenizer(folder: Path) -> Tokenizer:
    """Given the folder of a target with a tiktoken.model and the tokenization_….py beside it, return its
    tokenizer: the ranks from the one, how text is split (`pat_str`) from the other, special tokens from
    tokenizer_config.json.

    Raises `DeployKitError` where one of the three cannot be read.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

    ranks = _ranks(folder / NAME)
    special = _special_tokens(folder / "tokenizer_config.json")
    letters = _letters()
    words = {"".join(map(letters.__getitem__, word)): rank for word, rank in ranks.items()}
    merges = [
        ("".join(map(letters.__getitem__, left)), "".join(map(letters.__getitem__, right)))
        for left, right in _merges(ranks)
    ]
    pattern = _pattern(folder)
    try:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        # As tiktoken: a piece that is a token is taken whole, else neighbours join by the lowest rank.
        model = models.BPE(vocab={**words, **special}, merges=merges, ignore_merges=True)
        tokenizer = Tokenizer(model)
        whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, whole])
        tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    except Exception as error:  # the library raises a bare Exception
        raise _odd(folder, str(error)[:120]) from error
    return tokenizer


def _ranks(path: Path) -> dict[bytes, int]:
    """Return rank by token: lines of `base64 rank`. All single bytes must be there."""
    ranks: dict[bytes, int] = {}
    text = read_text(path, what="tokenizer", limit_bytes=_RANKS_LIMIT_BYTES)
    for number, line in enumerate(text.splitlines(), 1):
        word, _, rank = line.partition(" ")
        if not line.strip():
            continue
        try:
            token = base64.b64decode(word, validate=True)
            ranks[token] = int(rank)
        except (binascii.Error, ValueError) as error:
            raise _odd(path, f"line {number}: {line[:60]!r}") from error
        if not 0 < len(token) <= _TOKEN_LIMIT_BYTES or ranks[token] < 0:
            raise _odd(path, f"line {number}: {line[:60]!r}")
    if any(bytes([byte]) not in ranks for byte in range(_BYTES)):
        raise _odd(path, "not every byte is a token")
    if len(set(ranks.values())) < len(ranks):
        raise _odd(path, "two tokens have one rank")
    return ranks


def _merges(ranks: dict[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield every way to join two tokens to a third, the third's lowest rank first."""
    for token in sorted(ranks, key=ranks.__getitem__):
        ways = [
            (ranks[token[:place]], ranks[token[place:]], place)
            for place in range(1, len(token))
            if token[:place] in ranks and token[place:] in ranks
        ]
        for _, _, place in sorted(ways):
            yield token[:place], token[place:]


def _letters() -> list[str]:
    """Return the letter that stands for each byte in byte-level vocabularies (GPT-2's alphabet)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in plain}
    others = (byte for byte in range(_BYTES) if byte not in letters)
    letters |= {byte: chr(_BYTES + place) for place, byte in enumerate(others)}
    return [letters[byte] for byte in range(_BYTES)]


def _special_tokens(path: Path) -> dict[str, int]:
    """Return id by text of the tokens that tokenizer_config.json adds; none where there is no such file."""
    table = read_json(path, what="tokenizer config") if path.is_file() else None
    added = table.get("added_tokens_decoder") if isinstance(table, dict) else None
    found: dict[str, int] = {}
    for number, entry in added.items() if isinstance(added, dict) else ():
        text = entry.get("content") if isinstance(entry, dict) else None
        if isinstance(text, str) and text and str(number).isascii() and str(number).isdecimal():
            found[text] = int(number)
    return found


def _pattern(folder: Path) -> str:
    """Return `pat_str` of the tokenization_….py, where it is written out: read, not run."""
    for path in sorted(folder.glob("tokenization_*.py")):
        code = read_text(path, what="tokenizer's code", limit_bytes=_CODE_LIMIT_BYTES)
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in ast.walk(tree):
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            targets: list[Any] = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            names = [getattr(target, "id", getattr(target, "attr", "")) for target in targets]
            text = _written_out(value) if "pat_str" in names or "PAT_STR" in names else None
            if text:
                return text
    raise DeployKitError(
        "how this tokenizer splits text is not known",
        file=folder,
        found="no tokenization_*.py with a pat_str that is written out",
        allowed="the file beside tiktoken.model, as the model's publisher ships it",
        remedy="give token counts instead (--frequencies), made with the target's own tokenizer",
        exit_code=ExitCode.INPUT,
    )


def _written_out(value: ast.expr | None) -> str | None:
    """Return a string constant, or constants joined by `"…".join([…])`."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "join":
        parts = [_written_out(part) for part in value.args[:1] for part in getattr(part, "elts", [])]
        between = _written_out(value.func.value)
        if between is None or not parts or None in parts:
            return None
        return between.join(part for part in parts if part is not None)
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _odd(path: Path, found: str) -> DeployKitError:
    return DeployKitError(
        "the tokenizer cannot be read",
        file=path,
        found=found,
        allowed="lines of `base64 rank`, every byte among them",
        remedy="give token counts instead (--frequencies), made with the target's own tokenizer",
        exit_code=ExitCode.INPUT,
    )
