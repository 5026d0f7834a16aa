"""Numeric acceptance of fused all-reduce + residual add + RMSNorm, and its time against the unfused three."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deploy_kit.errors import DeployKitError, nearest_names
from deploy_kit.exit_codes import ExitCode
from deploy_kit.probe.candidates import Candidate, fault_candidate
from deploy_kit.probe.runner import ProbeRun, Record
from deploy_kit.probe.sampling import median_interval, ratio_interval

# `unfused` checks the harness itself: the operations that the lever replaces must pass their own acceptance.
_LEVERS = "lever fusion or sm120-fusion"
FUSIONS: tuple[Candidate, ...] = (
    Candidate("unfused", "unfused", point=None, use="what runs without the lever"),
    Candidate("flashinfer-auto", "flashinfer-auto", point=None, prepares=True, use=_LEVERS),
    Candidate("flashinfer-one-shot", "flashinfer-one-shot", point=None, prepares=True, use=_LEVERS),
    Candidate("flashinfer-two-shot", "flashinfer-two-shot", point=None, prepares=True, use=_LEVERS),
)


def named_fusions(names: Sequence[str], world_size: int) -> list[Candidate]:
    """Given the names of `--candidates` (none: all), return the candidates; an unknown name is an error."""
    known = {candidate.name: candidate for candidate in FUSIONS}
    found = []
    for name in names or list(known):
        fault = fault_candidate(name, world_size)
        if fault is not None:
            found.append(
                Candidate(name, "unfused", point=None, use=fault.use, deployable=False, fault=fault.fault)
            )
        elif name in known:
            found.append(known[name])
        else:
            raise DeployKitError(
                f"no such fusion candidate: {name}",
                key="--candidates",
                found=name,
                allowed=nearest_names(name, list(known)) or list(known),
                exit_code=ExitCode.UNKNOWN_NAME,
            )
    return found


def summarize_fusion(run: ProbeRun) -> dict[str, Any]:
    """Return each candidate's acceptance and latency. Accepted: every check passed on every rank, and all
    ranks hold the same bits. That says nothing about speed; the ratio beside it does."""
    candidates = {name: _entry(record, run) for name, record in run.records.items()}
    fused = [entry for name, entry in candidates.items() if name != "unfused"]
    if any(entry["acceptance"] == "reject" for entry in candidates.values()):
        verdict = "fail"
    elif any(entry["acceptance"] == "accept" for entry in fused):
        verdict = "ok"
    else:
        verdict = "unknown"
    return {"verdict": verdict, "candidates": candidates, "notes": list(run.notes), "seconds": run.seconds}


def _entry(record: Record, run: ProbeRun) -> dict[str, Any]:
    status = record.outcome.status
    if status == "ok":
        acceptance = "accept" if record.ranks_agree else "reject"
        cause = "" if record.ranks_agree else "ranks hold different bits for the same tokens"
    else:
        acceptance = "unknown" if status in ("unsupported", "not-run") else "reject"
        cause = record.outcome.text()
    entry: dict[str, Any] = {
        "acceptance": acceptance,
        "cause": cause,
        **record.outcome.as_dict(),
        "ranks_bit_identical": record.ranks_agree,
        **record.extra,
        "sizes": {},
    }
    entry["cause"] = cause or record.outcome.cause
    for tokens in run.settings.tokens:
        fused, unfused = record.rounds(tokens), record.rounds(tokens, "unfused")
        if fused and unfused:
            entry["sizes"][str(tokens)] = {
                "fused_us": median_interval(fused).as_dict(),
                "unfused_us": median_interval(unfused).as_dict(),
                "ratio_to_unfused": ratio_interval(fused, unfused).as_dict(),
            }
    return entry
