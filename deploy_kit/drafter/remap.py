"""Re-ordering a drafter's head to another draft vocabulary: plan first, then stream it to disk.

Everything that does not depend on the vocabulary is copied byte for byte; the result appears whole or
not at all.
"""

from __future__ import annotations

import contextlib
import errno
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
from typing import TYPE_CHECKING, Any, Literal

from deploy_kit.drafter.compare import draft_targets
from deploy_kit.drafter.local import find_map
from deploy_kit.drafter.weights_file import (
    INDEX_NAME,
    NUMPY_TYPES,
    PICKLED_SUFFIXES,
    Tensor,
    Weights,
    WeightsFile,
    as_float32,
    batches,
    from_float32,
    header_bytes,
    read_array,
    read_json,
    read_weights,
)
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import file_error, sync_folder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Initial = Literal["mean", "zero", "target"]
# Given token ids, their rows in the head's own dtype (BF16 as raw uint16), or one row for all of them.
_Fill = Callable[["NDArray[np.int64]"], "NDArray[Any]"]

# Measured on ext4: writes of 8 MiB at a time were eight times slower than writes of up to 1 MiB.
_WRITE_BYTES = 2**18
_COPY_BYTES = 2**18
_KERNEL_COPY_BYTES = 32 * 2**20
_HAND_OVER_BYTES = 32 * 2**20
_ROWS_BYTES = 8 * 2**20
# Small enough to stay in a core's cache while it is converted and added up.
_MEAN_BYTES = 2**19
# Free space beyond the output itself, for the folder's own growth.
_SPARE_BYTES = 2**20
_HEAD_TYPES = ("BF16", "F16", "F32")
# Errors of the in-kernel copy that mean "not here": other file systems, old kernels.
_NO_KERNEL_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}


@dataclass(frozen=True)
class RemapPlan:
    """What a remap will do. `rows[i]` is the source row of the new row i, or -1 where it must be
    initialised."""

    source: Path
    weights: Weights
    head: Tensor
    targets: NDArray[np.int64]
    rows: NDArray[np.int64]
    vocabulary: int
    dropped: int
    size_bytes: int

    @property
    def kept(self) -> int:
        return int((self.rows >= 0).sum())

    @property
    def initialised(self) -> int:
        return int((self.rows < 0).sum())

    def as_dict(self) -> dict[str, Any]:
        """Return the counts for `--json`."""
        return {
            "rows": int(self.rows.size),
            "kept": self.kept,
            "initialised": self.initialised,
            "dropped": self.dropped,
            "bytes": self.size_bytes,
        }


def plan_remap(
    source: Path,
    targets: NDArray[np.int64],
    vocabulary: int | None,
    *,
    head_order: NDArray[np.int64] | None = None,
) -> RemapPlan:
    """Given a drafter and the target ids wanted, in the order of the new rows, return what to do.

    `head_order` overrides the drafter's own d2t: the target ids that its rows were trained for, where a later
    export overwrote the map. Nothing is written.
    """
    import numpy as np

    weights = read_weights(source)
    old, known_size = draft_targets(source, weights)
    old = old if head_order is None else head_order
    size = known_size or vocabulary
    if size is None:
        raise DeployKitError(
            "the target vocabulary's size is not known",
            file=source,
            remedy="keep the drafter's config.json beside its weights, or give --target",
            exit_code=ExitCode.INPUT,
        )
    if vocabulary is not None and vocabulary != size:
        raise DeployKitError(
            "the two vocabularies belong to targets of different size",
            file=source,
            found=f"{size} and {vocabulary} tokens",
            remedy="remap between drafters of one tokenizer",
            exit_code=ExitCode.INPUT,
        )
    head = _head_of(source, weights, old.size)
    _check_targets(targets, size)
    place = np.full(size, -1, dtype=np.int64)
    # The first of several rows for one token wins, as it is the one found first.
    place[old[::-1]] = np.arange(old.size - 1, -1, -1, dtype=np.int64)
    rows = place[targets]
    row_bytes = head.size_bytes // max(1, head.shape[0])
    grown = (targets.size - head.shape[0]) * row_bytes + 8 * targets.size
    total = sum(file.size_bytes for file in weights.files) + max(0, grown)
    return RemapPlan(
        source, weights, head, targets, rows, size, int(np.setdiff1d(old, targets).size), int(total)
    )


def _head_of(source: Path, weights: Weights, rows: int) -> Tensor:
    parts = [t for name, t in weights.tensors.items() if ".lm_head." in f".{name}"]
    heads = [t for t in parts if t.name.endswith("lm_head.weight")]
    if len(heads) != 1 or len(parts) != 1 or len(heads[0].shape) != 2 or heads[0].dtype not in _HEAD_TYPES:
        raise DeployKitError(
            "there is no plain lm_head to re-order",
            file=source,
            key="lm_head.weight",
            found=", ".join(f"{t.name} {t.dtype} {list(t.shape)}" for t in parts)
            or "none (tied or borrowed from the target)",
            allowed=f"one matrix of {', '.join(_HEAD_TYPES)}",
            exit_code=ExitCode.INPUT,
        )
    if heads[0].shape[0] != rows:
        raise DeployKitError(
            "lm_head and d2t do not belong together",
            file=source,
            found=f"{heads[0].shape[0]} rows, {rows} draft tokens",
            exit_code=ExitCode.INPUT,
        )
    return heads[0]


def _check_targets(targets: NDArray[np.int64], size: int) -> None:
    import numpy as np

    if targets.size == 0 or int(targets.min()) < 0 or int(targets.max()) >= size:
        raise DeployKitError(
            "the new vocabulary has token ids that the target has not",
            found="none at all" if targets.size == 0 else f"{int(targets.min())} to {int(targets.max())}",
            allowed=f"0 to {size - 1}",
            exit_code=ExitCode.INPUT,
        )
    doubled = targets.size - int(np.unique(targets).size)
    if doubled:
        raise DeployKitError(
            f"the new vocabulary names {doubled} tokens twice",
            remedy="take the map from an undamaged drafter (deploy-kit drafter check)",
            exit_code=ExitCode.INPUT,
        )


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
        fill = _filler(plan, initial, target, beside, stop)
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


def _write_folder(plan: RemapPlan, aside: Path, fill: _Fill, progress: Callable[[int], None]) -> None:
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
            _copy_file(entry, aside / entry.name, progress)
    grown = sum(
        _write_file(plan, file, aside / file.path.name, fill, progress) for file in plan.weights.files
    )
    index = plan.source / INDEX_NAME
    if index.is_file():
        _write_bytes(aside / INDEX_NAME, _new_index(plan, index, grown))
    config = plan.source / "config.json"
    if config.is_file():
        _write_bytes(aside / "config.json", _new_config(plan, config))
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
    if not isinstance(config, dict) or config.get("draft_vocab_size") == plan.targets.size:
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
    plan: RemapPlan, file: WeightsFile, out: Path, fill: _Fill, progress: Callable[[int], None]
) -> int:
    """Write one weights file; return by how many bytes its tensors grew."""
    pieces = _pieces(plan, file)
    with file.path.open("rb", buffering=0) as source, out.open("wb", buffering=0) as target:
        output = _Output(target.fileno(), progress)
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


def _head_rows(plan: RemapPlan, source: int, fill: _Fill) -> Iterator[memoryview]:
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
                _read_into(source, view[first * row_bytes : last * row_bytes], start, plan.head.file)
        unknown = np.flatnonzero(rows < 0)
        if unknown.size:
            buffer[unknown] = fill(plan.targets[batch][unknown])
        yield view


def _filler(
    plan: RemapPlan,
    initial: Initial,
    target: Path | None,
    beside: ThreadPoolExecutor,
    stop: threading.Event,
) -> _Fill:
    """Return what makes the rows of tokens that the source has none for, in the head's own dtype."""
    import numpy as np

    width, dtype = plan.head.shape[1], plan.head.dtype
    zeros = from_float32(np.zeros((1, width), dtype=np.float32), dtype)
    if initial == "zero" or not plan.initialised:
        return lambda _: zeros
    if initial == "mean":
        mean = beside.submit(_mean_row, plan.head, stop)
        return lambda _: mean.result()
    head = _target_head(plan, target)
    return lambda tokens: np.stack(
        [
            from_float32(as_float32(read_array(head, slice(int(t), int(t) + 1)), head.dtype)[0], dtype)
            for t in tokens
        ]
    )


def _mean_row(head: Tensor, stop: threading.Event) -> NDArray[Any]:
    """Return the mean of all rows in the head's own dtype, [1, width]; whatever once `stop` is set."""
    import numpy as np

    total = np.zeros(head.shape[1], dtype=np.float64)
    row_bytes = head.size_bytes // head.shape[0]
    most = max(1, min(head.shape[0], _MEAN_BYTES // max(1, row_bytes)))
    # Buffers of its own, used again: fresh ones for each piece cost as much as the sum.
    stored = np.empty((most, head.shape[1]), dtype=NUMPY_TYPES[head.dtype])
    bits = np.empty(stored.shape, dtype=np.uint32)
    with head.file.open("rb", buffering=0) as source, np.errstate(all="ignore"):  # NaN is looked for below
        for batch in batches(head.shape[0], row_bytes, _MEAN_BYTES):
            if stop.is_set():
                break
            rows = batch.stop - batch.start
            view = stored.view(np.uint8).reshape(-1).data[: rows * row_bytes]
            _read_into(source.fileno(), view, head.start + batch.start * row_bytes, head.file)
            if head.dtype == "BF16":
                np.left_shift(stored[:rows], 16, out=bits[:rows], dtype=np.uint32)
                total += bits[:rows].view(np.float32).sum(axis=0)
            else:
                total += as_float32(stored[:rows], head.dtype).sum(axis=0)
    mean = (total / head.shape[0]).astype(np.float32)[None, :]
    if not np.isfinite(mean).all():
        raise DeployKitError(
            "the head has NaN or infinite values: it has no mean row",
            file=head.file,
            key=head.name,
            remedy="--init zero or target; deploy-kit drafter check --every-value finds the damage",
            exit_code=ExitCode.INPUT,
        )
    return from_float32(mean, head.dtype)


def _target_head(plan: RemapPlan, target: Path | None) -> Tensor:
    if target is None:
        raise DeployKitError(
            "--init target needs --target", remedy="name the target's folder", exit_code=ExitCode.USAGE
        )
    weights = read_weights(target)
    heads = [t for name, t in weights.tensors.items() if name.endswith("lm_head.weight")]
    wanted = (plan.vocabulary, plan.head.shape[1])
    if len(heads) != 1 or heads[0].shape != wanted or heads[0].dtype not in _HEAD_TYPES:
        raise DeployKitError(
            "the target's head cannot be used for the missing rows",
            file=target,
            key="lm_head.weight",
            found=", ".join(f"{t.dtype} {list(t.shape)}" for t in heads) or "none",
            allowed=f"{list(wanted)} in {', '.join(_HEAD_TYPES)}",
            remedy="--init mean",
            exit_code=ExitCode.INPUT,
        )
    return heads[0]


def _copy_file(source: Path, out: Path, progress: Callable[[int], None]) -> None:
    with source.open("rb", buffering=0) as reading, out.open("wb", buffering=0) as writing:
        size = os.fstat(reading.fileno()).st_size
        _Output(writing.fileno(), progress).copy(reading.fileno(), 0, size)
        os.fsync(writing.fileno())


class _Output:
    """A file that is written in order. What is written is handed to the disk on the way, so that the disk
    works beside the copying and the flush at the end finds little left."""

    def __init__(self, descriptor: int, progress: Callable[[int], None]) -> None:
        self._descriptor = descriptor
        self._progress = progress
        self._position = self._handed = 0

    def write(self, data: bytes | memoryview) -> None:
        _write_all(self._descriptor, data)
        self._written(len(data))

    def copy(self, source: int, start: int, count: int) -> None:
        """Append `count` bytes of `source` from `start`: in the kernel where that works."""
        in_kernel = hasattr(os, "copy_file_range")
        end = start + count
        while start < end:
            copied = 0
            if in_kernel:
                try:
                    wanted = min(end - start, _KERNEL_COPY_BYTES)
                    copied = os.copy_file_range(source, self._descriptor, wanted, offset_src=start)
                except OSError as error:
                    if error.errno not in _NO_KERNEL_COPY:
                        raise
                in_kernel = copied > 0
            if copied:
                self._written(copied)
            else:
                data = os.pread(source, min(end - start, _COPY_BYTES), start)
                if not data:
                    raise OSError(errno.EIO, "the source became shorter while it was copied")
                self.write(data)
                copied = len(data)
            start += copied

    def _written(self, count: int) -> None:
        self._position += count
        self._progress(count)
        if self._position - self._handed >= _HAND_OVER_BYTES and hasattr(os, "posix_fadvise"):
            # Starts the writing of dirty pages and waits for none.
            with contextlib.suppress(OSError):
                size = self._position - self._handed
                os.posix_fadvise(self._descriptor, self._handed, size, os.POSIX_FADV_DONTNEED)
            self._handed = self._position


def _read_into(source: int, view: memoryview, start: int, file: Path) -> None:
    while view.nbytes:
        count = os.preadv(source, [view], start)
        if count == 0:
            raise DeployKitError(
                "the source became shorter while it was read", file=file, exit_code=ExitCode.INPUT
            )
        view, start = view[count:], start + count


def _write_all(target: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view.nbytes:
        view = view[os.write(target, view[:_WRITE_BYTES]) :]


def _write_bytes(path: Path, data: bytes) -> None:
    with path.open("wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())


def _remove(aside: Path) -> None:
    if aside.is_dir():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            aside.unlink()


def vocabulary_of(path: Path) -> tuple[NDArray[np.int64], int | None]:
    """Return the draft vocabulary of another drafter: target ids in the order of its rows, and the
    target's size."""
    return draft_targets(path, read_weights(path))
