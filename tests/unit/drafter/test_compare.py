"""Two drafters side by side, and what a vocabulary can cover."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoints import EVERY_FOURTH, OTHER, VOCABULARY, llama_tensors, save, write_drafter, write_model

from deploy_kit.drafter.compare import compare_vocabulary, compare_weights, draft_targets
from deploy_kit.drafter.coverage import (
    ceiling_from_counts,
    ceiling_from_tokens,
    most_frequent,
    read_frequencies,
    tokens_of_text,
)
from deploy_kit.drafter.weights_file import read_weights
from deploy_kit.errors import DeployKitError


def test_story_like_table(tmp_path: Path) -> None:
    a, b = write_drafter(tmp_path / "a"), write_drafter(tmp_path / "b", OTHER)
    weights = {name: read_weights(path) for name, path in (("a", a), ("b", b))}
    rows = compare_weights(weights["a"], weights["b"])
    assert all(row.same for row in rows) and len(rows) == 15
    words = compare_vocabulary(draft_targets(a, weights["a"])[0], draft_targets(b, weights["b"])[0])
    assert (words.positions, words.agreeing) == (24, int((EVERY_FOURTH == OTHER).sum()))
    assert (words.both, words.only_a, words.only_b) == (12, 12, 12)
    assert words.only_a_examples[:3] == (0, 4, 8)


def test_differing_and_absent_weights(tmp_path: Path) -> None:
    tensors = llama_tensors()
    del tensors["t2d"]
    tensors["fc.weight"] = ("float32", np.zeros((32, 64), np.float32))
    save(tmp_path / "b.safetensors", tensors)
    save(tmp_path / "a.safetensors", llama_tensors())
    rows = {
        r.name: r
        for r in compare_weights(
            read_weights(tmp_path / "a.safetensors"), read_weights(tmp_path / "b.safetensors")
        )
    }
    assert rows["t2d"].b is None and not rows["t2d"].same
    assert rows["fc.weight"].b == "F32 [32, 64]"


def test_full_vocabulary_without_map(tmp_path: Path) -> None:
    tensors = llama_tensors(np.arange(VOCABULARY, dtype=np.int64))
    del tensors["d2t"], tensors["t2d"]
    folder = write_model(tmp_path / "f", {"vocab_size": VOCABULARY}, tensors)
    targets, size = draft_targets(folder, read_weights(folder))
    assert size == VOCABULARY and (targets == np.arange(VOCABULARY)).all()
    (folder / "config.json").write_text(json.dumps({"vocab_size": 500}))
    with pytest.raises(DeployKitError, match="vocabulary is not known"):
        draft_targets(folder, read_weights(folder))


def test_map_outside_or_unreadable(tmp_path: Path) -> None:
    for name, d2t in (
        ("o", ("int64", np.full(24, 90, np.int64))),
        ("f", ("float32", np.zeros(24, np.float32))),
    ):
        folder = write_model(tmp_path / name, None, {**llama_tensors(), "d2t": d2t})
        with pytest.raises(DeployKitError):
            draft_targets(folder, read_weights(folder))


def test_ceiling_from_counts() -> None:
    counts = np.zeros(10)
    counts[:4] = [40, 30, 20, 10]
    ceiling = ceiling_from_counts(counts, np.array([0, 1, 2]), 3)
    assert ceiling.covered == pytest.approx(0.9)
    assert ceiling.accept_length == pytest.approx(1 + 0.9 + 0.81 + 0.729)


def test_ceiling_from_tokens() -> None:
    draft = np.array([1, 2, 3])
    assert ceiling_from_tokens([1, 2, 3, 1] * 4, draft, 3).accept_length == 4.0
    assert ceiling_from_tokens([9] * 8, draft, 3).accept_length == 1.0
    # 1 2 9 | 1 2 9 | …: two accepted and the bonus says 9.
    assert ceiling_from_tokens([1, 2, 9] * 10, draft, 3).accept_length == pytest.approx(3.0)


@pytest.mark.parametrize(
    "text", ['{"3": 5, "1": 2}', "3 5\n1 2\n", "3\t5\n# remark\n1\t2\n", "3,5\n1,2\n", "[0, 2, 0, 5]"]
)
def test_frequency_files(text: str, tmp_path: Path) -> None:
    path = tmp_path / "counts"
    path.write_text(text)
    assert read_frequencies(path, 5).tolist() == [0, 2, 0, 5, 0]


@pytest.mark.parametrize("text", ["", "x 5", "3", "9 1", "-1 4", "1 -4", "1 nan", "{", '{"1": null}', "1 0"])
def test_bad_frequency_files(text: str, tmp_path: Path) -> None:
    path = tmp_path / "counts"
    path.write_text(text)
    with pytest.raises(DeployKitError):
        read_frequencies(path, 5)


def test_most_frequent() -> None:
    assert most_frequent(np.array([1.0, 9, 1, 7]), 3).tolist() == [0, 1, 3]
    with pytest.raises(DeployKitError):
        most_frequent(np.ones(3), 4)


def test_sample_text(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    sample = tmp_path / "sample.txt"
    sample.write_text("a b a c")
    assert tokens_of_text(sample, tmp_path).tolist() == [0, 1, 0, 2]
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DeployKitError, match="tokenizer cannot be read"):
        tokens_of_text(sample, tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(DeployKitError, match="no tokenizer"):
        tokens_of_text(sample, tmp_path)
