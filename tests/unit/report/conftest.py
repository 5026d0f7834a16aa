"""Receipts and a campaign's state made up for reports: numbers of no machine, and named so."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deploy_kit.campaign.model import CampaignState
from deploy_kit.receipts import Host, Receipt, new_receipt, write_receipt

MakeBench = Callable[..., Receipt]


def _bench(
    profile: str,
    speeds: dict[int, list[float]] | None = None,
    *,
    accept_length: float | None = None,
    cycle_seconds: float | None = None,
    draft_seconds: float | None = 0.004,
    verify_seconds: float | None = 0.011,
    host: str = "made-up-box",
    model: str = "kimi-k2.5",
    rehearsal: bool = False,
    stand_in: str | None = None,
    versions: dict[str, str] | None = None,
    levers: tuple[str, ...] = (),
    arguments: tuple[str, ...] = ("bench", "http://127.0.0.1:30000", "--profile", "it's"),
    facts: dict[str, Any] | None = None,
) -> Receipt:
    speculates = profile != "baseline"
    cells = [
        {
            "load": "closed",
            "concurrency": concurrency,
            "context_band": "0-2k",
            "round": number,
            "requests": 8,
            "errors": 0,
            "retries": 0,
            "interval_seconds": 10.0,
            "output_tokens": int(speed * 10),
            "tokens_per_second": speed,
            "stream_tokens_per_second": speed / concurrency,
            "cycle_seconds": cycle_seconds,
            "engine": {
                "accept_length": accept_length,
                "verify_seconds": verify_seconds if speculates else None,
                "draft_seconds": draft_seconds if speculates else None,
            },
        }
        for concurrency, rounds in (speeds or {1: [82.0, 82.5]}).items()
        for number, speed in enumerate(rounds)
    ]
    return new_receipt(
        kind="bench",
        host=Host(name=host, facts=facts or {"gpus": 8}),
        rehearsal=rehearsal,
        plan_id=f"plan-{profile}",
        versions=versions or {"stack": "current", "sglang": "0.5.23"},
        subject={
            "profile": profile,
            "levers": list(levers),
            "model": model,
            "interface": "openai",
            "workload": {
                "name": "prose-and-code",
                "sha256": "a" * 64,
                "output_tokens": 256,
                "temperature": 0.0,
                "ignore_eos": True,
                "seed": 1,
            },
            "arguments": list(arguments),
            "stand_in": stand_in,
        },
        samples=[],
        summary={"cells": cells},
        created_at=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
    )


@pytest.fixture
def make_bench() -> MakeBench:
    """Return a function that makes a bench receipt."""
    return _bench


@pytest.fixture
def story(tmp_path: Path) -> Path:
    """Return a folder of receipts in which EAGLE-3 pays at one stream and not at 32."""
    folder = tmp_path / "receipts"
    for receipt in (
        _bench("baseline", {1: [82.0, 82.4, 81.8], 32: [900.0, 905.0, 910.0]}),
        _bench(
            "eagle3",
            {1: [133.0, 132.0, 134.0], 32: [700.0, 690.0, 710.0]},
            accept_length=2.0,
            cycle_seconds=0.015,
        ),
        _bench("ngram", {1: [82.5, 81.9, 82.1]}, accept_length=1.6, cycle_seconds=0.0195, draft_seconds=None),
    ):
        write_receipt(folder, receipt)
    return folder


def _result(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "levers": [name], "outcome": "done", **more}


def _effect(ratio: float, low: float, high: float) -> dict[str, Any]:
    return {
        "metric": "tokens_per_second",
        "concurrency": None,
        "ratio": ratio,
        "interval": (low, high),
        "pairs": 3,
        "pair_ratios": [ratio] * 3,
        "base_mean": 60.0,
        "lever_mean": 60.0 * ratio,
    }


def _cell(step: str, side: str, levers: list[str], cycle: float, verify: float) -> dict[str, Any]:
    return {
        "key": f"{step}/{side}/0",
        "step": step,
        "side": side,
        "repeat": 0,
        "plan_id": f"plan-{side}-{step}",
        "levers": levers,
        "outcome": "measured",
        "ended_at": "2026-01-02T03:04:05Z",
        "measures": [
            {
                "concurrency": 1,
                "tokens_per_second": 2.0 / cycle,
                "cycle_seconds": cycle,
                "verify_seconds": verify,
                "draft_seconds": 0.004,
                "accept_length": 2.0,
            }
        ],
    }


def campaign_content() -> dict[str, Any]:
    """Return a campaign's state in which one lever helps, one does nothing, one hurts, one crashes, one is
    refused by its probe and one is not accepted."""
    names = ["pcie-ipc", "numa-binding", "expert-parallel", "nccl-tree", "sm120-fusion", "verify-graph"]
    return {
        "campaign": {
            "name": "fast-verify",
            "description": "made up",
            "question": "Which levers make a verify shorter?",
            "base": {"profile": "eagle3", "host": "made-up-box"},
            "lever": [{"name": name} for name in names],
        },
        "campaign_id": "abc123",
        "rehearsal": False,
        "host": "made-up-box",
        "model": "kimi-k2.5",
        "stack": "current",
        "base_plan_id": "plan-base",
        "versions": {"stack": "current", "sglang": "0.5.23"},
        "runner": "serve",
        "created_at": "2026-01-02T03:00:00Z",
        "updated_at": "2026-01-02T05:00:00Z",
        "finished": True,
        "cells": [
            _cell("pcie-ipc", "base", [], 0.030, 0.025),
            _cell("pcie-ipc", "lever", ["pcie-ipc"], 0.020, 0.015),
        ],
        "levers": [
            _result("pcie-ipc", verdict="helps", effects=[_effect(1.31, 1.25, 1.37)], claimed="15 ms"),
            _result(
                "numa-binding",
                verdict="no measurable effect",
                effects=[_effect(1.004, 0.99, 1.018)],
                reason="less",
            ),
            _result("expert-parallel", verdict="hurts", effects=[_effect(0.8, 0.7, 0.9)]),
            _result(
                "nccl-tree",
                outcome="failed",
                cause="hangs at graph capture",
                remedy="do not set NCCL_ALGO alone",
            ),
            _result("sm120-fusion", outcome="refused-by-probe", cause="wrong values on rank 3"),
            _result(
                "verify-graph",
                verdict="not accepted",
                effects=[_effect(1.1, 1.05, 1.15)],
                reason="accept length fell",
            ),
        ],
        "winners": ["pcie-ipc"],
        "conclusion": "pcie-ipc helps.",
    }


@pytest.fixture
def campaign_file(tmp_path: Path) -> Path:
    """Return the folder of a made-up campaign's state."""
    folder = tmp_path / "state"
    folder.mkdir()
    content = campaign_content()
    CampaignState.model_validate_json(json.dumps(content))
    (folder / "campaign.json").write_text(json.dumps(content))
    return folder
