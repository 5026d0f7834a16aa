"""Checks of folders: the same findings, with the values that only files have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import (
    DRAFT,
    EVERY_FOURTH,
    HIDDEN,
    LLAMA_CONFIG,
    bf16,
    llama_tensors,
    write_drafter,
    write_model,
    write_target,
)

from deploy_kit.drafter.check import check_drafter
from deploy_kit.drafter.findings import Report
from deploy_kit.drafter.local import compare_tokenizers, describe_folder
from deploy_kit.errors import DeployKitError

Tensors = dict[str, tuple[str, Any]]


def check(draft: Path, target: Path | None, **options: Any) -> Report:
    return check_drafter(describe_folder(draft, target, sglang_version="0.5.23", **options))


def test_good(tmp_path: Path) -> None:
    report = check(write_drafter(tmp_path / "d"), write_target(tmp_path / "t"))
    assert report.verdict == "ok", report.cause
    assert "t2d marks exactly the 24 tokens of d2t" in report.cause
    assert report.facts["sglang_version"] == "0.5.23"


def test_single_file_and_no_config(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "d", None, llama_tensors())
    report = check(folder / "model.safetensors", write_target(tmp_path / "t"))
    assert report.verdict == "warn" and "no config.json" in report.cause


def test_target_as_its_own_drafter(tmp_path: Path) -> None:
    target = write_target(tmp_path / "t")
    report = check(target, target)
    assert (report.verdict, report.kind) == ("reject", "will not load")
    assert "loaded a second time" in report.cause


def spoiled(tensors: Tensors, name: str, value: float) -> Tensors:
    dtype, values = tensors[name]
    values = values.copy()
    values[-1] = bf16(np.full(values.shape[1:], value, dtype=np.float32))
    return {**tensors, name: (dtype, values)}


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinite")])
def test_damaged_values(value: float, word: str, tmp_path: Path) -> None:
    draft = write_model(tmp_path / "d", LLAMA_CONFIG, spoiled(llama_tensors(), "lm_head.weight", value))
    report = check(draft, write_target(tmp_path / "t"))
    assert report.verdict == "reject" and f"lm_head.weight: {word} values" in report.cause


def test_empty_head(tmp_path: Path) -> None:
    zeros = ("bfloat16", np.zeros((DRAFT, HIDDEN), dtype=np.uint16))
    draft = write_model(tmp_path / "d", LLAMA_CONFIG, {**llama_tensors(), "lm_head.weight": zeros})
    assert "all-zero" in check(draft, write_target(tmp_path / "t")).cause


def test_damage_between_the_samples_needs_every_value(tmp_path: Path) -> None:
    rows, width = 6000, 256
    values = np.ones((rows, width), dtype=np.float32)
    values[300, 7] = np.nan
    draft = write_model(tmp_path / "d", None, {"lm_head.weight": ("bfloat16", bf16(values))})
    assert describe_folder(draft, None).bad_values == ()
    assert describe_folder(draft, None, every_value=True).bad_values == (("lm_head.weight", "NaN"),)


def test_map_of_absolute_ids_and_of_zeros(tmp_path: Path) -> None:
    target = write_target(tmp_path / "t")
    absolute = write_model(tmp_path / "a", LLAMA_CONFIG, {**llama_tensors(), "d2t": ("int64", EVERY_FOURTH)})
    report = check(absolute, target)
    assert report.verdict == "reject" and "absolute" in report.cause
    zeros = write_model(
        tmp_path / "z", LLAMA_CONFIG, {**llama_tensors(), "d2t": ("int64", np.zeros(DRAFT, np.int64))}
    )
    assert "all zeros" in check(zeros, target).cause


def test_absent_defaults_are_the_engines(tmp_path: Path) -> None:
    target = write_target(tmp_path / "t")
    config = {key: value for key, value in LLAMA_CONFIG.items() if key != "max_position_embeddings"}
    report = check(write_model(tmp_path / "d", config, llama_tensors()), target)
    assert report.verdict == "reject" and "2048" in report.cause
    config = {key: value for key, value in LLAMA_CONFIG.items() if key != "torch_dtype"}
    report = check(write_model(tmp_path / "e", config, llama_tensors()), target)
    assert report.verdict == "reject" and "torch_dtype" in report.cause


def tokenizer(folder: Path, words: dict[str, int], added: dict[str, int]) -> None:
    entries = [{"content": word, "id": number} for word, number in added.items()]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": words}, "added_tokens": entries}))


def test_tokenizers(tmp_path: Path) -> None:
    target, draft = write_target(tmp_path / "t"), write_drafter(tmp_path / "d")
    words = {f"w{n}": n for n in range(90)}
    tokenizer(target, words, {"<think>": 90})
    assert check(draft, target).verdict == "ok"
    tokenizer(draft, words, {"<think>": 90})
    assert "the tokenizers are the same" in check(draft, target).cause
    tokenizer(draft, words, {"<thought>": 90})
    report = check(draft, target)
    assert report.verdict == "warn" and "added tokens only" in report.cause
    tokenizer(draft, {f"w{89 - n}": n for n in range(90)}, {})
    report = check(draft, target)
    assert report.verdict == "reject" and "90 tokens have another id" in report.cause
    (draft / "tokenizer.json").write_text('{"model": 3}')
    assert compare_tokenizers(draft, target) is None


def test_tiktoken_tables(tmp_path: Path) -> None:
    for name, last in (("a", "Zg=="), ("b", "Zw==")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tiktoken.model").write_text(f"YQ== 0\nYg== 1\n{last} 2\n")
        (folder / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"3": {"content": "<x>"}}}')
    facts = compare_tokenizers(tmp_path / "a", tmp_path / "b")
    assert facts is not None
    assert (facts.drafter_size, facts.only_drafter, facts.only_target, facts.moved) == (4, 1, 1, 0)


def test_unreadable_target(tmp_path: Path) -> None:
    draft = write_drafter(tmp_path / "d")
    with pytest.raises(DeployKitError):
        describe_folder(draft, tmp_path / "nowhere")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(DeployKitError, match="not a table"):
        describe_folder(draft, tmp_path / "list.json")
