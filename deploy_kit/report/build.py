"""From receipts and a campaign's state to a report; what does not compare is refused, as `decide` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deploy_kit import __version__
from deploy_kit.campaign.model import CampaignState
from deploy_kit.campaign.store import read_campaign_state
from deploy_kit.decision.choose import Decision, decide
from deploy_kit.decision.describe import as_dict
from deploy_kit.decision.evidence import gather
from deploy_kit.decision.from_receipts import load_receipts
from deploy_kit.decision.traffic import Traffic
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.receipts import Receipt
from deploy_kit.report import levers
from deploy_kit.report.content import Content, Section, section
from deploy_kit.report.origin import (
    host_section,
    receipts_section,
    reproduce_section,
    versions_section,
)
from deploy_kit.report.probes import probe_section
from deploy_kit.report.profiles import (
    anatomy_figure,
    answer,
    break_even_row,
    cycles_of,
    decision_section,
    question,
    tried_figure,
)

REHEARSAL = (
    "REHEARSAL — made with the rehearsal engine or a stand-in on a machine that is not the one to be served "
    "from. No speed, break-even or choice in this report says anything about real hardware."
)


def build(
    paths: Sequence[Path],
    *,
    campaign: Path | None = None,
    host: str | None = None,
    model: str | None = None,
    traffic: Traffic | None = None,
    command: Sequence[str] = (),
) -> Content:
    """Given receipt files or folders and a campaign's state, return the report.

    Raises `DeployKitError` for damaged receipts, for a mix of hosts, stacks, models, plans, or of rehearsal
    and real, and when there is nothing to report. `command` is what was typed, for the report's own section.
    """
    found = load_receipts(paths)
    if found.errors:
        raise found.errors[0]
    state = _state(campaign)
    kept = [
        receipt
        for receipt in found
        if (host is None or receipt.host.name == host)
        and (model is None or receipt.kind != "bench" or receipt.subject.get("model") == model)
    ]
    if not kept and state is None:
        raise DeployKitError(
            "nothing to report: no receipt and no campaign",
            file=", ".join(str(path) for path in paths) or None,
            found=f"{len(found)} receipts" + (f", none of host {host}" if host and len(found) else ""),
            remedy="measure first: deploy-kit bench URL --profile baseline, then each other profile",
            exit_code=ExitCode.INPUT,
        )
    refuse_mixes(kept, state)
    decision: Decision | None = None
    if any(receipt.kind == "bench" for receipt in kept):
        evidence = gather(kept, found.paths)
        decision = decide(
            evidence,
            traffic=traffic.shares(evidence.bands) if traffic else None,
            rules=traffic.evidence if traffic else None,
        )
    return _assemble(kept, found.paths, decision, state, command)


def refuse_mixes(receipts: Sequence[Receipt], state: CampaignState | None) -> None:
    """Raise `DeployKitError` when receipts of any kind, or the campaign, are of several hosts, or rehearsal
    and real. (`gather` looks at the bench receipts' stacks, models and plans.)"""
    seen = [(f"receipt {r.short_id} ({r.kind})", r.host.name, r.rehearsal) for r in receipts]
    if state is not None:
        seen.append((f"campaign {state.campaign.name}", state.host, state.rehearsal))
    for where, host, rehearsal in seen[1:]:
        for key, mine, other in (("host", seen[0][1], host), ("rehearsal", seen[0][2], rehearsal)):
            if mine != other:
                raise DeployKitError(
                    f"these do not belong in one report: they mix {key}s",
                    key=key,
                    found=f"{mine} ({seen[0][0]}) and {other} ({where})",
                    remedy="report each apart; --host NAME keeps one host's receipts",
                    exit_code=ExitCode.INPUT,
                )
    bench = next((receipt for receipt in receipts if receipt.kind == "bench"), None)
    if bench is None or state is None:
        return
    for name in sorted(set(bench.versions) & set(state.versions) - {"deploy-kit"}):
        if bench.versions[name] != state.versions[name]:
            raise DeployKitError(
                "these do not belong in one report: they mix stacks",
                key=f"stack {name}",
                found=f"{bench.versions[name]} (receipt {bench.short_id}) and {state.versions[name]} "
                f"(campaign {state.campaign.name})",
                remedy="report each apart",
                exit_code=ExitCode.INPUT,
            )


def _state(campaign: Path | None) -> CampaignState | None:
    if campaign is None:
        return None
    state = read_campaign_state(campaign)
    if state is None:
        raise DeployKitError(
            "no campaign's state here",
            file=campaign,
            key="--campaign",
            allowed="a campaign's state folder, or its campaign.json",
            exit_code=ExitCode.INPUT,
        )
    return state


def _assemble(
    receipts: Sequence[Receipt],
    files: dict[str, Path],
    decision: Decision | None,
    state: CampaignState | None,
    command: Sequence[str],
) -> Content:
    host = receipts[0].host.name if receipts else (state.host if state else "unknown")
    rehearsal = receipts[0].rehearsal if receipts else bool(state and state.rehearsal)
    versions = dict(decision.evidence.versions) if decision else {}
    if state is not None:
        versions = versions or dict(state.versions)
    plans = dict(decision.evidence.plans) if decision else {}
    headline, because = _answer(decision, state)
    cycles = cycles_of(decision) if decision else []
    sections: list[Section | None] = [
        None if decision is None else decision_section(decision),
        None if decision is None else section("What was tried", tried_figure(decision)),
        None if state is None else levers.lever_section(state),
        section(
            "Verify anatomy",
            anatomy_figure(
                cycles,
                "One cycle of each profile, beside the baseline's decode step",
            ),
        ),
        section("Break-even", break_even_row(decision, None if state is None else levers.series_of(state))),
        *(probe_section(receipt) for receipt in receipts),
        host_section(host, receipts),
        versions_section(versions, receipts, plans),
        reproduce_section(
            receipts,
            ["deploy-kit decide RECEIPTS", " ".join(command) or "deploy-kit report RECEIPTS -o report.html"],
            None if state is None else levers.commands(state),
        ),
        receipts_section(receipts, files),
    ]
    newest = max([r.created_at for r in receipts] + ([state.updated_at] if state is not None else []))
    return Content(
        title=_title(host, decision, state),
        question=question(decision)
        if decision
        else (state.campaign.question if state else _probes(receipts)),
        answer=headline,
        because=because,
        sections=tuple(part for part in sections if part is not None),
        warnings=_warnings(receipts, state, rehearsal=rehearsal),
        made_from=f"Made by deploy-kit {__version__} from {len(receipts)} receipts"
        + (f" and the campaign {state.campaign.name}" if state else "")
        + f"; the newest measurement is of {newest:%Y-%m-%d %H:%M} UTC.",
        facts={
            "host": host,
            "rehearsal": rehearsal,
            "answer": headline,
            "because": because,
            "decision": None if decision is None else as_dict(decision),
            "campaign": None if state is None else levers.facts(state),
            "receipts": [{"kind": r.kind, "receipt_id": r.receipt_id} for r in receipts],
        },
    )


def _answer(decision: Decision | None, state: CampaignState | None) -> tuple[str, str]:
    if decision is not None:
        head, because = answer(decision)
        return head, because + (f" Levers: {state.conclusion}" if state and state.conclusion else "")
    if state is not None:
        what = state.conclusion or "Not finished."
        return (
            what,
            "Only the campaign is known here: whether speculation pays needs bench receipts of the baseline.",
        )
    return (
        "Undecided: no profile was measured.",
        "There is no bench receipt; what the probes found is below.",
    )


def _title(host: str, decision: Decision | None, state: CampaignState | None) -> str:
    if decision is not None and decision.evidence.model:
        return f"Does speculation pay? {decision.evidence.model} on {host}"
    return f"Which lever helps? {state.model} on {host}" if state else f"What was measured on {host}"


def _probes(receipts: Sequence[Receipt]) -> str:
    kinds = ", ".join(sorted({receipt.kind for receipt in receipts}))
    return f"What do the receipts ({kinds}) say about this host?"


def _warnings(
    receipts: Sequence[Receipt], state: CampaignState | None, *, rehearsal: bool
) -> tuple[str, ...]:
    stand_ins = {str(r.subject["stand_in"]) for r in receipts if r.subject.get("stand_in")}
    if state is not None and state.stand_in:
        stand_ins.add(state.stand_in)
    return (
        *((REHEARSAL,) if rehearsal else ()),
        *(f"STAND-IN: {name} stood in for a real engine." for name in sorted(stand_ins)),
    )
