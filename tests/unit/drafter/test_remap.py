"""Remapping: every byte accounted for, round trips, and nothing left behind when it fails."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import (
    EVERY_FOURTH,
    HIDDEN,
    LLAMA_CONFIG,
    OTHER,
    VOCABULARY,
    Array,
    llama_tensors,
    save,
    write_drafter,
    write_model,
    write_target,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy_kit.drafter import ordered_output
from deploy_kit.drafter.check import check_drafter
from deploy_kit.drafter.compare import draft_targets
from deploy_kit.drafter.local import describe_folder
from deploy_kit.drafter.remap import plan_remap, write_remap
from deploy_kit.drafter.weights_file import as_float32, read_array, read_weights
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode


def arrays(path: Path) -> dict[str, Array]:
    return {name: read_array(tensor) for name, tensor in read_weights(path).tensors.items()}


def run(source: Path, targets: Array, out: Path, initial: Any = "mean", target: Path | None = None) -> Path:
    write_remap(plan_remap(source, targets, None), out, initial=initial, target=target)
    return out


def test_rows_follow_their_tokens(tmp_path: Path) -> None:
    source = write_drafter(tmp_path / "a")
    (source / "README.md").write_text("a drafter\n")
    (source / "eagle_meta.pt").write_bytes(b"old map")
    out = run(source, OTHER, tmp_path / "b", "zero")
    before, after = arrays(source), arrays(out)
    assert list(before) == list(after)
    for name in before:
        if name not in ("lm_head.weight", "d2t", "t2d"):
            assert before[name].tobytes() == after[name].tobytes(), name
    assert (after["d2t"] + np.arange(OTHER.size) == OTHER).all()
    assert np.flatnonzero(after["t2d"]).tolist() == sorted(OTHER.tolist())
    for row, token in enumerate(OTHER):
        old = np.flatnonzero(token == EVERY_FOURTH)
        wanted = before["lm_head.weight"][old[0]] if old.size else np.zeros(HIDDEN, np.uint16)
        assert (after["lm_head.weight"][row] == wanted).all()
    assert (out / "config.json").read_bytes() == (source / "config.json").read_bytes()
    assert (out / "README.md").read_text() == "a drafter\n"
    assert not (out / "eagle_meta.pt").exists()
    report = check_drafter(describe_folder(out, write_target(tmp_path / "t"), sglang_version="0.5.23"))
    # OTHER is not in rising order, which the check remarks on.
    assert {finding.id for finding in report.deciding} == {"d2t-order"}


def test_same_vocabulary_gives_the_same_bytes(tmp_path: Path) -> None:
    source = write_drafter(tmp_path / "a")
    out = run(source, EVERY_FOURTH, tmp_path / "b")
    assert (out / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


def test_plan_counts(tmp_path: Path) -> None:
    plan = plan_remap(write_drafter(tmp_path / "a"), OTHER, VOCABULARY)
    assert (plan.kept, plan.initialised, plan.dropped) == (12, 12, 12)
    assert plan.as_dict()["rows"] == 24
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    first=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40, unique=True),
    second=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40, unique=True),
)
def test_round_trip_restores_kept_rows(tmp_path_factory: Any, first: list[int], second: list[int]) -> None:
    base = tmp_path_factory.mktemp("trip")
    a, b = np.array(first, dtype=np.int64), np.array(second, dtype=np.int64)
    source = write_drafter(base / "a", a)
    back = run(run(source, b, base / "b"), a, base / "c")
    before, after = arrays(source), arrays(back)
    kept = np.isin(a, b)
    assert (before["lm_head.weight"][kept] == after["lm_head.weight"][kept]).all()
    assert (before["d2t"] == after["d2t"]).all() and (before["t2d"] == after["t2d"]).all()
    assert json.loads((back / "config.json").read_text()) == json.loads((source / "config.json").read_text())
    assert json.loads((base / "b" / "config.json").read_text())["draft_vocab_size"] == b.size
    # The library reads what we wrote.
    from safetensors import safe_open

    with safe_open(back / "model.safetensors", framework="numpy") as opened:
        assert set(opened.keys()) == set(before)


def test_initial_rows(tmp_path: Path) -> None:
    source, target = write_drafter(tmp_path / "a"), write_target(tmp_path / "t")
    new = np.array([1, 4], dtype=np.int64)
    head = as_float32(arrays(source)["lm_head.weight"], "BF16")
    mean = arrays(run(source, new, tmp_path / "m"))["lm_head.weight"]
    assert np.allclose(as_float32(mean, "BF16")[0], head.mean(axis=0), rtol=1 / 128, atol=1e-6)
    from_target = arrays(run(source, new, tmp_path / "h", "target", target))["lm_head.weight"]
    assert (from_target[0] == arrays(target)["lm_head.weight"][1]).all()
    assert (from_target[1] == arrays(source)["lm_head.weight"][1]).all()
    with pytest.raises(DeployKitError, match="needs --target"):
        run(source, new, tmp_path / "x", "target")
    with pytest.raises(DeployKitError, match="head cannot be used"):
        run(source, new, tmp_path / "x", "target", write_drafter(tmp_path / "small"))
    assert not (tmp_path / "x").exists()


def test_full_vocabulary_is_pruned(tmp_path: Path) -> None:
    tensors = llama_tensors(np.arange(VOCABULARY, dtype=np.int64))
    del tensors["d2t"], tensors["t2d"]
    config = {**LLAMA_CONFIG, "draft_vocab_size": VOCABULARY}
    out = run(write_model(tmp_path / "a", config, tensors), EVERY_FOURTH, tmp_path / "b")
    after = arrays(out)
    assert (after["d2t"] + np.arange(24) == EVERY_FOURTH).all()
    assert (after["lm_head.weight"] == tensors["lm_head.weight"][1][EVERY_FOURTH]).all()
    report = check_drafter(describe_folder(out, write_target(tmp_path / "t"), sglang_version="0.5.23"))
    assert report.verdict == "ok", report.cause


def test_several_files_and_the_index(tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.mkdir()
    tensors = llama_tensors()
    head = {name: tensors.pop(name) for name in ("lm_head.weight", "d2t")}
    save(source / "one.safetensors", tensors)
    save(source / "two.safetensors", head)
    names = {**dict.fromkeys(tensors, "one.safetensors"), **dict.fromkeys(head, "two.safetensors")}
    total = sum(values.nbytes for _, values in [*tensors.values(), *head.values()])
    index = {"metadata": {"total_size": total}, "weight_map": names}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    (source / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    out = run(source, EVERY_FOURTH[:10], tmp_path / "b")
    made = read_weights(out)
    size = json.loads((out / "model.safetensors.index.json").read_text())["metadata"]["total_size"]
    assert size == sum(tensor.size_bytes for tensor in made.tensors.values())
    assert made.tensors["lm_head.weight"].shape == (10, HIDDEN)


def test_overwritten_map_is_repaired(tmp_path: Path) -> None:
    good = write_drafter(tmp_path / "good")
    wrong_map = llama_tensors(OTHER)
    damaged = write_model(
        tmp_path / "bad", LLAMA_CONFIG, {**llama_tensors(), "d2t": wrong_map["d2t"], "t2d": wrong_map["t2d"]}
    )
    order = draft_targets(good, read_weights(good))[0]
    plan = plan_remap(damaged, EVERY_FOURTH, VOCABULARY, head_order=order)
    write_remap(plan, tmp_path / "fixed", initial="mean")
    assert (tmp_path / "fixed/model.safetensors").read_bytes() == (good / "model.safetensors").read_bytes()


def refuses(tmp_path: Path, source: Path, targets: Array, out: Path, words: str) -> DeployKitError:
    names = sorted(str(path) for path in tmp_path.rglob("*"))
    with pytest.raises(DeployKitError, match=words) as caught:
        run(source, targets, out)
    assert sorted(str(path) for path in tmp_path.rglob("*")) == names
    return caught.value


def test_refusals_write_nothing(tmp_path: Path) -> None:
    source = write_drafter(tmp_path / "a")
    out = tmp_path / "b"
    refuses(tmp_path, source, np.array([0, 0]), out, "names 1 tokens twice")
    refuses(tmp_path, source, np.array([VOCABULARY]), out, "token ids that the target has not")
    refuses(tmp_path, source, np.array([], dtype=np.int64), out, "token ids that the target has not")
    refuses(tmp_path, source, OTHER, source, "exists already")
    refuses(tmp_path, source, OTHER, source / "inside", "inside the source")
    refuses(tmp_path, source, OTHER, tmp_path / "no" / "where", "cannot write")
    refuses(tmp_path, source / "model.safetensors", OTHER[:3], out, "config.json too")
    headless = llama_tensors()
    del headless["lm_head.weight"]
    bare = write_model(tmp_path / "c", LLAMA_CONFIG, headless)
    refuses(tmp_path, bare, OTHER, out, "no plain lm_head")
    dangling = tmp_path / "link"
    dangling.symlink_to("nowhere")
    refuses(tmp_path, source, OTHER, dangling, "exists already")


def test_single_file(tmp_path: Path) -> None:
    source = write_drafter(tmp_path / "a")
    out = run(source / "model.safetensors", OTHER, tmp_path / "out.safetensors", "zero")
    again = run(source, OTHER, tmp_path / "b", "zero")
    assert out.read_bytes() == (again / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), OSError(errno.EIO, "broken")]
)
@pytest.mark.parametrize("after", [0, 1, 3])
def test_interruptions_leave_nothing(
    failure: BaseException, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_drafter(tmp_path / "a")
    original = (source / "model.safetensors").read_bytes()
    write_all, calls = ordered_output.write_all, iter(range(1000))

    def failing(target: int, data: Any) -> None:
        if next(calls) >= after:
            raise failure
        write_all(target, data)

    monkeypatch.setattr(ordered_output, "write_all", failing)
    monkeypatch.delattr(os, "copy_file_range")
    expected = KeyboardInterrupt if isinstance(failure, KeyboardInterrupt) else DeployKitError
    with pytest.raises(expected) as caught:
        run(source, OTHER, tmp_path / "b")
    if isinstance(failure, OSError) and failure.errno == errno.ENOSPC:
        assert isinstance(caught.value, DeployKitError) and caught.value.exit_code == ExitCode.DISK_FULL
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (source / "model.safetensors").read_bytes() == original


def test_too_little_room_is_said_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_drafter(tmp_path / "a")
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 100})())
    error = refuses(tmp_path, source, OTHER, tmp_path / "b", "too little room")
    assert error.exit_code == ExitCode.DISK_FULL


def test_without_kernel_copy_the_bytes_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_drafter(tmp_path / "a")
    first = run(source, OTHER, tmp_path / "b")

    def refused(*_: Any, **__: Any) -> int:
        raise OSError(errno.EXDEV, "other file system")

    monkeypatch.setattr(os, "copy_file_range", refused)
    second = run(source, OTHER, tmp_path / "c")
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()


def test_progress_adds_up(tmp_path: Path) -> None:
    source = write_drafter(tmp_path / "a")
    plan = plan_remap(source, OTHER, None)
    told: list[int] = []
    write_remap(plan, tmp_path / "b", initial="zero", progress=told.append)
    assert sum(told) == (tmp_path / "b/model.safetensors").stat().st_size
