"""The header reader against the safetensors library's own files, and against damage of every kind."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from checkpoints import bf16, llama_tensors, save, write_drafter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy_kit.drafter import weights_file
from deploy_kit.drafter.weights_file import (
    as_float32,
    from_float32,
    header_bytes,
    read_array,
    read_header,
    read_weights,
)
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode


def test_reads_what_the_library_wrote(tmp_path: Path) -> None:
    tensors = llama_tensors()
    save(tmp_path / "a.safetensors", tensors)
    weights = read_weights(tmp_path / "a.safetensors")
    assert set(weights.tensors) == set(tensors)
    for name, (_, values) in tensors.items():
        found = read_array(weights.tensors[name])
        assert found.shape == values.shape and found.tobytes() == values.tobytes()
    head = weights.tensors["lm_head.weight"]
    assert (head.dtype, read_array(head, slice(3, 5)).tobytes()) == (
        "BF16",
        tensors["lm_head.weight"][1][3:5].tobytes(),
    )
    assert weights.files[0].metadata == {"format": "pt"}


def test_our_header_is_read_by_the_library(tmp_path: Path) -> None:
    from safetensors import safe_open

    data = np.arange(6, dtype=np.int64)
    path = tmp_path / "x.safetensors"
    path.write_bytes(header_bytes([("d2t", "I64", (6,), 48)], {"format": "pt"}) + data.tobytes())
    with safe_open(path, framework="numpy") as opened:
        assert opened.get_tensor("d2t").tolist() == data.tolist()
        assert opened.metadata() == {"format": "pt"}


def test_bf16_round_trip_and_rounding() -> None:
    values = np.array([1.0, -2.5, 3.14159, 0.0, 1e-38], dtype=np.float32)
    raw = bf16(values)
    assert (from_float32(as_float32(raw, "BF16"), "BF16") == raw).all()
    # Halfway between two neighbours goes to the even one.
    assert from_float32(np.array([1.00390625], dtype=np.float32), "BF16")[0] == 0x3F80
    assert from_float32(np.array([1.01171875], dtype=np.float32), "BF16")[0] == 0x3F82


def test_header_is_read_without_the_data(tmp_path: Path) -> None:
    # A sparse file of 40 GB: reading it would take minutes and its memory.
    count = 40 * 2**30
    path = tmp_path / "big.safetensors"
    header = header_bytes([("lm_head.weight", "BF16", (count // 2048, 1024), count)], {})
    with path.open("wb") as handle:
        handle.write(header)
        handle.truncate(len(header) + count)
    assert read_weights(path).tensors["lm_head.weight"].shape == (count // 2048, 1024)


def table(**entry: object) -> bytes:
    raw = json.dumps({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **entry}}).encode()
    return struct.pack("<Q", len(raw)) + raw + b"\0" * 8


GOOD = table()
DAMAGED = {
    "empty": b"",
    "short": b"\1\2\3",
    "absurd header": struct.pack("<Q", 2**63) + b"{}",
    "git-lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    "header beyond the end": struct.pack("<Q", 4096) + b"{}",
    "not JSON": struct.pack("<Q", 2) + b"{x",
    "a list": struct.pack("<Q", 2) + b"[]",
    "deep nesting": struct.pack("<Q", 200_000) + b"[" * 200_000,
    "truncated": GOOD[:-1],
    "trailing bytes": GOOD + b"\0",
    "unknown type": table(dtype="F128"),
    "type is a list": table(dtype=["F32"]),
    "negative offsets": table(data_offsets=[-8, 0]),
    "offsets swapped": table(data_offsets=[8, 0]),
    "one offset": table(data_offsets=[8]),
    "shape of text": table(shape=["2"]),
    "shape of truth": table(shape=[True, 2]),
    "huge shape": table(shape=[2**62, 2**62]),
    "wrong size": table(shape=[3]),
    "hole": table(data_offsets=[4, 12]),
    "twice": struct.pack("<Q", 12) + b'{"a":1,"a":2',
    "metadata is text": struct.pack("<Q", 22) + b'{"__metadata__":"text"}'[:22],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_a_clear_error(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(DAMAGED[name])
    with pytest.raises(DeployKitError) as caught:
        read_weights(path)
    assert caught.value.exit_code == ExitCode.INPUT
    assert caught.value.file == str(path)


def test_good_one_is_good(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(GOOD)
    assert read_array(read_weights(tmp_path / "x.safetensors").tensors["x"]).tolist() == [0.0, 0.0]


class Bomb:
    """Unpickling it would leave a trace."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("unpickled",)


@pytest.mark.parametrize("as_file", [True, False])
def test_pickled_is_refused_and_never_opened(
    as_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "m"
    folder.mkdir()
    path = folder / "pytorch_model.bin"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DeployKitError, match="pickled weights are refused"):
        read_weights(path if as_file else folder)
    # A pickled file under a safetensors name is no safetensors file either.
    path.rename(folder / "model.safetensors")
    with pytest.raises(DeployKitError, match="not a whole safetensors file"):
        read_weights(folder)
    assert not (tmp_path / "unpickled").exists()


def index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_index_of_64_shards(tmp_path: Path) -> None:
    names = {f"w{n}": f"model-{n:05}-of-00064.safetensors" for n in range(1, 65)}
    for name, shard in names.items():
        save(tmp_path / shard, {name: ("float32", np.ones((2, 2), dtype=np.float32))})
    index(tmp_path, names)
    assert len(read_weights(tmp_path).tensors) == 64
    save(tmp_path / names["w9"], {"other": ("float32", np.ones(2, dtype=np.float32))})
    with pytest.raises(DeployKitError, match="1 tensors of the index are not in the shard"):
        read_weights(tmp_path)
    (tmp_path / names["w9"]).unlink()
    (tmp_path / names["w40"]).unlink()
    with pytest.raises(DeployKitError, match="2 of 64 shards"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    "weight_map", [None, [], {}, {"a": 3}, {"a": "../x.safetensors"}, {"a": "/etc/passwd"}, {"a": ""}]
)
def test_bad_index(weight_map: object, tmp_path: Path) -> None:
    index(tmp_path, weight_map)
    with pytest.raises(DeployKitError):
        read_weights(tmp_path)


def test_two_files_with_one_name_and_the_mistral_pair(tmp_path: Path) -> None:
    one = {"w": ("float32", np.ones(2, dtype=np.float32))}
    save(tmp_path / "model.safetensors", one)
    save(tmp_path / "consolidated.safetensors", one)
    assert len(read_weights(tmp_path).files) == 1
    save(tmp_path / "b.safetensors", one)
    with pytest.raises(DeployKitError, match="two files hold a tensor called w"):
        read_weights(tmp_path)


@pytest.mark.timeout(20)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(DeployKitError, match="not a file"):
            read_weights(path)


def test_symlink_loops_and_missing_places(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "model.safetensors").symlink_to("model.safetensors")
    for path in (tmp_path / "a", tmp_path, tmp_path / "nowhere", tmp_path / "model.safetensors"):
        with pytest.raises(DeployKitError):
            read_weights(path)


def test_empty_folder_names_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(DeployKitError, match="no weights here") as caught:
        read_weights(tmp_path)
    assert caught.value.remedy is not None


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_bytes(tmp_path: Path, data: st.DataObject) -> None:
    original = GOOD
    place = data.draw(st.integers(0, len(original) - 1))
    patch = data.draw(st.binary(min_size=1, max_size=6))
    path = tmp_path / "flip.safetensors"
    path.write_bytes(original[:place] + patch + original[place + len(patch) :])
    try:
        file = read_header(path)
    except DeployKitError as error:
        assert error.exit_code == ExitCode.INPUT
    else:
        assert all(t.end <= path.stat().st_size for t in file.tensors)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=64))
def test_any_bytes(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "any.safetensors"
    path.write_bytes(raw)
    with pytest.raises(DeployKitError):
        read_header(path)


def test_long_and_broken_configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_drafter(tmp_path / "d")
    monkeypatch.setattr(weights_file, "CONFIG_LIMIT_BYTES", 10)
    with pytest.raises(DeployKitError, match="longer than"):
        weights_file.read_json(folder / "config.json", what="config", limit_bytes=10)
    (folder / "config.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(DeployKitError, match="not JSON"):
        weights_file.read_json(folder / "config.json", what="config")
