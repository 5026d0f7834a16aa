"""Large files written in order: copied in the kernel where that works, handed to the disk on the way."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

# Measured on ext4: writes of 8 MiB at a time were eight times slower than writes of up to 1 MiB.
_WRITE_BYTES = 2**18
_COPY_BYTES = 2**18
_KERNEL_COPY_BYTES = 32 * 2**20
_HAND_OVER_BYTES = 32 * 2**20
# Errors of the in-kernel copy that mean "not here": other file systems, old kernels.
_NO_KERNEL_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}


def copy_file(source: Path, out: Path, progress: Callable[[int], None]) -> None:
    """Copy a file byte for byte and flush it to the disk; `progress` is told bytes as they are written."""
    with source.open("rb", buffering=0) as reading, out.open("wb", buffering=0) as writing:
        size = os.fstat(reading.fileno()).st_size
        Output(writing.fileno(), progress).copy(reading.fileno(), 0, size)
        os.fsync(writing.fileno())


class Output:
    """A file that is written in order. What is written is handed to the disk on the way, so that the disk
    works beside the copying and the flush at the end finds little left."""

    def __init__(self, descriptor: int, progress: Callable[[int], None]) -> None:
        self._descriptor = descriptor
        self._progress = progress
        self._position = self._handed = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append the data."""
        write_all(self._descriptor, data)
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


def read_into(source: int, view: memoryview, start: int, file: Path) -> None:
    """Fill `view` from `start` of the open file; `file` names it where it ends too early."""
    while view.nbytes:
        count = os.preadv(source, [view], start)
        if count == 0:
            raise DeployKitError(
                "the source became shorter while it was read", file=file, exit_code=ExitCode.INPUT
            )
        view, start = view[count:], start + count


def write_all(target: int, data: bytes | memoryview) -> None:
    """Write all of the data, in pieces of a size that disks take well."""
    view = memoryview(data)
    while view.nbytes:
        view = view[os.write(target, view[:_WRITE_BYTES]) :]


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file whole and flush it to the disk."""
    with path.open("wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
