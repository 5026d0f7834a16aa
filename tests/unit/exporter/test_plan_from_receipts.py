"""Receipts that come while the engine serves: used without a restart; damaged ones never are."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deploy_kit.bench.counters import engine_cell, read_counters
from deploy_kit.exporter.facts import PlanFacts
from deploy_kit.exporter.receipts import PlanFromReceipts, verify_p95_from_receipts
from deploy_kit.receipts import Host, Receipt, new_receipt, write_receipt

PLAN = PlanFacts("plan-e", "eagle3", "current", "kimi-k2.5", "box", False, True)


def receipt(profile: str, plan_id: str, cells: list[dict[str, Any]], **changes: Any) -> Receipt:
    made: dict[str, Any] = {"day": 1, "rehearsal": False, "kind": "bench"} | changes
    whole = [
        {
            "load": "closed", "context_band": "0-2k", "round": number, "requests": 4, "errors": 0,
            "retries": 0, "interval_seconds": 10.0, "output_tokens": 1000, "tokens_per_second": 100.0,
        } | cell
        for number, cell in enumerate(cells)
    ]  # fmt: skip
    return new_receipt(
        kind=made["kind"],
        host=Host(name="box"),
        rehearsal=made["rehearsal"],
        plan_id=plan_id,
        versions={"sglang": "0.5.23"},
        subject={
            "profile": profile, "model": "served-name", "interface": "openai",
            "workload": {"name": "w", "sha256": "0" * 64, "output_tokens": 256, "temperature": 0.0,
                         "ignore_eos": True, "seed": 1},
        },
        samples=[{"cell": 0}],
        summary={"cells": whole},
        created_at=datetime(2026, 11, made["day"], tzinfo=UTC),
    )  # fmt: skip


BASELINE = receipt("baseline", "plan-b", [{"concurrency": 1, "stream_tokens_per_second": 80.0}])


def p95(seconds: float, concurrency: int = 1, **more: Any) -> dict[str, Any]:
    return {"concurrency": concurrency, "engine": {"verify_p95_seconds": seconds}, **more}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def facts(folder: Path | None, clock: Clock) -> PlanFromReceipts:
    return PlanFromReceipts(
        PLAN, folder, served_model_name="served-name", sglang_version="0.5.23", clock=clock
    )


def test_a_receipt_that_comes_later_is_used_without_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    plan = facts(tmp_path / "not-yet", clock)
    assert plan().baseline_source == "unknown"
    write_receipt(tmp_path / "not-yet", BASELINE)
    assert plan().baseline_step_seconds == {}  # the folder is not looked at for each scrape
    clock.now = 6.0
    assert plan().baseline_step_seconds == {1: pytest.approx(1 / 80)}
    assert plan().baseline_source == "receipt"
    assert plan().verify_p95_seconds is None
    write_receipt(tmp_path / "not-yet", receipt("eagle3", "plan-e", [p95(0.02)]))
    clock.now = 12.0
    assert plan().verify_p95_seconds == 0.02


def test_a_removed_receipt_is_forgotten(tmp_path: Path) -> None:
    clock = Clock()
    plan = facts(tmp_path, clock)
    path = write_receipt(tmp_path, BASELINE)
    assert plan().baseline_source == "receipt"
    path.unlink()
    clock.now = 6.0
    assert plan().baseline_source == "unknown"


def test_damaged_files_are_left_out_and_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    write_receipt(tmp_path, BASELINE)
    (tmp_path / "bench-cut.json").write_text('{"schema_version": 1, "kind": "ben')
    plan = facts(tmp_path, clock)
    for clock.now in (0.0, 6.0, 12.0):
        assert plan().baseline_source == "receipt"
    assert capsys.readouterr().err.count("left out") == 1


def test_without_a_folder_nothing_is_known() -> None:
    assert facts(None, Clock())() == PLAN


def test_verify_p95_is_the_slowest_load_of_the_newest_receipt_of_this_plan() -> None:
    old = receipt("eagle3", "plan-e", [p95(0.5)], day=1)
    new = receipt(
        "eagle3", "plan-e", [p95(0.010), p95(0.012), p95(0.011), p95(0.030, 8), p95(0.9, 16, errors=1)], day=2
    )
    other = receipt("eagle3", "another-plan", [p95(0.7)], day=3)
    rehearsed = receipt("eagle3", "plan-e", [p95(0.8)], day=4, rehearsal=True)
    for order in ([old, new, other, rehearsed], [rehearsed, other, new, old]):
        assert verify_p95_from_receipts(order, plan_id="plan-e", rehearsal=False) == 0.030
    assert verify_p95_from_receipts([new], plan_id="plan-x", rehearsal=False) is None
    without = receipt("eagle3", "plan-e", [{"concurrency": 1}])
    assert verify_p95_from_receipts([without], plan_id="plan-e", rehearsal=False) is None


def page(fast: int, slow: int) -> str:
    name, labels = "deploy_kit_forward_seconds", 'model_name="m",tp_rank="0",phase="verify"'
    return (
        f'sglang:num_running_reqs{{model_name="m",tp_rank="0"}} 1\n'
        f'{name}_bucket{{{labels},le="0.01"}} {fast}\n'
        f'{name}_bucket{{{labels},le="0.02"}} {fast + slow}\n'
        f'{name}_bucket{{{labels},le="+Inf"}} {fast + slow}\n'
        f"{name}_count{{{labels}}} {fast + slow}\n"
        f"{name}_sum{{{labels}}} {fast * 0.005 + slow * 0.015}\n"
    )


def test_bench_takes_the_p95_of_its_own_interval_only() -> None:
    # 1000 slow verifies before the cell must not count: within it 90 were fast and 10 slow.
    growth = read_counters(page(90, 1010)).since(read_counters(page(0, 1000)))
    cell = engine_cell(growth, requests=1, output_tokens=100)
    assert cell.verify_p95_seconds == pytest.approx(0.015)
    assert cell.verify_seconds == pytest.approx((90 * 0.005 + 10 * 0.015) / 100)


def test_bench_says_nothing_of_verifies_that_were_not() -> None:
    growth = read_counters(page(90, 10)).since(read_counters(page(90, 10)))
    assert engine_cell(growth, requests=1, output_tokens=100).verify_p95_seconds is None
