"""Whether weights are whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.errors import DeployKitError
from deploy_kit.provision.weights import look_at_weights, parse_checksums, parse_hub_notes

NAMES = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
INDEX = json.dumps(
    {"metadata": {"total_size": 2900}, "weight_map": {f"w{i}": name for i, name in enumerate(NAMES)}}
)
WHOLE = dict.fromkeys(NAMES, 1000)
SUM = "0123456789abcdef" * 4


def look(files: dict[str, int] | None = None, index: str | None = INDEX, **more: Any) -> Any:
    return look_at_weights(WHOLE if files is None else files, index, shards=3, size_bytes=3000, **more)


def test_whole_weights_are_whole() -> None:
    weights = look()
    assert weights.whole
    assert weights.as_dict()["needed_bytes"] == 0
    assert weights.as_dict()["without_checksum"] == NAMES


@pytest.mark.parametrize(
    ("files", "index", "words"),
    [
        ({}, None, "there are no weights"),
        (WHOLE, None, "model.safetensors.index.json is missing"),
        (WHOLE, INDEX[:-5], "is damaged"),
        (WHOLE, '{"weight_map": {"a": "../x.safetensors"}}', "outside the folder"),
        ({**WHOLE, NAMES[1]: 400}, INDEX, "cut short"),
        (WHOLE, json.dumps({"weight_map": {"a": NAMES[0]}}), "1 shards, the model has 3"),
    ],
)
def test_what_is_wrong_is_said(files: dict[str, int], index: str | None, words: str) -> None:
    weights = look(files, index)
    assert not weights.whole
    assert words in weights.problem


def test_missing_and_empty_shards_are_named_and_the_room_they_need() -> None:
    weights = look({NAMES[0]: 1000, NAMES[2]: 0})
    assert (weights.missing, weights.damaged) == ((NAMES[1],), (NAMES[2],))
    assert weights.as_dict()["needed_bytes"] == 2000


def test_checksums_of_a_file_win_over_the_hubs_notes() -> None:
    notes = "\n".join(f"/m/.cache/huggingface/download/{name}.metadata:{SUM}" for name in NAMES)
    assert look(hub_checksums=parse_hub_notes(notes)).checksums == dict.fromkeys(NAMES, SUM)
    other = "f" * 64
    text = "".join(f"{other}  {name}\n" for name in NAMES)
    assert look(checksums=text, hub_checksums=parse_hub_notes(notes)).checksums == dict.fromkeys(NAMES, other)


def test_a_checksum_file_must_name_every_shard() -> None:
    assert "names no sum for" in str(look(checksums=f"{SUM}  {NAMES[0]}\n").problem)


def test_a_file_of_another_kind_is_refused() -> None:
    with pytest.raises(DeployKitError, match="no checksum file"):
        parse_checksums("hello\n")


@given(st.text(max_size=200))
def test_no_index_gives_a_traceback(text: str) -> None:
    look(index=text)


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_no_json_index_gives_a_traceback(value: Any) -> None:
    look(index=json.dumps({"weight_map": value, "metadata": value}))
