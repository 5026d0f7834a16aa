"""A tiktoken.model read as data, against tiktoken's rule written out: neighbours join by the lowest rank."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.drafter.coverage import tokens_of_text
from deploy_kit.drafter.tiktoken_file import read_tokenizer
from deploy_kit.errors import DeployKitError

PATTERN = r" ?[a-z]+| ?[^\sa-z]+|\s+"
LINES = ("ab", "abc", " ab", "ca", "bca", " abca", "aa", "aaa", "\u00e9", "..", "1.", "\n\n", "cab")
RANKS = {bytes([byte]): 255 - byte for byte in range(256)} | {
    line.encode(): 256 + place for place, line in enumerate(LINES)
}
CODE = """
import a_package_that_is_not_there

class TikTokenTokenizer:
    vocab_files_names = {"vocab_file": "tiktoken.model"}
    pat_str = "|".join([%s])
    raise SystemExit("this is never run")
"""


def write(folder: Path, *, code: str | None = None, ranks: dict[bytes, int] = RANKS) -> Path:
    folder.mkdir(exist_ok=True)
    rows = (f"{base64.b64encode(token).decode()} {rank}" for token, rank in ranks.items())
    (folder / "tiktoken.model").write_text("\n".join(rows) + "\n")
    parts = ", ".join(repr(part) for part in PATTERN.split("|"))
    (folder / "tokenization_kimi.py").write_text(CODE % parts if code is None else code)
    added = {"400": {"content": "[BOS]", "special": True}, "407": {"content": "<|im_end|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("target") / "kimi")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return read_tokenizer(folder)


def by_the_rule(text: str) -> list[int]:
    """Each piece: a token as it is, or bytes of which the leftmost pair of the lowest rank joins, again and
    again."""
    found: list[int] = []
    for piece in re.findall(PATTERN, text):
        parts = [bytes([byte]) for byte in piece.encode()]
        if piece.encode() in RANKS:
            parts = [piece.encode()]
        while True:
            pairs = [(RANKS.get(parts[i] + parts[i + 1], 10**9), i) for i in range(len(parts) - 1)]
            rank, place = min(pairs, default=(10**9, 0))
            if rank == 10**9:
                break
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        found += [RANKS[part] for part in parts]
    return found


@given(text=st.text(alphabet="abc \n.1\u00e9\u4e2dZ", max_size=40))
def test_as_tiktoken_does_it(tokenizer: Any, text: str) -> None:
    assert tokenizer.encode(text, add_special_tokens=False).ids == by_the_rule(text)


def test_special_tokens_have_their_own_numbers(tokenizer: Any) -> None:
    ids = tokenizer.encode("ab[BOS] ab<|im_end|>", add_special_tokens=False).ids
    assert ids == [RANKS[b"ab"], 400, RANKS[b" ab"], 407]


def test_a_sample_text_is_read_with_it(folder: Path, tmp_path: Path) -> None:
    sample = tmp_path / "sample.txt"
    sample.write_text("abc abca")
    assert tokens_of_text(sample, folder).tolist() == [RANKS[b"abc"], RANKS[b" abca"]]
    (folder / "config.json").write_text("{}")
    assert tokens_of_text(sample, folder / "config.json").size == 2


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("", "not known"),
        ("pat_str = compute()", "not known"),
        ("pat_str = '|'.join(parts)", "not known"),
        ("def broken(", "not known"),
        ("pat_str = '(unclosed'", "cannot be read"),
        ("(" * 5000, "not known"),
    ],
)
def test_a_split_that_is_not_written_out(tmp_path: Path, code: str, word: str) -> None:
    with pytest.raises(DeployKitError, match=word) as caught:
        read_tokenizer(write(tmp_path / "odd", code=code))
    assert "--frequencies" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    "line",
    ["not base64! 5", "YWI=", "YWI= x", " 300", "YWI= -1", "YWI= 0", "YWI= 99999999999", "A" * 4000 + " 300"],
)
def test_damaged_ranks(tmp_path: Path, line: str) -> None:
    folder = write(tmp_path / "odd")
    with (folder / "tiktoken.model").open("a") as handle:
        handle.write(line + "\n")
    with pytest.raises(DeployKitError):
        read_tokenizer(folder)


def test_a_byte_that_is_no_token(tmp_path: Path) -> None:
    ranks = {token: rank for token, rank in RANKS.items() if token != b"z"}
    with pytest.raises(DeployKitError, match="cannot be read"):
        read_tokenizer(write(tmp_path / "odd", ranks=ranks))
