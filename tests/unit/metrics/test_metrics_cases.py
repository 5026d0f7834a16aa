"""The recorded cases: verdict, decisive words, and what must never be said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy_kit.metrics.explain import explain

CASES = sorted((Path(__file__).parents[2] / "cases").glob("metrics-*.yaml"))


def load(name: str) -> dict[str, Any]:
    path = next(path for path in CASES if path.stem.startswith(name))
    case: dict[str, Any] = yaml.safe_load(path.read_text())
    return case


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_verdict(path: Path) -> None:
    case = yaml.safe_load(path.read_text())
    assert explain(case["input"]).verdict == case["expect"]["verdict"]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_facts_of_one_engine(path: Path) -> None:
    case = yaml.safe_load(path.read_text())
    found = explain(case["input"]).facts
    for name, value in case["expect"].get("facts", {}).items():
        assert found[name] == value, name


def test_old_server_needs_no_new_labels() -> None:
    answer = explain(load("metrics-01")["input"])
    assert "tokens only" in answer.cause
    assert "tp_rank" not in str(answer.as_dict())


def test_one_rank_is_not_seven_missing() -> None:
    answer = explain(load("metrics-03")["input"])
    assert answer.cause.startswith("single reporting rank")
    assert not answer.notes


def test_timer_off_is_no_time_and_no_zero() -> None:
    answer = explain(load("metrics-05")["input"])
    assert "device timer off" in answer.cause
    assert "SGLANG_ENABLE_METRICS_DEVICE_TIMER=1" in (answer.remedy or "")
    for section in answer.sections:
        assert "verify_seconds" in section.absent
        assert "forward_seconds_total" not in section.facts


def test_ranks_are_not_summed() -> None:
    answer = explain(load("metrics-07")["input"])
    text = str(answer.as_dict())
    assert "40" not in str(answer.facts["running"])
    assert "3219" not in text
    assert "of 8 tensor-parallel ranks only tp_rank 0 is read" in answer.cause
    assert "taken" not in answer.cause


def test_priority_parts_are_not_added_to_their_total() -> None:
    assert explain(load("metrics-09")["input"]).facts["queued"] == 6


def test_rates_are_not_compared_across_definitions() -> None:
    answer = explain(load("metrics-11")["input"])
    assert "LENGTH" in answer.cause
    lengths = [section.facts["accept_length"] for section in answer.sections]
    assert lengths == [2.17, 2.20, 1.67]
