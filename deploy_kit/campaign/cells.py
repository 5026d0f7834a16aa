"""One cell: loading the engine as the campaign says, and what its receipt or its failure becomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from deploy_kit.bench.prompts import built_in
from deploy_kit.bench.run import About, Settings, bench
from deploy_kit.bench.stream import parse_endpoint
from deploy_kit.campaign.effects import mean_measures
from deploy_kit.campaign.engines import EngineFailure, EngineRunner, RunningEngine
from deploy_kit.campaign.model import Campaign, Cell, Measure, Side, cell_key
from deploy_kit.plan.model import Plan
from deploy_kit.receipts import Receipt
from deploy_kit.receipts.bench import parse_bench

MAX_ERROR_RATIO = 0.01
Bencher = Callable[[RunningEngine, Plan, About], Receipt]


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


def about_start(plan: Plan, runner: EngineRunner, campaign: Campaign, start: str) -> About:
    """Given a plan and how it is run, return what its bench receipt says of it."""
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


def start_name(campaign_id: str, key: str) -> str:
    """Return the name under which a cell's receipt is found again."""
    return f"campaign {campaign_id} {key}"


def refuse_errors(receipt: Receipt) -> None:
    """Raise `EngineFailure` when too many requests of a bench failed."""
    _, summary = parse_bench(receipt)
    good = sum(cell.requests for cell in summary.cells)
    bad = sum(cell.errors for cell in summary.cells)
    if bad > MAX_ERROR_RATIO * (good + bad) or good == 0:
        texts = sorted(summary.errors, key=lambda text: -summary.errors[text])
        raise EngineFailure(
            f"{bad} of {good + bad} requests failed", "requests-failed", None, None, tuple(texts[:3])
        )


def cell_of(receipt: Receipt, step: str, side: Side, repeat: int, plan: Plan, *, attempts: int) -> Cell:
    """Given a cell's receipt, return the finished cell."""
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
    return _cell(
        step, side, repeat, plan, attempts,
        outcome="measured",
        receipt_id=receipt.receipt_id,
        measures=mean_measures(rounds),
        ended_at=receipt.created_at,
    )  # fmt: skip


def failed_cell(
    failure: EngineFailure, step: str, side: Side, repeat: int, plan: Plan, attempts: int
) -> Cell:
    """Given why an engine did not run or measure, return the finished cell."""
    return _cell(
        step, side, repeat, plan, attempts,
        outcome="failed",
        ended_at=datetime.now(UTC),
        cause=failure.cause,
        cause_id=failure.cause_id,
        remedy=failure.remedy,
        exit_code=failure.exit_code,
        evidence=list(failure.evidence),
    )  # fmt: skip


def _cell(step: str, side: Side, repeat: int, plan: Plan, attempts: int, **found: Any) -> Cell:
    return Cell(
        key=cell_key(step, side, repeat),
        step=step,
        side=side,
        repeat=repeat,
        plan_id=plan.plan_id,
        levers=list(plan.levers),
        attempts=attempts,
        **found,
    )
