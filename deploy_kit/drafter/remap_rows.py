"""Rows for tokens that a drafter's head was not trained on: zero, the rows' mean, or the target's own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deploy_kit.drafter.ordered_output import read_into
from deploy_kit.drafter.remap_plan import HEAD_TYPES, RemapPlan
from deploy_kit.drafter.weights_file import (
    NUMPY_TYPES,
    Tensor,
    as_float32,
    batches,
    from_float32,
    read_array,
    read_weights,
)
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Initial = Literal["mean", "zero", "target"]
# Given token ids, their rows in the head's own dtype (BF16 as raw uint16), or one row for all of them.
Fill = Callable[["NDArray[np.int64]"], "NDArray[Any]"]
# Small enough to stay in a core's cache while it is converted and added up.
_MEAN_BYTES = 2**19


def filler(
    plan: RemapPlan,
    initial: Initial,
    target: Path | None,
    beside: ThreadPoolExecutor,
    stop: threading.Event,
) -> Fill:
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
            read_into(source.fileno(), view, head.start + batch.start * row_bytes, head.file)
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
    if len(heads) != 1 or heads[0].shape != wanted or heads[0].dtype not in HEAD_TYPES:
        raise DeployKitError(
            "the target's head cannot be used for the missing rows",
            file=target,
            key="lm_head.weight",
            found=", ".join(f"{t.dtype} {list(t.shape)}" for t in heads) or "none",
            allowed=f"{list(wanted)} in {', '.join(HEAD_TYPES)}",
            remedy="--init mean",
            exit_code=ExitCode.INPUT,
        )
    return heads[0]
