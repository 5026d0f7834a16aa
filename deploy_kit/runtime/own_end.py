"""The explanation of an end that we bring about ourselves, judged before the engine is touched."""

from __future__ import annotations

from dataclasses import replace

from deploy_kit.exit_codes import ExitCode
from deploy_kit.startup.causes import CAUSES
from deploy_kit.startup.run import Explanation


def without_telemetry(found: Explanation, reason: str) -> Explanation:
    """Given the watcher's answer of an engine that is up, return that of one without its telemetry."""
    return replace(
        found,
        verdict="crashed",
        cause=reason,
        cause_id="telemetry",
        remedy="correct it, or serve without it: --allow-missing-telemetry",
        exit_code=int(ExitCode.ENGINE_TELEMETRY),
    )


def hung(found: Explanation, reason: str, *, phase: str, checks: tuple[str, ...]) -> Explanation:
    """Given the watcher's answer and what was checked, return it for an engine that is ended for stalling."""
    remarks = (*found.remarks, reason)
    if found.verdict == "hung":
        return replace(found, evidence=(*checks, *found.evidence), remarks=remarks)
    return replace(
        found,
        verdict="hung",
        cause=f"nothing advanced in phase {phase}",
        cause_id="stalled",
        remedy=CAUSES["stalled"].remedy,
        evidence=checks,
        remarks=remarks,
        exit_code=int(ExitCode.ENGINE_HUNG),
    )
