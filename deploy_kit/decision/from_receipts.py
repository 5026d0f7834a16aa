"""The way in for commands: files in, decision out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from deploy_kit.decision.choose import Decision, EvidenceRules, decide
from deploy_kit.decision.estimate import Candidate, allreduce_times, estimate, rank
from deploy_kit.decision.evidence import Evidence, gather
from deploy_kit.decision.traffic import Traffic
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.receipts import Receipt, ReceiptSet, read_receipts


def load_receipts(paths: Sequence[str | Path]) -> ReceiptSet:
    """Given receipt files and folders of them, return all receipts, oldest first, and every file's error."""
    receipts: dict[str, Receipt] = {}
    errors: list[DeployKitError] = []
    files: dict[str, Path] = {}
    for path in paths:
        found = read_receipts(path)
        errors.extend(found.errors)
        for receipt in found:
            receipts.setdefault(receipt.receipt_id, receipt)
        files.update(found.paths)
    ordered = sorted(receipts.values(), key=lambda receipt: (receipt.created_at, receipt.receipt_id))
    return ReceiptSet(tuple(ordered), tuple(errors), files)


def choose_profile(
    paths: Sequence[str | Path],
    *,
    host: str | None = None,
    model: str | None = None,
    rehearsal: bool | None = None,
    stack: str | None = None,
    profiles: Sequence[str] = (),
    levers: Sequence[str] | None = None,
    traffic: Traffic | None = None,
    rules: EvidenceRules | None = None,
    candidates: Sequence[Candidate] = (),
    layers: int | None = None,
    allreduces_per_forward: int | None = None,
) -> Decision:
    """Given receipt files or folders, return the decision for this host and model.

    `host`, `model`, `rehearsal`, `stack`, `profiles` and `levers` (exactly these) narrow a folder that holds
    several; what is left must not mix (see `gather`). `candidates` are the profiles that could be run: those
    not measured are listed as missing and, with `layers`, `allreduces_per_forward` and a probe receipt,
    ranked by estimate. A damaged file raises: a decision must not rest on what happened to be readable.
    """
    found = load_receipts(paths)
    if found.errors:
        raise found.errors[0]
    kept = [
        receipt
        for receipt in found
        if (host is None or receipt.host.name == host)
        and (rehearsal is None or receipt.rehearsal == rehearsal)
        and (receipt.kind != "bench" or _wanted(receipt, model, stack, profiles, levers))
    ]
    if not any(receipt.kind == "bench" for receipt in kept):
        kinds = sorted({receipt.kind for receipt in kept})
        there = sum(1 for receipt in found if receipt.kind == "bench")
        raise DeployKitError(
            "no bench receipt to decide from",
            file=", ".join(str(path) for path in paths),
            found=f"{len(kept)} receipts"
            + (f" ({', '.join(kinds)})" if kinds else "")
            + (
                f", of {there} there: the others are of another host, model, stack or profile"
                if there
                else ""
            ),
            remedy="measure first: deploy-kit bench URL --profile baseline, then each other profile",
            exit_code=ExitCode.INPUT,
        )
    evidence = gather(kept, found.paths)
    decision = decide(
        evidence,
        traffic=traffic.shares(evidence.bands) if traffic else None,
        rules=rules or (traffic.evidence if traffic else None),
        wanted_profiles=[candidate.profile for candidate in candidates],
    )
    lines = _estimates(decision, evidence, kept, candidates, layers, allreduces_per_forward)
    return replace(decision, estimates=tuple(lines))


def _wanted(
    receipt: Receipt,
    model: str | None,
    stack: str | None,
    profiles: Sequence[str],
    levers: Sequence[str] | None,
) -> bool:
    subject = receipt.subject
    found = subject.get("levers")
    return (
        (model is None or subject.get("model") == model)
        and (stack is None or receipt.versions.get("stack") == stack)
        and (not profiles or subject.get("profile") in profiles)
        and (levers is None or (isinstance(found, list) and sorted(map(str, found)) == sorted(levers)))
    )


def _estimates(
    decision: Decision,
    evidence: Evidence,
    receipts: Sequence[Receipt],
    candidates: Sequence[Candidate],
    layers: int | None,
    allreduces_per_forward: int | None,
) -> list[str]:
    measured = {method.profile for method in evidence.methods}
    points = allreduce_times(receipts, evidence.host, evidence.rehearsal)
    base = next((band for band in decision.bands if band.baseline is not None), None)
    if not points or base is None or base.baseline is None or not layers or not allreduces_per_forward:
        return []
    speed = base.baseline.mean("stream_speed")
    found = [
        estimate(
            candidate,
            baseline_tokens_per_second=speed,
            allreduce_seconds=points,
            allreduces_per_forward=allreduces_per_forward,
            layers=layers,
            concurrency=base.band.concurrency,
        )
        for candidate in candidates
        if speed and candidate.profile not in measured and candidate.profile != "baseline"
    ]
    return [entry.text for entry in rank([entry for entry in found if entry is not None])]
