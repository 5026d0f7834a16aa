"""Reading safetensors checkpoints by their headers; values only where asked, and never by unpickling.

Format: header length (8 bytes, little-endian), a JSON header {name: {dtype, shape, data_offsets}}, the data.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import file_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# A 1 T model with one tensor an expert has headers of about 25 MB in all; more than this is not a header.
HEADER_LIMIT_BYTES = 32 * 2**20
INDEX_LIMIT_BYTES = 64 * 2**20
CONFIG_LIMIT_BYTES = 16 * 2**20
LENGTH_BYTES = 8
INDEX_NAME = "model.safetensors.index.json"
PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

# Bits of one element; packed 4-bit types exist since safetensors 0.6.
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6,
    "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64,
    "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
# BF16 has no numpy type: its two bytes are read as they are.
NUMPY_TYPES = {
    "BOOL": "u1", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "BF16": "<u2",
    "I32": "<i4", "U32": "<u4", "F32": "<f4", "I64": "<i8", "U64": "<u8", "F64": "<f8",
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file: where its bytes are (`start`, `end` counted from the file's first byte)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    file: Path

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class WeightsFile:
    """One safetensors file: its raw header, metadata and tensors in the order of their bytes."""

    path: Path
    data_start: int
    size_bytes: int
    metadata: dict[str, str]
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True)
class Weights:
    """A checkpoint: one file or several, every tensor name once."""

    files: tuple[WeightsFile, ...]
    tensors: dict[str, Tensor]
    not_in_index: tuple[str, ...] = ()


def read_weights(path: Path) -> Weights:
    """Given a .safetensors file or a model's folder, return its tensors without reading their values.

    Raises `DeployKitError` for anything that is not a whole, well-formed safetensors checkpoint.
    """
    try:
        is_folder = path.stat() and path.is_dir()
    except OSError as error:
        raise file_error("cannot read weights", path, error) from error
    if is_folder:
        return _read_folder(path)
    if path.suffix in PICKLED_SUFFIXES:
        raise _pickled(path, [path.name])
    return _join([read_header(path)])


def _read_folder(folder: Path) -> Weights:
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise file_error("cannot list", folder, error) from error
    if INDEX_NAME in names:
        return _read_indexed(folder)
    shards = [name for name in names if name.endswith(".safetensors")]
    if len(shards) == 2 and set(shards) == {"consolidated.safetensors", "model.safetensors"}:
        shards = [
            "model.safetensors"
        ]  # as SGLang does: the other one is the same weights in Mistral's layout
    if not shards:
        pickled = [name for name in names if name.endswith(PICKLED_SUFFIXES)]
        if pickled:
            raise _pickled(folder, pickled)
        raise DeployKitError(
            "no weights here",
            file=folder,
            found=", ".join(names[:8]) or "an empty folder",
            allowed=f"*.safetensors or {INDEX_NAME}",
            remedy="name the folder that holds the drafter's config.json and safetensors files",
            exit_code=ExitCode.INPUT,
        )
    return _join([read_header(folder / name) for name in shards])


def _read_indexed(folder: Path) -> Weights:
    index_path = folder / INDEX_NAME
    index = read_json(index_path, what="index", limit_bytes=INDEX_LIMIT_BYTES)
    listed = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise DeployKitError(
            "the index has no weight_map", file=index_path, key="weight_map", exit_code=ExitCode.INPUT
        )
    odd = [str(shard) for shard in listed.values() if not _plain_file_name(shard)]
    if odd:
        raise DeployKitError(
            "the index names files outside its folder",
            file=index_path,
            key="weight_map",
            found=", ".join(odd[:3]),
            allowed="plain names of files beside the index",
            exit_code=ExitCode.INPUT,
        )
    shards = sorted(set(listed.values()))
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise DeployKitError(
            f"{len(missing)} of {len(shards)} shards named by the index are missing",
            file=index_path,
            found=_some(missing),
            remedy="download the missing files; SGLang stops at the same place",
            exit_code=ExitCode.INPUT,
        )
    weights = _join([read_header(folder / shard) for shard in shards])
    absent = [
        name
        for name, shard in listed.items()
        if name not in weights.tensors or weights.tensors[name].file.name != shard
    ]
    if absent:
        raise DeployKitError(
            f"{len(absent)} tensors of the index are not in the shard it names",
            file=index_path,
            found=_some(absent),
            remedy="index and shards are of different downloads: fetch them again together",
            exit_code=ExitCode.INPUT,
        )
    return Weights(
        weights.files, weights.tensors, tuple(name for name in weights.tensors if name not in listed)
    )


def _join(files: list[WeightsFile]) -> Weights:
    tensors: dict[str, Tensor] = {}
    for file in files:
        for tensor in file.tensors:
            if tensor.name in tensors:
                raise DeployKitError(
                    f"two files hold a tensor called {tensor.name}",
                    file=file.path,
                    found=f"also in {tensors[tensor.name].file.name}",
                    remedy="remove the file that does not belong to this checkpoint",
                    exit_code=ExitCode.INPUT,
                )
            tensors[tensor.name] = tensor
    return Weights(tuple(files), tensors)


def read_header(path: Path) -> WeightsFile:
    """Read one file's header and check it against the file's size; every inconsistency is a
    `DeployKitError`."""
    try:
        # Opening a pipe would wait for someone to write into it.
        if stat.S_IFMT(path.stat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            raise _broken(path, "a pipe, socket or device", "not a file")
        with path.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            prefix = handle.read(LENGTH_BYTES)
            if len(prefix) < LENGTH_BYTES:
                raise _broken(
                    path, f"only {len(prefix)} bytes", "not a safetensors file, or an empty download"
                )
            (length,) = struct.unpack("<Q", prefix)
            if length > HEADER_LIMIT_BYTES:
                raise _broken(
                    path,
                    f"a header of {length} bytes",
                    "not a safetensors file (a pickled or git-lfs pointer file looks like this)",
                    allowed=f"at most {HEADER_LIMIT_BYTES} bytes",
                )
            if LENGTH_BYTES + length > size:
                raise _broken(
                    path,
                    f"{size} bytes, header needs {LENGTH_BYTES + length}",
                    "truncated: download it again",
                )
            raw = handle.read(length)
    except OSError as error:
        raise file_error("cannot read weights", path, error) from error
    table = _parse_table(path, raw)
    metadata = table.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict):
        raise _broken(path, "__metadata__ that is not a table", "the header is damaged")
    data_start = LENGTH_BYTES + length
    tensors = sorted(
        (_tensor(path, name, entry, data_start) for name, entry in table.items()),
        key=lambda t: (t.start, t.end),
    )
    position = data_start
    for tensor in tensors:
        if tensor.start != position:
            raise _broken(
                path,
                f"{tensor.name} starts at {tensor.start}, not {position}",
                "tensors overlap or leave holes",
            )
        position = tensor.end
    if position != size:
        what = "truncated: download it again" if position > size else "bytes after the last tensor"
        raise _broken(path, f"{size} bytes, tensors need {position}", what)
    strings = {str(key): str(value) for key, value in metadata.items()}
    return WeightsFile(path, data_start, size, strings, tuple(tensors))


def _parse_table(path: Path, raw: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            raise ValueError("a name twice")
        return table

    try:
        table = json.loads(raw.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise _broken(
            path, f"a header that is not JSON ({str(error)[:80]})", "not a safetensors file, or damaged"
        ) from error
    if not isinstance(table, dict):
        raise _broken(path, "a header that is not a table", "not a safetensors file, or damaged")
    return table


def _tensor(path: Path, name: str, entry: Any, data_start: int) -> Tensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(
            path, f"{name}: {str(entry)[:80]}", "an entry needs dtype, shape and data_offsets"
        ) from error
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _broken(
            path, f"{name} of type {str(dtype)[:40]}", "unknown type", allowed=", ".join(DTYPE_BITS)
        )
    whole = [*shape, begin, end] if isinstance(shape, list) else None
    if whole is None or any(type(number) is not int or number < 0 or number >= 2**63 for number in whole):
        raise _broken(
            path, f"{name}: shape {str(shape)[:60]}, offsets {str([begin, end])[:60]}", "not counts"
        )
    elements = 1
    for size in shape:
        elements *= size
    if elements * DTYPE_BITS[dtype] != (end - begin) * 8:
        raise _broken(
            path,
            f"{name}: {dtype} {shape} in {end - begin} bytes",
            "type, shape and length contradict each other",
        )
    return Tensor(name, dtype, tuple(shape), data_start + begin, data_start + end, path)


def read_array(tensor: Tensor, rows: slice | None = None) -> NDArray[Any]:
    """Return a tensor's values (BF16 as its raw two bytes, uint16); with `rows`, only those of the first
    axis."""
    import numpy as np

    if tensor.dtype not in NUMPY_TYPES:
        raise DeployKitError(
            f"values of type {tensor.dtype} are not read",
            file=tensor.file,
            key=tensor.name,
            exit_code=ExitCode.INPUT,
        )
    kind = np.dtype(NUMPY_TYPES[tensor.dtype])
    start, count, shape = tensor.start, tensor.size_bytes, tensor.shape
    if rows is not None and shape:
        first, last, _ = rows.indices(shape[0])
        row_bytes = tensor.size_bytes // shape[0] if shape[0] else 0
        start, count, shape = (
            start + first * row_bytes,
            (last - first) * row_bytes,
            (last - first, *shape[1:]),
        )
    try:
        with tensor.file.open("rb") as handle:
            handle.seek(start)
            data = handle.read(count)
    except OSError as error:
        raise file_error("cannot read weights", tensor.file, error) from error
    if len(data) != count:
        raise _broken(tensor.file, f"{tensor.name} ends early", "the file changed while it was read")
    return np.frombuffer(data, dtype=kind).reshape(shape)


def as_float32(values: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Return values as float32, given the dtype they were stored in (BF16: raw uint16)."""
    import numpy as np

    if dtype == "BF16":
        bits = values.astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    return values.astype(np.float32)


def from_float32(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return float32 values as stored in `dtype`: BF16 rounds to nearest, ties to even."""
    import numpy as np

    if dtype == "BF16":
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return values.astype(np.dtype(NUMPY_TYPES[dtype]))


def header_bytes(tensors: list[tuple[str, str, tuple[int, ...], int]], metadata: dict[str, str]) -> bytes:
    """Given (name, dtype, shape, bytes) in file order, return the length prefix and header, padded to 8
    bytes."""
    table: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    position = 0
    for name, dtype, shape, count in tensors:
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + count]}
        position += count
    raw = json.dumps(table, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw


def read_json(path: Path, *, what: str, limit_bytes: int = CONFIG_LIMIT_BYTES) -> Any:
    """Return the JSON in `path`; too long, unreadable or malformed is a `DeployKitError`."""
    try:
        with path.open("rb") as handle:
            data = handle.read(limit_bytes + 1)
    except OSError as error:
        raise file_error(f"cannot read {what}", path, error) from error
    if len(data) > limit_bytes:
        raise DeployKitError(
            f"this {what} is longer than {limit_bytes} bytes", file=path, exit_code=ExitCode.INPUT
        )
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DeployKitError(
            f"this {what} is not JSON: {str(error)[:120]}", file=path, exit_code=ExitCode.INPUT
        ) from error


def batches(rows: int, row_bytes: int, budget_bytes: int) -> Iterator[slice]:
    """Yield slices over `rows` rows, each of at most `budget_bytes` (at least one row)."""
    step = max(1, budget_bytes // max(1, row_bytes))
    for first in range(0, rows, step):
        yield slice(first, min(rows, first + step))


def _plain_file_name(name: Any) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\0" not in name


def _pickled(path: Path, names: list[str]) -> DeployKitError:
    return DeployKitError(
        "pickled weights are refused: opening them can run code",
        file=path,
        found=_some(names),
        allowed="safetensors",
        remedy="ask the publisher for safetensors, or convert them where you trust the file",
        exit_code=ExitCode.INPUT,
    )


def _broken(path: Path, found: str, what: str, *, allowed: str | None = None) -> DeployKitError:
    return DeployKitError(
        f"this is not a whole safetensors file: {what}",
        file=path,
        found=found,
        allowed=allowed,
        exit_code=ExitCode.INPUT,
    )


def _some(names: list[str], limit: int = 5) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest
