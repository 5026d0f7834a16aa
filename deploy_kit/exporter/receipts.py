"""What receipts say about the plan that is served, read again when the folder gains one."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from deploy_kit.errors import DeployKitError
from deploy_kit.exporter.baseline import baseline_from_receipts
from deploy_kit.exporter.facts import PlanFacts
from deploy_kit.receipts import Receipt, read_receipt
from deploy_kit.receipts.bench import parse_bench

LOOK_INTERVAL_SECONDS = 5.0

_Stamp = tuple[str, int, int]  # name, size in bytes, time of change in nanoseconds


def verify_p95_from_receipts(receipts: Iterable[Receipt], *, plan_id: str, rehearsal: bool) -> float | None:
    """Given receipts, return the 95th percentile of a verify in this plan's newest bench receipt, in seconds.

    A verify takes longer the more requests it serves: of the loads measured, the slowest counts, since an
    alert must not fire on a load that was measured to be so. None when no receipt of this plan has one.
    """
    newest: tuple[Receipt, float] | None = None
    for receipt in receipts:
        if receipt.kind != "bench" or receipt.plan_id != plan_id or receipt.rehearsal != rehearsal:
            continue
        try:
            _subject, summary = parse_bench(receipt)
        except DeployKitError:
            continue
        by_load: dict[tuple[int | None, float | None], list[float]] = {}
        for cell in summary.cells:
            if cell.engine.verify_p95_seconds is not None and not cell.errors:
                load = (cell.concurrency, cell.rate_per_second)
                by_load.setdefault(load, []).append(cell.engine.verify_p95_seconds)
        if by_load and (newest is None or receipt.created_at >= newest[0].created_at):
            newest = (receipt, max(statistics.median(rounds) for rounds in by_load.values()))
    return None if newest is None else newest[1]


class PlanFromReceipts:
    """The served plan's facts, with what the receipts in `folder` add to them.

    Calling it returns the facts of this moment. The folder is looked at every few seconds at most, and only
    new files are read: a baseline measured while the engine serves is used without a restart. A file that is
    no whole receipt is left out, and said once.
    """

    def __init__(
        self,
        plan: PlanFacts,
        folder: Path | None,
        *,
        served_model_name: str,
        levers: Sequence[str] = (),
        sglang_version: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._served_model_name = served_model_name
        self._levers = tuple(levers)
        self._sglang_version = sglang_version
        self._clock = clock
        self._lock = threading.Lock()
        self._looked: float | None = None
        self._known: dict[_Stamp, Receipt | None] = {}
        self._said: set[str] = set()
        self._facts = plan

    def __call__(self) -> PlanFacts:
        """Return the facts of this moment."""
        with self._lock:
            now = self._clock()
            if self._folder is None or (
                self._looked is not None and now - self._looked < LOOK_INTERVAL_SECONDS
            ):
                return self._facts
            first, self._looked = self._looked is None, now
            stamps = _stamps(self._folder)
            if first or stamps != self._known.keys():
                self._known = {
                    stamp: self._known[stamp] if stamp in self._known else self._read(self._folder / stamp[0])
                    for stamp in stamps
                }
                self._facts = self._derive([receipt for receipt in self._known.values() if receipt])
            return self._facts

    def _derive(self, receipts: Sequence[Receipt]) -> PlanFacts:
        plan = self._plan
        baseline = baseline_from_receipts(
            receipts,
            host=plan.host,
            model=self._served_model_name,
            rehearsal=plan.rehearsal,
            levers=self._levers,
            sglang_version=self._sglang_version,
        )
        if not baseline.step_seconds and baseline.reason and plan.speculative:
            self._say(f"no baseline in {self._folder}: {baseline.reason}")
        return replace(
            plan,
            baseline_step_seconds=baseline.step_seconds,
            baseline_source="receipt" if baseline.step_seconds else "unknown",
            verify_p95_seconds=verify_p95_from_receipts(
                receipts, plan_id=plan.plan_id, rehearsal=plan.rehearsal
            ),
        )

    def _read(self, path: Path) -> Receipt | None:
        try:
            receipt = read_receipt(path)
        except DeployKitError as error:
            self._say(f"left out: {error}")
            return None
        # Only summaries are used here; the samples are most of a receipt.
        return receipt.model_copy(update={"samples": []}) if receipt.kind == "bench" else None

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            sys.stderr.write(f"deploy-kit: receipts: {text}\n")


def _stamps(folder: Path) -> set[_Stamp]:
    found: set[_Stamp] = set()
    try:
        for path in folder.glob("*.json"):
            if not path.name.startswith("."):
                facts = path.stat()
                found.add((path.name, facts.st_size, facts.st_mtime_ns))
    except OSError:
        return found  # an absent folder holds nothing; one that appears later is seen later
    return found
