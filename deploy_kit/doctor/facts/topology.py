"""`nvidia-smi topo -m` and `nvidia-smi topo -p2p`: the matrices of GPU pairs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from deploy_kit.doctor.blocks import Block

# From near to far; NV# (NVLink) is nearest of all.
PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_DEVICE = re.compile(
    r"^(?:GPU|NIC)\d+$|^(?:mlx\d?_|bnxt|irdma|roce|ibp|ibs|ib\d|rdmap|hfi\d|efa_|mana_|ionic_)\w*$"
)
_A_GPU = re.compile(r"GPU\d")
_FIRST_LETTERS = (
    "GPU", "NIC", "mlx", "bnxt", "irdma", "roce", "ib", "rdmap", "hfi", "efa_", "mana_", "ionic_",
)  # fmt: skip
_PATH_CELL = re.compile(r"^(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|PIB|N/A)$")
_P2P_CELL = re.compile(r"^(?:X|OK|CNS|GNS|TNS|NS|DR|CS|U|N/A)$")
_P2P_ONLY = {"OK", "CNS", "GNS", "TNS", "NS", "DR", "CS", "U"}
_CPU_LIST = re.compile(r"^\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*$")
_MODES = {"r": "read", "w": "write", "a": "atomics", "n": "nvlink", "p": "properties", "rw": "read and write"}


@dataclass
class Matrix:
    """One matrix as printed: its columns, and per row the cells and what follows them."""

    columns: list[str]
    has_header: bool
    rows: dict[str, list[str]] = field(default_factory=dict)
    tails: dict[str, list[str]] = field(default_factory=dict)

    @property
    def gpus(self) -> list[str]:
        """Return the GPUs of header and rows."""
        return [name for name in dict.fromkeys([*self.columns, *self.rows]) if name.startswith("GPU")]

    @property
    def others(self) -> list[str]:
        """Return the devices that are no GPUs (network cards)."""
        return [name for name in dict.fromkeys([*self.columns, *self.rows]) if not name.startswith("GPU")]

    @property
    def missing(self) -> list[str]:
        """Return the GPUs whose row is absent or too short: a truncated paste."""
        return [name for name in self.gpus if len(self.rows.get(name, [])) < len(self.columns)]

    def gpu_pairs(self) -> Iterator[tuple[str, str, str]]:
        """Yield each (row GPU, column GPU, cell) with two different GPUs."""
        for row, cells in self.rows.items():
            for column, cell in zip(self.columns, cells, strict=False):
                if row != column and row.startswith("GPU") and column.startswith("GPU"):
                    yield row, column, cell


@dataclass(frozen=True)
class Topology:
    """Facts of `topo -m`: paths of GPU pairs (GPU numbers), NUMA nodes of GPUs, and what was missing."""

    gpus: tuple[int, ...]
    nics: tuple[str, ...]
    paths: dict[tuple[int, int], str]
    numa: dict[int, str]
    cpus: dict[int, str]
    missing: tuple[str, ...]

    @property
    def nvlink(self) -> bool:
        """Whether any pair is joined by NVLink."""
        return any(path.startswith("NV") for path in self.paths.values())

    @property
    def worst_path(self) -> str | None:
        """Return the farthest path between two GPUs; None with fewer than two GPUs."""
        known = [path for path in self.paths.values() if path in PATHS or path.startswith("NV")]
        return max(known, key=lambda path: PATHS.index(path) if path in PATHS else -1, default=None)

    @property
    def switch(self) -> bool:
        """Whether any pair sits behind a PCIe switch."""
        return any(path in ("PIX", "PXB") for path in self.paths.values())

    def pairs(self, path: str) -> list[tuple[int, int]]:
        """Return the pairs (low, high) with this path."""
        return sorted({(min(a, b), max(a, b)) for (a, b), found in self.paths.items() if found == path})

    def numa_groups(self) -> dict[str, list[int]]:
        """Return GPUs per NUMA node as the table says; empty when it does not say."""
        groups: dict[str, list[int]] = {}
        for gpu in self.gpus:
            if gpu in self.numa:
                groups.setdefault(self.numa[gpu], []).append(gpu)
        return groups

    def socket_groups(self) -> list[list[int]]:
        """Return GPUs grouped by 'nearer than SYS': the sockets, as far as paths can tell."""
        groups: list[list[int]] = []
        for gpu in self.gpus:
            home = next(
                (
                    group
                    for group in groups
                    if any(self.paths.get((gpu, other), "SYS") not in ("SYS", "N/A") for other in group)
                ),
                None,
            )
            if home is None:
                groups.append([gpu])
            else:
                home.append(gpu)
        return groups


@dataclass(frozen=True)
class P2pMatrix:
    """Facts of one `topo -p2p` matrix: what it is about (None: not said) and the status per ordered pair."""

    mode: str | None
    gpus: tuple[int, ...]
    status: dict[tuple[int, int], str]
    missing: tuple[str, ...]


def parse_topology(block: Block) -> Topology | None:
    """Given the output of `nvidia-smi topo -m`, return its facts; None when there is no such matrix.

    Tabs or spaces, wrapped headers and rows, network cards, legends and absent affinity columns are all fine.
    """
    if "-p2p" in block.title:
        return None  # with one GPU its matrix looks the same
    for matrix in _matrices(block):
        cells = {cell for _, _, cell in matrix.gpu_pairs()}
        if cells & _P2P_ONLY or not matrix.gpus:
            continue
        numa: dict[int, str] = {}
        cpus: dict[int, str] = {}
        for name, tail in matrix.tails.items():
            if not name.startswith("GPU"):
                continue
            if tail and _CPU_LIST.match(tail[0]):
                cpus[_number(name)] = tail[0]
            # CPU affinity, NUMA affinity, GPU NUMA id; the last is of the GPU's own memory, mostly N/A.
            if len(tail) > 1 and _CPU_LIST.match(tail[1]):
                numa[_number(name)] = tail[1]
        return Topology(
            gpus=tuple(sorted({_number(name) for name in matrix.gpus})),
            nics=tuple(matrix.others),
            paths={(_number(a), _number(b)): "SYS" if c == "SOC" else c for a, b, c in matrix.gpu_pairs()},
            numa=numa,
            cpus=cpus,
            missing=tuple(matrix.missing),
        )
    return None


def parse_p2p(block: Block) -> list[P2pMatrix]:
    """Given the output of `nvidia-smi topo -p2p r|w|a|n|p`, return its matrices."""
    found = []
    for matrix in _matrices(block):
        cells = {cell for _, _, cell in matrix.gpu_pairs()}
        if cells and cells <= _P2P_ONLY | {"N/A"} and cells & _P2P_ONLY:
            mode = re.search(r"-p2p\s+(\w+)\b", block.title)
            found.append(
                P2pMatrix(
                    mode=_MODES.get(mode[1], "peer access") if mode else None,
                    gpus=tuple(sorted({_number(name) for name in matrix.gpus})),
                    status={(_number(a), _number(b)): cell for a, b, cell in matrix.gpu_pairs()},
                    missing=tuple(matrix.missing),
                )
            )
    return found


def _matrices(block: Block) -> Iterator[Matrix]:
    """Yield each matrix; a new one begins at a header line or when a row comes a second time. What names no
    numbered GPU has none."""
    matrix: Matrix | None = None
    last_row: str | None = None
    for line in block.lines if _A_GPU.search(block.text) else ():
        if last_row is None and not line.lstrip().startswith(_FIRST_LETTERS):
            continue
        tokens = line.split()
        if not tokens:
            continue
        opening = matrix is None or (matrix.has_header and not matrix.rows)
        if _is_header(tokens) or (len(tokens) == 1 and opening and _DEVICE.match(tokens[0])):
            names = [token for token in tokens if _DEVICE.match(token)]
            if matrix is not None and not matrix.rows and matrix.has_header:
                matrix.columns += names  # a header that was wrapped
            else:
                if matrix is not None and matrix.rows:
                    yield matrix
                matrix = Matrix(names, has_header=True)
            last_row = None
        elif _DEVICE.match(tokens[0]) and (len(tokens) == 1 or _is_cell(tokens[1])):
            if matrix is None:
                matrix = Matrix([], has_header=False)
            if tokens[0] in matrix.rows:
                yield matrix
                matrix = Matrix([] if not matrix.has_header else list(matrix.columns), matrix.has_header)
            last_row = tokens[0]
            matrix.rows[last_row], matrix.tails[last_row] = [], []
            _fill_row(matrix, last_row, tokens[1:])
        elif (
            matrix is not None
            and last_row is not None
            and _is_cell(tokens[0])
            and _row_open(matrix, last_row)
        ):
            _fill_row(matrix, last_row, tokens)  # a row that was wrapped
        else:
            last_row = None
    if matrix is not None and matrix.rows:
        if not matrix.has_header:
            matrix.columns = _columns_of(matrix.rows)
        yield matrix


def _columns_of(rows: dict[str, list[str]]) -> list[str]:
    """Given the rows of a table without its header, return the columns: each row's X stands in its own. Where
    rows are wider than there are rows, the head was cut off; its GPUs are named by counting back."""
    width = max(len(cells) for cells in rows.values())
    if width <= len(rows):
        return list(rows)
    own = {cells.index("X"): name for name, cells in rows.items() if "X" in cells}
    first = next(((place, name) for place, name in own.items() if name.startswith("GPU")), None)
    if first is None:
        return list(rows)
    offset = _number(first[1]) - first[0]
    return [own.get(place, f"GPU{place + offset}" if place + offset >= 0 else "") for place in range(width)]


def _is_header(tokens: list[str]) -> bool:
    if not _DEVICE.match(tokens[0]):
        return False
    return len(tokens) > 1 and (_DEVICE.match(tokens[1]) is not None or tokens[1] in ("CPU", "NUMA"))


def _is_cell(token: str) -> bool:
    return bool(_PATH_CELL.match(token) or _P2P_CELL.match(token))


def _row_open(matrix: Matrix, row: str) -> bool:
    return not matrix.has_header or len(matrix.rows[row]) < len(matrix.columns)


def _fill_row(matrix: Matrix, row: str, tokens: list[str]) -> None:
    for token in tokens:
        if not matrix.tails[row] and _is_cell(token) and _row_open(matrix, row):
            matrix.rows[row].append(token)
        else:
            matrix.tails[row].append(token)


def _number(name: str) -> int:
    return int(name.removeprefix("GPU")[:6] or 0)
