"""Campaigns: one lever at a time against one base plan, in turns, until it is known which helps.

A campaign file (`Campaign`) says what to try. Everything found out is in one state file (`CampaignState`),
which is also the result that reports read. Imports measurement and decision; imported by the command line
and by reports.
"""

from deploy_kit.campaign.model import (
    STATE_FILE,
    Campaign,
    CampaignState,
    Cell,
    Effect,
    LeverResult,
    Measure,
    ProbeResult,
)
from deploy_kit.campaign.store import read_campaign, read_campaign_state

__all__ = [
    "STATE_FILE",
    "Campaign",
    "CampaignState",
    "Cell",
    "Effect",
    "LeverResult",
    "Measure",
    "ProbeResult",
    "read_campaign",
    "read_campaign_state",
]
