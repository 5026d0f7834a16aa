"""Re-ordering a drafter's head to another draft vocabulary: plan first, then stream it to disk.

Everything that does not depend on the vocabulary is copied byte for byte; the result appears whole or
not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from deploy_kit.drafter.local import find_map
from deploy_kit.drafter.ordered_output import Output, copy_file, read_into, write_bytes
from deploy_kit.drafter.remap_plan import RemapPlan, plan_remap, vocabulary_of
from deploy_kit.drafter.remap_rows import Fill, Initial, filler
from deploy_kit.drafter.weights_file import (
    INDEX_NAME,
    NUMPY_TYPES,
    PICKLED_SUFFIXES,
    Tensor,
    WeightsFile,
    batches,
    header_bytes,
    read_json,
)
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import file_error, sync_folder

__all__ = ["Initial", "RemapPlan", "plan_remap", "vocabulary_of", "write_remap"]

_ROWS_BYTES = 8 * 2**20
# Free space beyond the output itself, for the folder's own growth.
_SPARE_BYTES = 2**20


def write_remap(
    plan: RemapPlan,
    out: Path,
    *,
    initial: Initial,
    target: Path | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Write the remapped drafter to `out`, which must not exist yet: aside first, then renamed.

    `progress` is told bytes as they are written. After any interruption, a full disk included, `out` is
    not there and the
    source is as it was; only a kill leaves a hidden `.{name}.remap-*` beside it, which may be deleted.
    """
    _check_place(plan, out)
    aside = out.parent / f".{out.name}.remap-{secrets.token_hex(4)}"
    stop = threading.Event()
    # The mean row is added up beside the copying: it takes about as long.
    beside = ThreadPoolExecutor(max_workers=1)
    try:
        fill = filler(plan, initial, target, beside, stop)
        if plan.source.is_dir():
            aside.mkdir()
            _write_folder(plan, aside, fill, progress)
        else:
            _write_file(plan, plan.weights.files[0], aside, fill, progress)
        if out.exists() or out.is_symlink():  # someone else was quicker
            raise _exists(out)
        aside.rename(out)
        sync_folder(out.parent)
    except OSError as error:
        raise file_error("cannot write", out, error) from error
    finally:
        stop.set()
        beside.shutdown()
        _remove(aside)


def _check_place(plan: RemapPlan, out: Path) -> None:
    if out.exists() or out.is_symlink():
        raise _exists(out)
    if plan.source.is_dir() and out.resolve().is_relative_to(plan.source.resolve()):
        raise DeployKitError(
            "the output would lie inside the source",
            file=out,
            remedy="choose another place",
            exit_code=ExitCode.USAGE,
        )
    if plan.source.is_file() and plan.targets.size != plan.head.shape[0]:
        raise DeployKitError(
            "another vocabulary size changes config.json too",
            file=plan.source,
            found=f"{plan.head.shape[0]} rows now, {plan.targets.size} wanted",
            remedy="give the drafter's folder instead of its weights file",
            exit_code=ExitCode.USAGE,
        )
    try:
        free = shutil.disk_usage(out.parent).free
    except OSError as error:
        raise file_error("cannot write", out, error) from error
    if free < plan.size_bytes + _SPARE_BYTES:
        raise DeployKitError(
            f"cannot write {out}: the disk has too little room",
            file=out,
            found=f"{free} bytes free",
            allowed=f"{plan.size_bytes + _SPARE_BYTES} needed",
            remedy="free space there, or write elsewhere; nothing was changed",
            exit_code=ExitCode.DISK_FULL,
        )


def _exists(out: Path) -> DeployKitError:
    return DeployKitError(
        "the output exists already and is left alone",
        file=out,
        remedy="choose another name, or remove it first",
        exit_code=ExitCode.USAGE,
    )


def _write_folder(plan: RemapPlan, aside: Path, fill: Fill, progress: Callable[[int], None]) -> None:
    weights_names = {file.path.name for file in plan.weights.files}
    for entry in sorted(plan.source.iterdir()):
        if entry.name in weights_names or entry.name in (INDEX_NAME, "config.json"):
            continue
        # Trainers' pickled side files hold the old map: they would contradict the new one.
        if (
            entry.is_file()
            and stat.S_ISREG(entry.stat().st_mode)
            and not entry.name.endswith(PICKLED_SUFFIXES)
        ):
            copy_file(entry, aside / entry.name, progress)
    grown = sum(
        _write_file(plan, file, aside / file.path.name, fill, progress) for file in plan.weights.files
    )
    index = plan.source / INDEX_NAME
    if index.is_file():
        write_bytes(aside / INDEX_NAME, _new_index(plan, index, grown))
    config = plan.source / "config.json"
    if config.is_file():
        write_bytes(aside / "config.json", _new_config(plan, config))
    sync_folder(aside)


def _new_index(plan: RemapPlan, path: Path, grown: int) -> bytes:
    adds_map = find_map(plan.weights, "d2t") is None
    if not grown and not adds_map:
        return path.read_bytes()
    index = read_json(path, what="index")
    if adds_map:
        index["weight_map"]["d2t"] = plan.head.file.name
    metadata = index.get("metadata")
    if isinstance(metadata, dict) and type(metadata.get("total_size")) is int:
        metadata["total_size"] += grown
    return (json.dumps(index, indent=2) + "\n").encode()


def _new_config(plan: RemapPlan, path: Path) -> bytes:
    config = read_json(path, what="draft config.json")
    if not isinstance(config, dict):
        raise DeployKitError("this draft config.json is not a table", file=path, exit_code=ExitCode.INPUT)
    if config.get("draft_vocab_size") == plan.targets.size:
        return path.read_bytes()
    return (json.dumps({**config, "draft_vocab_size": int(plan.targets.size)}, indent=2) + "\n").encode()


@dataclass(frozen=True)
class _Piece:
    """A tensor of the output: as it will be listed, and where its bytes come from."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    content: Tensor | bytes | None  # None: the re-ordered head


def _pieces(plan: RemapPlan, file: WeightsFile) -> list[_Piece]:
    import numpy as np

    offsets = (plan.targets - np.arange(plan.targets.size, dtype=np.int64)).astype("<i8")
    old_map, old_mask = find_map(plan.weights, "d2t"), find_map(plan.weights, "t2d")
    row_bytes = plan.head.size_bytes // plan.head.shape[0]
    pieces = []
    for tensor in file.tensors:
        if tensor is plan.head:
            shape = (plan.targets.size, *tensor.shape[1:])
            pieces.append(_Piece(tensor.name, tensor.dtype, shape, row_bytes * plan.targets.size, None))
        elif tensor is old_map:
            dtype = tensor.dtype if tensor.dtype in ("I64", "I32") else "I64"
            data = offsets.astype("<i8" if dtype == "I64" else "<i4").tobytes()
            pieces.append(_Piece(tensor.name, dtype, (plan.targets.size,), len(data), data))
        elif tensor is old_mask and tensor.dtype in ("BOOL", "U8"):
            mask = np.zeros(plan.vocabulary, dtype=np.uint8)
            mask[plan.targets] = 1
            pieces.append(_Piece(tensor.name, tensor.dtype, (plan.vocabulary,), mask.size, mask.tobytes()))
        else:
            pieces.append(_Piece(tensor.name, tensor.dtype, tensor.shape, tensor.size_bytes, tensor))
    if old_map is None and plan.head in file.tensors:
        data = offsets.tobytes()
        pieces.append(_Piece("d2t", "I64", (plan.targets.size,), len(data), data))
    return pieces


def _write_file(
    plan: RemapPlan, file: WeightsFile, out: Path, fill: Fill, progress: Callable[[int], None]
) -> int:
    """Write one weights file; return by how many bytes its tensors grew."""
    pieces = _pieces(plan, file)
    with file.path.open("rb", buffering=0) as source, out.open("wb", buffering=0) as target:
        output = Output(target.fileno(), progress)
        old_layout = [(t.name, t.dtype, t.shape) for t in file.tensors]
        if [(p.name, p.dtype, p.shape) for p in pieces] == old_layout:
            output.copy(source.fileno(), 0, file.data_start)
        else:
            listed = [(p.name, p.dtype, p.shape, p.size_bytes) for p in pieces]
            output.write(header_bytes(listed, file.metadata))
        for start, content, count in _runs(pieces):
            if content is None:
                for rows in _head_rows(plan, source.fileno(), fill):
                    output.write(rows)
            elif isinstance(content, bytes):
                output.write(content)
            else:
                output.copy(source.fileno(), start, count)
        os.fsync(target.fileno())
    return sum(p.size_bytes for p in pieces) - sum(t.size_bytes for t in file.tensors)


def _runs(pieces: list[_Piece]) -> Iterator[tuple[int, Tensor | bytes | None, int]]:
    """Yield (start in the source, content, bytes), with neighbouring unchanged tensors joined into one
    copy."""
    start = count = 0
    last: Tensor | None = None
    for piece in pieces:
        if isinstance(piece.content, Tensor):
            if last is not None and piece.content.start == start + count:
                count += piece.size_bytes
            else:
                if last is not None:
                    yield start, last, count
                start, count = piece.content.start, piece.size_bytes
            last = piece.content
            continue
        if last is not None:
            yield start, last, count
            last = None
        yield 0, piece.content, piece.size_bytes
    if last is not None:
        yield start, last, count


def _head_rows(plan: RemapPlan, source: int, fill: Fill) -> Iterator[memoryview]:
    """Yield the new head in pieces of whole rows, read run by run of neighbouring source rows."""
    import numpy as np

    row_bytes = plan.head.size_bytes // plan.head.shape[0]
    kind = np.dtype(NUMPY_TYPES[plan.head.dtype])
    # One buffer for all pieces: a piece is written before the next one is made.
    most = max(1, min(plan.rows.size, _ROWS_BYTES // max(1, row_bytes)))
    buffer = np.empty((most, plan.head.shape[1]), dtype=kind)
    for batch in batches(plan.rows.size, row_bytes, _ROWS_BYTES):
        rows = plan.rows[batch]
        view = buffer.view(np.uint8).reshape(-1).data[: rows.size * row_bytes]
        # A row to initialise (-1) ends a run even before source row 0, its neighbour by number.
        breaks = np.flatnonzero((np.diff(rows) != 1) | (rows[:-1] < 0)) + 1
        for first, last in zip([0, *breaks.tolist()], [*breaks.tolist(), rows.size], strict=True):
            if rows[first] >= 0:
                start = plan.head.start + int(rows[first]) * row_bytes
                read_into(source, view[first * row_bytes : last * row_bytes], start, plan.head.file)
        unknown = np.flatnonzero(rows < 0)
        if unknown.size:
            buffer[unknown] = fill(plan.targets[batch][unknown])
        yield view


def _remove(aside: Path) -> None:
    if aside.is_dir():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            aside.unlink()
