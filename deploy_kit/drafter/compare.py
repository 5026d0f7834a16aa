"""Two drafters side by side: weights, vocabulary, and what each can name at most."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy_kit.drafter.coverage import Ceiling
from deploy_kit.drafter.local import find_map, read_map
from deploy_kit.drafter.vocabulary import map_targets
from deploy_kit.drafter.weights_file import Weights, read_json
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_EXAMPLES = 10


@dataclass(frozen=True)
class WeightRow:
    """One line of the table; None where that drafter has no such weight."""

    name: str
    a: str | None
    b: str | None

    @property
    def same(self) -> bool:
        return self.a == self.b


@dataclass(frozen=True)
class VocabularyComparison:
    """Positions where both maps name the same token, and which tokens each covers."""

    positions: int
    agreeing: int
    both: int
    only_a: int
    only_b: int
    only_a_examples: tuple[int, ...]
    only_b_examples: tuple[int, ...]


@dataclass(frozen=True)
class Comparison:
    weights: tuple[WeightRow, ...]
    vocabulary: VocabularyComparison
    ceiling_a: Ceiling | None = None
    ceiling_b: Ceiling | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison for `--json`."""
        return {
            "weights": [{**asdict(row), "same": row.same} for row in self.weights],
            "vocabulary": asdict(self.vocabulary),
            "ceiling": {
                "a": None if self.ceiling_a is None else asdict(self.ceiling_a),
                "b": None if self.ceiling_b is None else asdict(self.ceiling_b),
            },
        }


def compare_weights(a: Weights, b: Weights) -> tuple[WeightRow, ...]:
    """Return one row a weight name, in A's order and then what only B has."""
    names = list(a.tensors) + [name for name in b.tensors if name not in a.tensors]
    return tuple(WeightRow(name, _described(a, name), _described(b, name)) for name in names)


def _described(weights: Weights, name: str) -> str | None:
    tensor = weights.tensors.get(name)
    return None if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"


def compare_vocabulary(a: NDArray[np.int64], b: NDArray[np.int64]) -> VocabularyComparison:
    """Given the target ids of both vocabularies in the order of their positions, return how they agree."""
    import numpy as np

    size = min(a.size, b.size)
    only_a, only_b = np.setdiff1d(a, b), np.setdiff1d(b, a)
    return VocabularyComparison(
        positions=max(a.size, b.size),
        agreeing=int(np.count_nonzero(a[:size] == b[:size])),
        both=int(np.intersect1d(a, b).size),
        only_a=int(only_a.size),
        only_b=int(only_b.size),
        only_a_examples=tuple(int(token) for token in only_a[:_EXAMPLES]),
        only_b_examples=tuple(int(token) for token in only_b[:_EXAMPLES]),
    )


def draft_targets(path: Path, weights: Weights) -> tuple[NDArray[np.int64], int | None]:
    """Return the target id of each draft token and the target vocabulary's size where it is known.

    Without d2t and with a full head the ids are 0, 1, 2 … Raises `DeployKitError` when neither is there.
    """
    import numpy as np

    vocabulary = _vocabulary_size(path, weights)
    values = read_map(weights)
    if values is not None:
        targets = map_targets(values)
        if vocabulary is not None and targets.size and (targets.min() < 0 or targets.max() >= vocabulary):
            raise DeployKitError(
                "d2t leads outside the target's vocabulary",
                file=path,
                key="d2t",
                found=f"{int(targets.min())} to {int(targets.max())}",
                allowed=f"0 to {vocabulary - 1}",
                remedy="deploy-kit drafter check says what it looks like",
                exit_code=ExitCode.INPUT,
            )
        return targets, vocabulary
    if find_map(weights, "d2t") is not None:
        raise DeployKitError(
            "d2t cannot be read as whole numbers", file=path, key="d2t", exit_code=ExitCode.INPUT
        )
    head = next((t for name, t in weights.tensors.items() if name.endswith("lm_head.weight")), None)
    rows = head.shape[0] if head is not None and head.shape else vocabulary
    if rows is None or (vocabulary is not None and rows != vocabulary):
        raise DeployKitError(
            "this drafter's vocabulary is not known",
            file=path,
            found=f"no d2t, lm_head of {rows} rows, vocab_size {vocabulary}",
            remedy="a pruned head needs its d2t",
            exit_code=ExitCode.INPUT,
        )
    return np.arange(rows, dtype=np.int64), vocabulary or rows


def _vocabulary_size(path: Path, weights: Weights) -> int | None:
    mask = find_map(weights, "t2d")
    if mask is not None and len(mask.shape) == 1:
        return mask.shape[0]
    config = (path if path.is_dir() else path.parent) / "config.json"
    table = read_json(config, what="draft config.json") if config.is_file() else None
    size = table.get("vocab_size") if isinstance(table, dict) else None
    return size if type(size) is int and size > 0 else None
