"""What re-ordering a drafter's head to another draft vocabulary means: which row goes where, which are new.
Nothing is written here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy_kit.drafter.compare import draft_targets
from deploy_kit.drafter.weights_file import Tensor, Weights, read_weights
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HEAD_TYPES = ("BF16", "F16", "F32")


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
    if len(heads) != 1 or len(parts) != 1 or len(heads[0].shape) != 2 or heads[0].dtype not in HEAD_TYPES:
        raise DeployKitError(
            "there is no plain lm_head to re-order",
            file=source,
            key="lm_head.weight",
            found=", ".join(f"{t.name} {t.dtype} {list(t.shape)}" for t in parts)
            or "none (tied or borrowed from the target)",
            allowed=f"one matrix of {', '.join(HEAD_TYPES)}",
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


def vocabulary_of(path: Path) -> tuple[NDArray[np.int64], int | None]:
    """Return the draft vocabulary of another drafter: target ids in the order of its rows, and the
    target's size."""
    return draft_targets(path, read_weights(path))
