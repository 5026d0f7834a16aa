"""Which receipts give the baseline, and which must not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from deploy_kit.exporter.baseline import baseline_from_receipts
from deploy_kit.receipts import Host, Receipt, new_receipt


def receipt(**changes: Any) -> Receipt:
    speeds = changes.pop("speeds", {1: (80.0, 82.0, 84.0)})
    made: dict[str, Any] = {
        "host": "box", "rehearsal": False, "profile": "baseline", "model": "kimi-k2.5", "levers": [],
        "version": "0.5.23", "day": 1,
    } | changes  # fmt: skip
    cells = [
        {
            "load": "closed", "concurrency": concurrency, "context_band": "0-2k", "round": number,
            "requests": 4, "errors": 0, "retries": 0, "interval_seconds": 10.0, "output_tokens": 1000,
            "tokens_per_second": speed * concurrency, "stream_tokens_per_second": speed,
        }
        for concurrency, rounds in speeds.items()
        for number, speed in enumerate(rounds)
    ]  # fmt: skip
    return new_receipt(
        kind="bench",
        host=Host(name=made["host"]),
        rehearsal=made["rehearsal"],
        versions={"sglang": made["version"]},
        subject={
            "profile": made["profile"], "levers": made["levers"], "model": made["model"],
            "interface": "openai",
            "workload": {"name": "w", "sha256": "0" * 64, "output_tokens": 256, "temperature": 0.0,
                         "ignore_eos": True, "seed": 1},
        },
        samples=[],
        summary={"cells": cells},
        created_at=datetime(2026, 11, made["day"], tzinfo=UTC),
    )  # fmt: skip


def find(*receipts: Receipt, **changes: Any) -> Any:
    asked: dict[str, Any] = {
        "host": "box",
        "model": "kimi-k2.5",
        "rehearsal": False,
        "sglang_version": "0.5.23",
    } | changes
    return baseline_from_receipts(receipts, **asked)


def test_the_median_round_is_the_step() -> None:
    assert find(receipt(speeds={1: (80.0, 82.0, 84.0), 8: (50.0,)})).step_seconds == {
        1: pytest.approx(1 / 82),
        8: pytest.approx(1 / 50),
    }


def test_the_newest_receipt_wins() -> None:
    old, new = receipt(day=1, speeds={1: (50.0,)}), receipt(day=2, speeds={1: (82.0,)})
    for order in ((old, new), (new, old)):
        assert find(*order).step_seconds[1] == pytest.approx(1 / 82)


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "other"},
        {"model": "another"},
        {"rehearsal": True},
        {"levers": ["pcie-ipc"]},
        {"version": "0.5.17"},
        {"profile": "eagle3"},
    ],
)
def test_another_thing_measured_is_no_baseline(changes: dict[str, Any]) -> None:
    found = find(receipt(**changes))
    assert found.step_seconds == {}
    assert found.reason


def test_no_receipts() -> None:
    assert find().reason == "no receipt of the baseline on this host"
