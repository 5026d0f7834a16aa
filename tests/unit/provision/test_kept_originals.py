"""Originals that provisioning keeps: put back byte for byte, never lost, never over somebody else's
change."""

from __future__ import annotations

import importlib.util
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[3]
SPEC = importlib.util.spec_from_file_location(
    "deploy_kit_kept", ROOT / "ansible/module_utils/deploy_kit_kept.py"
)
assert SPEC is not None
assert SPEC.loader is not None
kept_module: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(kept_module)


def put(kept: Any, path: Path, data: bytes) -> None:
    kept.will_write(path, data)
    kept_module.write_atomically(path, data, mode=0o600, owner=(os.getuid(), os.getgid()))


@pytest.mark.parametrize("content", [b"", b"a\n", b"\xff\x00no newline"])
def test_a_file_comes_back_with_content_mode_and_time(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "grub"
    path.write_bytes(content)
    path.chmod(0o640)
    os.utime(path, ns=(1_000_000_000, 1_234_567_890))
    put(kept_module.Kept(str(tmp_path / "var/kept")), path, b"first")
    put(kept_module.Kept(str(tmp_path / "var/kept")), path, b"second")
    kept_module.Kept(str(tmp_path / "var/kept")).restore_file(str(path))
    status = path.stat()
    assert (path.read_bytes(), stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (
        content,
        0o640,
        1_234_567_890,
    )
    assert not (tmp_path / "var").exists()


def test_a_new_file_goes_with_the_folders_made_for_it(tmp_path: Path) -> None:
    path = tmp_path / "a/b/c.conf"
    put(kept_module.Kept(str(tmp_path / "var/kept")), path, b"new")
    kept_module.Kept(str(tmp_path / "var/kept")).restore_file(str(path))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_somebody_else_uses_stays(tmp_path: Path) -> None:
    path = tmp_path / "a/c.conf"
    put(kept_module.Kept(str(tmp_path / "var/kept")), path, b"new")
    (tmp_path / "a/other").touch()
    kept_module.Kept(str(tmp_path / "var/kept")).restore_file(str(path))
    assert [entry.name for entry in (tmp_path / "a").iterdir()] == ["other"]


def test_somebody_elses_change_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    kept = kept_module.Kept(str(tmp_path / "var/kept"))
    put(kept, path, b"new")
    assert not kept.changed_since(str(path))
    path.write_bytes(b"mine")
    assert kept.changed_since(str(path))


def test_an_interruption_before_the_write_leaves_nothing_to_undo_wrongly(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    kept_module.Kept(str(tmp_path / "var/kept")).will_write(path, b"new")  # and the machine goes down here
    again = kept_module.Kept(str(tmp_path / "var/kept"))
    assert not again.changed_since(str(path))
    again.restore_file(str(path))
    assert path.read_bytes() == b"old"


def test_a_damaged_original_is_never_put_back(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    put(kept_module.Kept(str(tmp_path / "var/kept")), path, b"new")
    next((tmp_path / "var/kept/originals").iterdir()).write_bytes(b"0ld")
    with pytest.raises(ValueError, match="was changed"):
        kept_module.Kept(str(tmp_path / "var/kept")).restore_file(str(path))
    assert path.read_bytes() == b"new"


@given(st.lists(st.sampled_from(["always", "[madvise]", "never", "0", "performance"]), max_size=3))
def test_the_value_in_force_is_one_word_of_the_file(words: list[str]) -> None:
    value = kept_module.active_word(" ".join(words) + "\n")
    assert value == ("madvise" if "[madvise]" in words and words.count("[madvise]") >= 1 else " ".join(words))
