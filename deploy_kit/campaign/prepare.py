"""Before a campaign runs: its plans, its state when nothing is measured yet, and whose folder it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from deploy_kit.campaign.engines import EngineRunner
from deploy_kit.campaign.model import Campaign, CampaignState, LeverResult, LeverStep, ProbeResult, Side
from deploy_kit.campaign.store import StateFolder
from deploy_kit.configs.catalog import Catalog
from deploy_kit.configs.schema import Lever
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.plan.model import Plan
from deploy_kit.plan.resolve import resolve


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
        return self.base if side == "base" else resolve_with(self, runner, result.levers)


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


def resolve_with(prepared: Prepared, runner: EngineRunner, levers: Sequence[str]) -> Plan:
    """Return the plan of the base with these levers too, as the runner serves it."""
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
    return refused(result, ProbeResult(
        probe="plan", passed=False, cause=f"{plan.summary}{found}", remedy=plan.remedy
    ))  # fmt: skip


def refused(result: LeverResult, probe: ProbeResult) -> LeverResult:
    """Return the lever's result when its probe or plan speaks against loading it."""
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


def default_folder(campaign: Campaign) -> Path:
    """Return where a campaign's state goes when no folder is named."""
    return Path("campaigns") / campaign.name
