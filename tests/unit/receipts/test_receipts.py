"""Receipts survive being written, refuse being changed, and never hide each other."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy_kit.errors import DeployKitError
from deploy_kit.receipts import Host, Receipt, new_receipt, read_receipt, read_receipts, write_receipt

WHEN = datetime(2026, 11, 30, 6, 0, tzinfo=UTC)


def make(**changes: Any) -> Receipt:
    parts: dict[str, Any] = {
        "kind": "bench",
        "host": Host(name="box-1", facts={"gpus": 8}),
        "rehearsal": False,
        "subject": {"profile": "baseline"},
        "samples": [1, 2.5, {"ttft_seconds": 0.25}],
        "summary": {"tokens_per_second": 82.0},
        "plan_id": "abc",
        "versions": {"sglang": "0.5.23"},
        "created_at": WHEN,
    }
    return new_receipt(**{**parts, **changes})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    receipt = make()
    path = write_receipt(tmp_path / "new" / "folder", receipt)
    assert path.name == f"bench-20261130T060000Z-{receipt.short_id}.json"
    assert read_receipt(path) == receipt
    assert list(read_receipts(path.parent)) == [receipt]
    assert read_receipts(path.parent).paths[receipt.receipt_id] == path
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]  # nothing temporary is left


def test_same_receipt_twice_is_one_file_and_another_content_is_refused(tmp_path: Path) -> None:
    receipt = make()
    path = write_receipt(tmp_path, receipt)
    assert write_receipt(tmp_path, receipt) == path
    path.chmod(0o644)
    path.write_text("damaged")
    with pytest.raises(DeployKitError, match="append-only"):
        write_receipt(tmp_path, receipt)
    assert path.read_text() == "damaged"


def test_oldest_first_and_by_kind(tmp_path: Path) -> None:
    late = make(created_at=datetime(2026, 12, 1, tzinfo=UTC))
    early = make()
    probe = make(kind="allreduce")
    for receipt in (late, early, probe):
        write_receipt(tmp_path, receipt)
    assert list(read_receipts(tmp_path, kind="bench")) == [early, late]
    assert list(read_receipts(tmp_path, kind="allreduce")) == [probe]
    assert len(read_receipts(tmp_path)) == 3


def _spoil(path: Path, change: Any) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.chmod(0o644)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        (lambda v: v.update(sumary={}), "sumary", "unknown key"),
        (lambda v: v["host"].update(gpus=1), "host.gpus", "unknown key"),
        (lambda v: v.update(schema_version=2), "schema_version", "another schema"),
        (lambda v: v.pop("schema_version"), "schema_version", "another schema"),
        (lambda v: v.pop("samples"), "samples", "not a whole receipt"),
        (lambda v: v["summary"].update(tokens_per_second=999.0), "receipt_id", "was changed"),
        (lambda v: v.update(rehearsal=True), "receipt_id", "was changed"),
        (lambda v: v.update(created_at="2026-11-30T06:00:00"), "created_at", "not a whole receipt"),
        (lambda v: v.update(kind="Bench/../x"), "kind", "not a whole receipt"),
    ],
)
def test_changed_files_are_named(tmp_path: Path, change: Any, key: str, words: str) -> None:
    path = write_receipt(tmp_path, make())
    _spoil(path, change)
    (error,) = read_receipts(tmp_path).errors
    assert error.file == str(path)
    assert error.key == key
    assert words in error.summary


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"a": NaN}', b"[" * 100_000])
def test_rubbish_is_an_error_and_hides_nothing(tmp_path: Path, text: bytes) -> None:
    good = make()
    write_receipt(tmp_path, good)
    (tmp_path / "bench-rubbish.json").write_bytes(text)
    found = read_receipts(tmp_path)
    assert list(found) == [good]
    assert [error.file for error in found.errors] == [str(tmp_path / "bench-rubbish.json")]


def test_a_half_written_file_is_an_error(tmp_path: Path) -> None:
    path = write_receipt(tmp_path, make())
    whole = path.read_bytes()
    path.chmod(0o644)
    for length in range(0, len(whole) - 2, 37):
        path.write_bytes(whole[:length])
        assert len(read_receipts(tmp_path).errors) == 1


def test_absent_folder_and_a_folder_named_like_a_receipt(tmp_path: Path) -> None:
    with pytest.raises(DeployKitError, match="no such receipts folder"):
        read_receipts(tmp_path / "absent")
    (tmp_path / "x.json").mkdir()
    assert len(read_receipts(tmp_path).errors) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_not_a_number_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=r"samples\[0\]\.itl"):
        make(samples=[{"itl": bad}])


def test_no_folder_can_be_made_under_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DeployKitError, match="cannot make the receipts folder"):
        write_receipt(tmp_path / "file" / "receipts", make())


def test_writers_at_once_never_lose_one(tmp_path: Path) -> None:
    receipts = [make(samples=[number]) for number in range(24)]
    threads = [threading.Thread(target=write_receipt, args=(tmp_path, receipt)) for receipt in receipts * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read_receipts(tmp_path)
    assert not found.errors
    assert {receipt.receipt_id for receipt in found} == {receipt.receipt_id for receipt in receipts}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(samples=st.lists(json_values, max_size=5), summary=st.dictionaries(st.text(), json_values, max_size=4))
def test_any_json_comes_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, samples: list[Any], summary: dict[str, Any]
) -> None:
    receipt = make(samples=samples, summary=summary)
    path = write_receipt(tmp_path_factory.mktemp("receipts"), receipt)
    assert read_receipt(path) == receipt
