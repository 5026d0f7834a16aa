"""The campaign itself: plans, probes, cells in turns, winners together; each on disk before the next."""

from __future__ import annotations

import asyncio
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from deploy_kit.bench.prompts import built_in
from deploy_kit.bench.run import About, Settings, bench
from deploy_kit.bench.stream import parse_endpoint
from deploy_kit.campaign.effects import mean_measures, updated, winners_of
from deploy_kit.campaign.engines import EngineFailure, EngineRunner, RunningEngine
from deploy_kit.campaign.model import (
    COMBINED,
    Campaign,
    CampaignState,
    Cell,
    LeverResult,
    LeverStep,
    Measure,
    ProbeResult,
    Running,
    Side,
    cell_key,
)
from deploy_kit.campaign.probes import Prober
from deploy_kit.campaign.store import StateFolder
from deploy_kit.configs.catalog import Catalog
from deploy_kit.configs.schema import Lever
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.plan.model import Plan
from deploy_kit.plan.resolve import resolve
from deploy_kit.receipts import Receipt, read_receipts, write_receipt
from deploy_kit.receipts.bench import parse_bench

BASE_ATTEMPTS = 2  # the base is known to run: one failed start of it may be chance
MAX_ERROR_RATIO = 0.01
SIDES: tuple[Side, Side] = ("base", "lever")


@dataclass(frozen=True)
class Progress:
    """Where a campaign is, for people: cells done, cells in all as far as known, seconds left if known."""

    done: int
    total: int
    what: str
    seconds_left: float | None


Show = Callable[[Progress], None]
Bencher = Callable[[RunningEngine, Plan, About], Receipt]


@dataclass(frozen=True)
class Estimate:
    """How long what is left takes. `cells` counts the winners' run as if there will be one."""

    cells: int
    seconds: float | None
    why: str  # what the seconds rest on, or why they are not known


@dataclass(frozen=True)
class Prepared:
    """A campaign with its plans: of the base, and of each lever, or why there is none."""

    campaign: Campaign
    catalog: Catalog
    host: str | None
    base: Plan
    plans: dict[str, Plan | DeployKitError]
    campaign_id: str

    def plan_of(self, result: LeverResult, side: Side, runner: EngineRunner) -> Plan:
        """Return the plan of one side of a step."""
        return self.base if side == "base" else _resolve(self, runner, result.levers)


def prepare(campaign: Campaign, catalog: Catalog, *, host: str | None, address: str, port: int) -> Prepared:
    """Given a campaign, resolve all its plans. A lever whose plan is refused is kept with the refusal; a base
    that is refused, and a lever that does not exist, raise."""
    base = campaign.base

    def plan(levers: Sequence[str]) -> Plan:
        return resolve(
            catalog, base.profile, host=host, stack=base.stack, model=base.model, drafter=base.drafter,
            levers=[*base.levers, *levers], address=address, port=port,
        )  # fmt: skip

    the_base = plan(())
    plans: dict[str, Plan | DeployKitError] = {}
    for step in campaign.lever:
        catalog.load(Lever, step.name)
        try:
            plans[step.name] = plan((step.name,))
        except DeployKitError as error:
            plans[step.name] = error
    content = {
        "campaign": campaign.model_dump(mode="json"),
        "base": the_base.plan_id,
        "plans": {name: p.plan_id if isinstance(p, Plan) else p.summary for name, p in plans.items()},
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return Prepared(campaign, catalog, host, the_base, plans, hashlib.sha256(text.encode()).hexdigest()[:12])


def _resolve(prepared: Prepared, runner: EngineRunner, levers: Sequence[str]) -> Plan:
    base = prepared.campaign.base
    return resolve(
        prepared.catalog, base.profile, host=prepared.host, stack=base.stack, model=base.model,
        drafter=base.drafter, levers=[*base.levers, *levers], address=runner.address, port=runner.port,
    )  # fmt: skip


def new_state(prepared: Prepared, runner: EngineRunner) -> CampaignState:
    """Return the state of a campaign that has not begun. Levers whose plan is refused are refused already."""
    plan, now = prepared.base, datetime.now(UTC)
    return CampaignState(
        campaign=prepared.campaign,
        campaign_id=prepared.campaign_id,
        rehearsal=plan.rehearsal or runner.stand_in is not None,
        host=plan.host,
        model=plan.model,
        stack=plan.stack,
        base_plan_id=plan.plan_id,
        versions=dict(plan.versions),
        runner=runner.name,
        stand_in=runner.stand_in,
        created_at=now,
        updated_at=now,
        levers=[_new_result(step, prepared) for step in prepared.campaign.lever],
    )


def _new_result(step: LeverStep, prepared: Prepared) -> LeverResult:
    plan = prepared.plans[step.name]
    lever = prepared.catalog.load(Lever, step.name)
    result = LeverResult(
        name=step.name,
        levers=[step.name],
        plan_id=plan.plan_id if isinstance(plan, Plan) else None,
        claimed=step.claimed,
        claimed_by=step.claimed_by,
        claimed_cycle_saving_ms=step.claimed_cycle_saving_ms,
        expected_effect=lever.expected_effect,
        status_on_sm120=lever.status_on_sm120,
    )
    if isinstance(plan, Plan):
        return result
    found = f" (found: {plan.found})" if plan.found else ""
    return _refused(result, ProbeResult(
        probe="plan", passed=False, cause=f"{plan.summary}{found}", remedy=plan.remedy
    ))  # fmt: skip


def _refused(result: LeverResult, probe: ProbeResult) -> LeverResult:
    return result.model_copy(
        update={
            "probe": probe,
            "outcome": "refused-by-probe",
            "reason": "never loaded",
            "cause": probe.cause,
            "cause_id": f"probe-{probe.probe}",
            "remedy": probe.remedy,
        }
    )


def estimate(state: CampaignState) -> Estimate:
    """Given a state, return how long the rest takes: from what its own cells took, else from the schedule."""
    schedule = state.campaign.schedule
    whole = len(SIDES) * schedule.repeats
    cells = sum(
        whole - sum(1 for cell in state.cells if cell.step == result.name)
        for result in state.levers
        if result.outcome == "pending"
    )
    open_levers = sum(1 for r in state.levers if r.outcome == "pending" or r.verdict == "helps")
    if state.combined is not None and state.combined.outcome == "pending":
        cells += whole - sum(1 for cell in state.cells if cell.step == COMBINED)
    elif state.combined is None and not state.finished and open_levers > 1:
        cells += whole
    starts = [cell.start_seconds for cell in state.cells if cell.start_seconds is not None]
    benches = [cell.bench_seconds for cell in state.cells if cell.bench_seconds is not None]
    start = statistics.median(starts) if starts else schedule.expected_start_seconds
    run = statistics.median(benches) if benches else schedule.expected_bench_seconds
    if start is None or run is None:
        missing = "expected_start_seconds" if start is None else "expected_bench_seconds"
        return Estimate(cells, None, f"no cell was measured yet, and the schedule has no {missing}")
    return Estimate(
        cells,
        cells * (start + run),
        f"{start:.0f} s a start ({'measured' if starts else 'given'}) and "
        f"{run:.0f} s of measuring ({'measured' if benches else 'given'}) for each of {cells} cells",
    )


def run_campaign(
    prepared: Prepared,
    folder: StateFolder,
    runner: EngineRunner,
    *,
    prober: Prober | None = None,
    bencher: Bencher | None = None,
    show: Show | None = None,
) -> CampaignState:
    """Run what is left of a campaign, and return its final state. `folder` must be locked by the caller.

    Every finished cell is on disk before the next begins: its receipt first, then the state; a receipt whose
    state was not written any more is found again. Raises `DeployKitError` when nothing more can be measured
    (the base does not run, the disk is full, the port is taken); the state then says how far it came.
    """
    return _Campaign(
        prepared, folder, runner, prober, bencher or real_bencher(prepared.campaign), show or _silent
    ).run()


def _silent(progress: Progress) -> None:
    del progress


def open_state(prepared: Prepared, folder: StateFolder, runner: EngineRunner) -> CampaignState:
    """Return the folder's state, or a new one; refuse a folder that holds another campaign."""
    state = folder.read()
    if state is None:
        return new_state(prepared, runner)
    if state.campaign_id != prepared.campaign_id or state.runner != runner.name:
        other = state.campaign.name != prepared.campaign.name
        what = "another campaign" if other else "this campaign with other settings, plans or engines"
        raise DeployKitError(
            f"the state folder holds {what}",
            file=folder.file,
            found=f"{state.campaign.name} {state.campaign_id}, engines by {state.runner}",
            allowed=f"{prepared.campaign.name} {prepared.campaign_id}, engines by {runner.name}",
            remedy="name another folder with --state; measurements of two plans do not mix",
            exit_code=ExitCode.INPUT,
        )
    return state


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
    ) -> None:
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
        self._probe_all()
        for result in self.state.levers:
            self._run_step(result.name)
        self._combine()
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
            _start_name(self.state.campaign_id, cell_key(result.name, side, repeat)): (result, side, repeat)
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
                self._add(_cell_of(receipt, result.name, side, repeat, plan, attempts=1), receipt)

    # ---------------------------------------------------------------- the steps

    def _probe_all(self) -> None:
        steps = {step.name: step for step in self._prepared.campaign.lever}
        for result in self.state.levers:
            step = steps[result.name]
            if result.outcome != "pending" or result.probe is not None:
                continue
            probe = ProbeResult(probe="plan", passed=True)
            if step.probe != "plan" and self._prober is not None:
                self._say(f"{step.name}: probe {step.probe}, {step.candidate}")
                probe = self._prober(step, self._folder.receipts)
            elif step.probe != "plan":
                probe = ProbeResult(
                    probe=step.probe, candidate=step.candidate, passed=None, cause="probes were left out"
                )
            if probe.passed is False:
                self._put(_refused(result, probe))
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
            self._folder.reserve()
            self._save(running=Running(key=key, began_at=datetime.now(UTC), attempt=attempt))
            try:
                self._add(*self._measure(result.name, side, repeat, plan, key, attempt))
                return
            except EngineFailure as failure:
                if side == "lever":
                    self._add(_failed_cell(failure, result.name, side, repeat, plan, attempt))
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
        about = _about(plan, self._runner, self.state.campaign, _start_name(self.state.campaign_id, key))
        with self._runner.running(plan, folder, lambda what: self._say(f"{place}: {what}")) as engine:
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
            _refuse_errors(receipt)
            # On disk while the engine still runs: stopping it takes a minute in which much can happen.
            self._folder.keep(lambda: write_receipt(self._folder.receipts, receipt))
            cell = _cell_of(receipt, step, side, repeat, plan, attempts=attempt)
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
                plan = _resolve(self._prepared, self._runner, [*chosen, winner.name])
            except DeployKitError as error:
                left_out.append(f"without {winner.name}: {error.summary}")
            else:
                chosen.append(winner.name)
        return chosen, plan, left_out

    def _finish(self) -> CampaignState:
        self._save(finished=True, running=None, conclusion=conclusion(self.state))
        self._folder.release()
        return self.state


def conclusion(state: CampaignState) -> str:
    """Given a state with nothing left to do, return what was found in one sentence."""
    if not state.winners:
        tried = sum(1 for result in state.levers if result.outcome == "done")
        return f"no lever helps measurably: {tried} of {len(state.levers)} were measured"
    if state.combined is None:
        best = next(result for result in state.levers if result.name == state.winners[0])
        only = (
            "it alone helps"
            if len(state.winners) == 1
            else "the strongest that can run; the others exclude it"
        )
        return f"use {best.name}: {best.reason} ({only})"
    combined = state.combined
    names = " + ".join(combined.levers)
    if combined.outcome == "done" and combined.verdict == "helps":
        return f"use {names} together: {combined.reason}"
    best = next(result for result in state.levers if result.name == state.winners[0])
    return f"use {best.name}: {best.reason}; together, {names}: {combined.verdict}, {combined.reason}"


def real_bencher(campaign: Campaign) -> Bencher:
    """Return a bencher that loads the engine as the campaign says and reads its counters."""
    part = campaign.bench
    settings = Settings(
        concurrencies=tuple(part.concurrencies),
        rounds=part.rounds,
        requests_per_stream=part.requests,
        output_tokens=part.output_tokens,
        seed=part.seed,
        timeout_seconds=min(600.0, float(campaign.schedule.stalled_seconds)),
    )
    prompts = built_in(part.prompt_tokens)

    def run(engine: RunningEngine, plan: Plan, about: About) -> Receipt:
        endpoint = parse_endpoint(engine.url)
        return asyncio.run(
            bench(
                endpoint, prompts, settings, about,
                interface=part.interface, model=plan.served_model_name, api_key=engine.api_key,
            )
        )  # fmt: skip

    return run


def _about(plan: Plan, runner: EngineRunner, campaign: Campaign, start: str) -> About:
    return About(
        profile=plan.profile,
        levers=plan.levers,
        plan_id=plan.plan_id,
        host=plan.host,
        host_facts={"gpus": plan.gpus},
        versions={**dict(plan.versions), "stack": plan.stack},
        rehearsal=plan.rehearsal,
        stand_in=runner.stand_in,
        server_start=start,
        arguments=("campaign", campaign.name),
    )


def _start_name(campaign_id: str, key: str) -> str:
    return f"campaign {campaign_id} {key}"


def _refuse_errors(receipt: Receipt) -> None:
    _, summary = parse_bench(receipt)
    good = sum(cell.requests for cell in summary.cells)
    bad = sum(cell.errors for cell in summary.cells)
    if bad > MAX_ERROR_RATIO * (good + bad) or good == 0:
        texts = sorted(summary.errors, key=lambda text: -summary.errors[text])
        raise EngineFailure(
            f"{bad} of {good + bad} requests failed", "requests-failed", None, None, tuple(texts[:3])
        )


def _cell_of(receipt: Receipt, step: str, side: Side, repeat: int, plan: Plan, *, attempts: int) -> Cell:
    _, summary = parse_bench(receipt)
    rounds = [
        Measure(
            concurrency=cell.concurrency or 1,
            tokens_per_second=cell.tokens_per_second,
            stream_tokens_per_second=cell.stream_tokens_per_second,
            cycle_seconds=cell.cycle_seconds,
            verify_seconds=cell.engine.verify_seconds,
            draft_seconds=cell.engine.draft_seconds,
            accept_length=cell.engine.accept_length,
            requests=cell.requests,
            errors=cell.errors,
        )
        for cell in summary.cells
        if cell.tokens_per_second > 0
    ]
    return Cell(
        key=cell_key(step, side, repeat),
        step=step,
        side=side,
        repeat=repeat,
        plan_id=plan.plan_id,
        levers=list(plan.levers),
        outcome="measured",
        receipt_id=receipt.receipt_id,
        measures=mean_measures(rounds),
        ended_at=receipt.created_at,
        attempts=attempts,
    )


def _failed_cell(
    failure: EngineFailure, step: str, side: Side, repeat: int, plan: Plan, attempts: int
) -> Cell:
    return Cell(
        key=cell_key(step, side, repeat),
        step=step,
        side=side,
        repeat=repeat,
        plan_id=plan.plan_id,
        levers=list(plan.levers),
        outcome="failed",
        ended_at=datetime.now(UTC),
        attempts=attempts,
        cause=failure.cause,
        cause_id=failure.cause_id,
        remedy=failure.remedy,
        exit_code=failure.exit_code,
        evidence=list(failure.evidence),
    )


def default_folder(campaign: Campaign) -> Path:
    """Return where a campaign's state goes when no folder is named."""
    return Path("campaigns") / campaign.name
