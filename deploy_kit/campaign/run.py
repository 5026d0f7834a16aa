"""The campaign itself: plans, probes, cells in turns, winners together; each on disk before the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from deploy_kit.campaign.cells import (
    Bencher,
    about_start,
    cell_of,
    failed_cell,
    real_bencher,
    refuse_errors,
    start_name,
)
from deploy_kit.campaign.effects import updated, winners_of
from deploy_kit.campaign.engines import EngineFailure, EngineRunner, refuse_levers_off
from deploy_kit.campaign.model import (
    COMBINED,
    SIDES,
    CampaignState,
    Cell,
    LeverResult,
    ProbeResult,
    Running,
    Side,
    cell_key,
)
from deploy_kit.campaign.outlook import conclusion, estimate
from deploy_kit.campaign.prepare import Prepared, open_state, refused, resolve_with
from deploy_kit.campaign.probes import Prober
from deploy_kit.campaign.store import StateFolder
from deploy_kit.campaign.window import Window, WindowOverError
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.plan.model import Plan
from deploy_kit.receipts import Receipt, read_receipts, write_receipt
from deploy_kit.receipts.bench import parse_bench

BASE_ATTEMPTS = 2  # the base is known to run: one failed start of it may be chance


@dataclass(frozen=True)
class Progress:
    """Where a campaign is, for people: cells done, cells in all as far as known, seconds left if known."""

    done: int
    total: int
    what: str
    seconds_left: float | None


Show = Callable[[Progress], None]


def run_campaign(
    prepared: Prepared,
    folder: StateFolder,
    runner: EngineRunner,
    *,
    prober: Prober | None = None,
    bencher: Bencher | None = None,
    show: Show | None = None,
    window_seconds: float | None = None,
) -> CampaignState:
    """Run what is left of a campaign, and return its state. `folder` must be locked by the caller.

    `window_seconds`: no cell is begun that would not be over within that; the state is not `finished` then.

    Every finished cell is on disk before the next begins: its receipt first, then the state; a receipt whose
    state was not written any more is found again. Raises `DeployKitError` when nothing more can be measured
    (the base does not run, the disk is full, the port is taken); the state then says how far it came.
    """
    return _Campaign(
        prepared,
        folder,
        runner,
        prober,
        bencher or real_bencher(prepared.campaign),
        show or _silent,
        Window(window_seconds),
    ).run()


def _silent(progress: Progress) -> None:
    del progress


class _Campaign:
    """One process's part of a campaign."""

    def __init__(
        self,
        prepared: Prepared,
        folder: StateFolder,
        runner: EngineRunner,
        prober: Prober | None,
        bencher: Bencher,
        show: Show,
        window: Window,
    ) -> None:
        self._window = window
        self._prepared = prepared
        self._folder = folder
        self._runner = runner
        self._prober = prober
        self._bencher = bencher
        self._show = show
        self._schedule = prepared.campaign.schedule
        self.state = open_state(prepared, folder, runner)

    def run(self) -> CampaignState:
        if self.state.finished:
            return self.state
        self._folder.reserve()
        if self._folder.file.exists():
            self.state = self.state.model_copy(update={"resumed": self.state.resumed + 1})
        self._adopt_receipts()
        self._save()
        try:
            self._probe_all()
            for result in self.state.levers:
                self._run_step(result.name)
            self._combine()
        except WindowOverError:
            self._save(running=None)
            self._folder.release()
            return self.state
        return self._finish()

    # ---------------------------------------------------------------- the state

    def _save(self, **changes: object) -> None:
        self.state = self.state.model_copy(update={**changes, "updated_at": datetime.now(UTC)})
        self._folder.keep(lambda: self._folder.write(self.state))

    def _result(self, name: str) -> LeverResult:
        if name == COMBINED and self.state.combined is not None:
            return self.state.combined
        return next(result for result in self.state.levers if result.name == name)

    def _put(self, result: LeverResult, **changes: object) -> None:
        if result.name == COMBINED:
            self._save(combined=result, **changes)
        else:
            levers = [result if one.name == result.name else one for one in self.state.levers]
            self._save(levers=levers, **changes)

    def _add(self, cell: Cell, receipt: Receipt | None = None) -> None:
        cells = [*self.state.cells, cell]
        result = updated(self._result(cell.step), cells, self._schedule)
        # The running engine's own word for its versions goes before the stack's.
        versions = dict(self.state.versions) if receipt is None else dict(receipt.versions)
        self._put(result, cells=cells, running=None, versions=versions)

    def _say(self, what: str) -> None:
        done = len(self.state.cells)
        left = estimate(self.state)
        self._show(Progress(done, done + left.cells, what, left.seconds))

    def _adopt_receipts(self) -> None:
        """Take in the receipts of cells that were over when the campaign was cut off before it said so."""
        wanted = {
            start_name(self.state.campaign_id, cell_key(result.name, side, repeat)): (result, side, repeat)
            for result in [*self.state.levers, *([self.state.combined] if self.state.combined else [])]
            for repeat in range(self._schedule.repeats)
            for side in SIDES
            if self.state.cell(cell_key(result.name, side, repeat)) is None
        }
        if not wanted:
            return
        receipts = {
            parse_bench(receipt)[0].server_start or "": receipt
            for receipt in read_receipts(self._folder.receipts, kind="bench")
        }
        for start, (result, side, repeat) in wanted.items():
            receipt = receipts.get(start)
            if receipt is not None:
                plan = self._prepared.plan_of(result, side, self._runner)
                self._add(cell_of(receipt, result.name, side, repeat, plan, attempts=1), receipt)

    # ---------------------------------------------------------------- the steps

    def _probe_all(self) -> None:
        steps = {step.name: step for step in self._prepared.campaign.lever}
        for result in self.state.levers:
            step = steps[result.name]
            if result.outcome != "pending" or result.probe is not None:
                continue
            probe = ProbeResult(probe="plan", passed=True)
            if step.probe != "plan" and self._prober is not None:
                self._window.refuse_unless_it_fits(None)
                self._say(f"{step.name}: probe {step.probe}, {step.candidate}")
                probe = self._prober(step, self._folder.receipts)
            elif step.probe != "plan":
                probe = ProbeResult(
                    probe=step.probe, candidate=step.candidate, passed=None, cause="probes were left out"
                )
            if probe.passed is False:
                self._put(refused(result, probe))
            else:
                self._put(result.model_copy(update={"probe": probe}))

    def _run_step(self, name: str) -> None:
        for repeat in range(self._schedule.repeats):
            for side in SIDES:
                if self._result(name).outcome != "pending":
                    return
                if self.state.cell(cell_key(name, side, repeat)) is None:
                    self._run_cell(self._result(name), side, repeat)

    def _run_cell(self, result: LeverResult, side: Side, repeat: int) -> None:
        plan = self._prepared.plan_of(result, side, self._runner)
        key = cell_key(result.name, side, repeat)
        before = self.state.running
        first = before.attempt + 1 if before is not None and before.key == key else 1
        last = first + (BASE_ATTEMPTS if side == "base" else 1) - 1
        for attempt in range(first, last + 1):
            self._window.refuse_unless_it_fits(estimate(self.state).cell_seconds)
            self._folder.reserve()
            self._save(running=Running(key=key, began_at=datetime.now(UTC), attempt=attempt))
            try:
                began = time.monotonic()
                measured = self._measure(result.name, side, repeat, plan, key, attempt)
                self._window.cell_took(time.monotonic() - began)
                self._add(*measured)
                return
            except EngineFailure as failure:
                if side == "lever":
                    self._add(failed_cell(failure, result.name, side, repeat, plan, attempt))
                    return
                if attempt == last:
                    self._save(running=None)
                    raise DeployKitError(
                        f"the base plan does not run: {failure.cause}",
                        key=key,
                        found="; ".join(failure.evidence[:3]) or None,
                        remedy=failure.remedy
                        or "correct it, then run the same command again: it goes on here",
                        exit_code=ExitCode.FAILURE,
                    ) from failure

    def _measure(
        self, step: str, side: Side, repeat: int, plan: Plan, key: str, attempt: int
    ) -> tuple[Cell, Receipt]:
        place = f"{step}, {side} {repeat + 1}/{self._schedule.repeats}"
        folder = self._folder.folder / "engines" / f"{step}-{side}-{repeat}-{attempt}"
        about = about_start(plan, self._runner, self.state.campaign, start_name(self.state.campaign_id, key))
        with self._runner.running(plan, folder, lambda what: self._say(f"{place}: {what}")) as engine:
            refuse_levers_off(engine)
            self._say(f"{place}: measuring")
            began = time.monotonic()
            try:
                receipt = self._bencher(engine, plan, about)
            except DeployKitError as error:
                raise engine.failure() or EngineFailure(error.summary, None, error.remedy) from error
            seconds = max(time.monotonic() - began, 1e-3)
            failure = engine.failure()
            if failure is not None:
                raise failure
            refuse_levers_off(engine)  # it may say so when it first needs what the lever brings
            refuse_errors(receipt)
            # On disk while the engine still runs: stopping it takes a minute in which much can happen.
            self._folder.keep(lambda: write_receipt(self._folder.receipts, receipt))
            cell = cell_of(receipt, step, side, repeat, plan, attempts=attempt)
        times = {"start_seconds": engine.start_seconds, "bench_seconds": seconds}
        return cell.model_copy(update=times), receipt

    def _combine(self) -> None:
        if self.state.combined is None:
            winners = winners_of(self.state.levers)
            chosen, plan, left_out = self._compatible(winners)
            names = [winner.name for winner in winners]
            if len(chosen) < 2 or plan is None:
                self._save(winners=names)
                return
            combined = LeverResult(
                name=COMBINED,
                levers=chosen,
                plan_id=plan.plan_id,
                probe=ProbeResult(probe="plan", passed=True, cause="; ".join(left_out) or None),
                claimed=None,
            )
            self._save(winners=names, combined=combined)
        self._run_step(COMBINED)

    def _compatible(self, winners: Sequence[LeverResult]) -> tuple[list[str], Plan | None, list[str]]:
        # Strongest first; one that does not go together with those before it is left out, and said to be.
        chosen: list[str] = []
        plan: Plan | None = None
        left_out: list[str] = []
        for winner in winners:
            try:
                plan = resolve_with(self._prepared, self._runner, [*chosen, winner.name])
            except DeployKitError as error:
                left_out.append(f"without {winner.name}: {error.summary}")
            else:
                chosen.append(winner.name)
        return chosen, plan, left_out

    def _finish(self) -> CampaignState:
        self._save(finished=True, running=None, conclusion=conclusion(self.state))
        self._folder.release()
        return self.state
