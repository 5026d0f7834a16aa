"""The baseline's step time for this plan's host, from receipts: never from anything else."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from deploy_kit.errors import DeployKitError
from deploy_kit.receipts import Receipt
from deploy_kit.receipts.bench import parse_bench


@dataclass(frozen=True)
class Baseline:
    """Step seconds by batch size; empty, with the reason, when no receipt fits."""

    step_seconds: dict[int, float] = field(default_factory=dict)
    reason: str | None = None


def baseline_from_receipts(
    receipts: Iterable[Receipt],
    *,
    host: str,
    model: str,
    rehearsal: bool,
    levers: Sequence[str] = (),
    sglang_version: str | None = None,
) -> Baseline:
    """Given receipts and what the plan serves, return the plain decode step by concurrency, in seconds.

    Only bench receipts of profile `baseline` on the same host, model and levers count, of the same SGLang
    when both versions are known, and rehearsal never mixes with measurement. For each concurrency the newest
    receipt's closed-loop rounds are taken: the median of 1 / stream speed, since a plain step gives each
    stream one token.
    """
    newest: dict[int, tuple[Receipt, list[float]]] = {}
    others = 0
    for receipt in receipts:
        if receipt.kind != "bench":
            continue
        try:
            subject, summary = parse_bench(receipt)
        except DeployKitError:
            continue  # a damaged receipt is the reader's matter; it says nothing here
        version = receipt.versions.get("sglang")
        fits = (
            subject.profile == "baseline"
            and receipt.host.name == host
            and subject.model == model
            and receipt.rehearsal == rehearsal
            and sorted(subject.levers) == sorted(levers)
            and (sglang_version is None or version is None or version == sglang_version)
        )
        if not fits:
            others += subject.profile == "baseline"
            continue
        rounds: dict[int, list[float]] = {}
        for cell in summary.cells:
            if cell.concurrency is not None and cell.stream_tokens_per_second and not cell.errors:
                rounds.setdefault(cell.concurrency, []).append(1.0 / cell.stream_tokens_per_second)
        for concurrency, steps in rounds.items():
            held = newest.get(concurrency)
            if held is None or receipt.created_at >= held[0].created_at:
                newest[concurrency] = (receipt, steps)
    if not newest:
        return Baseline(
            reason="no receipt of the baseline on this host"
            if not others
            else f"{others} baseline receipt(s), but of another host, model, version or other levers"
        )
    return Baseline({batch: statistics.median(steps) for batch, (_, steps) in sorted(newest.items())})
