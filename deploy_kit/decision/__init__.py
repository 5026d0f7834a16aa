"""Deciding from receipts which profile to run. Imports measurement, is imported by nothing below it."""

from deploy_kit.decision.choose import Decision, EvidenceRules, decide
from deploy_kit.decision.evidence import Band, Method, gather
from deploy_kit.decision.from_receipts import choose_profile, load_receipts

__all__ = [
    "Band",
    "Decision",
    "EvidenceRules",
    "Method",
    "choose_profile",
    "decide",
    "gather",
    "load_receipts",
]
