"""Which NCCL builds one environment holds: pip's list, the linker's cache, a find, a process's maps."""

from __future__ import annotations

import re
from dataclasses import dataclass

from deploy_kit.doctor.blocks import Block


@dataclass(frozen=True)
class NcclBuilds:
    """NCCL packages (name → version) and library files; `mapped` when the files are those of one process."""

    packages: tuple[tuple[str, str], ...] = ()
    files: tuple[str, ...] = ()
    mapped: bool = False


_FILE = re.compile(r"(/\S*libnccl\.so(?:\.[\d.]+)?)\b")
# pip, conda, apt; dpkg puts a state before the name and may put the architecture behind it; rpm joins all.
_PACKAGE = re.compile(
    r"\s*(?:[hi]i\s+)?(nvidia[-_]nccl[-_]cu\d+|nccl|libnccl2?)(?::\w+)?(?:\s+|==|/\S*\s+|-(?=\d))(\d[\w.+-]*)"
)
# Files inside images are no part of this machine's environment.
_IN_IMAGES = ("/overlay2/", "/snapshots/", "/containers/storage/")
_MAPS = re.compile(r"^[0-9a-f]+-[0-9a-f]+ [rwxps-]{4} ")


def parse_nccl_builds(block: Block) -> NcclBuilds | None:
    """Given `pip list`, `find / -name 'libnccl.so*'`, `ldconfig -p` or /proc/PID/maps, return the builds."""
    packages: dict[str, str] = {}
    files: dict[str, None] = {}
    mapped = False
    for line in block.lines_with("nccl"):
        if "NCCL INFO" in line:
            continue
        if found := _PACKAGE.match(line):
            packages[found[1].replace("_", "-")] = found[2]
        if any(place in line for place in _IN_IMAGES):
            continue
        places = (_FILE.search(word) for word in line.split() if "libnccl.so" in word)
        if found := next(filter(None, places), None):
            files[found[1]] = None
            mapped = mapped or bool(_MAPS.match(line.strip()))
    if not packages and not files:
        return None
    return NcclBuilds(tuple(packages.items()), tuple(files), mapped)
