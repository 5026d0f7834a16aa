"""The sum against real measurements: every round of h200*-break-even.json and h200x2-paths.json.

They are of one H200, and of two without peer access, and the real SGLang, with accept lengths set by
SGLANG_SIMULATE_ACC_LEN.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy_kit.decision.choose import Comparison, EvidenceRules, compare
from deploy_kit.decision.evidence import Band, Cell, Method, Observation, stream_cycle
from deploy_kit.receipts import read_receipt
from deploy_kit.receipts.bench import CellRound

RECEIPTS = Path(__file__).parents[3] / "docs" / "receipts"
FILES = ("h200-break-even.json", "h200x2-break-even.json", "h200x2-paths.json")


def rounds() -> list[CellRound]:
    found = [
        CellRound.model_validate(sample) for name in FILES for sample in read_receipt(RECEIPTS / name).samples
    ]
    assert len(found) > 130
    return found


def compared(cell: CellRound, **changes: Any) -> Comparison:
    observation = Observation(
        method=Method("eagle3"),
        band=Band(cell.concurrency or 1),
        tokens_per_second=cell.tokens_per_second,
        stream_tokens_per_second=cell.stream_tokens_per_second,
        accept_length=cell.engine.accept_length,
        cycle_seconds=stream_cycle(cell),
        engine_cycle_seconds=cell.engine.step_seconds,
        prefill_ratio=(cell.engine.prefill_seconds_total or 0.0) / cell.interval_seconds,
    )
    return compare(Cell(observation.method, observation.band, (observation,)), None, EvidenceRules(**changes))


SPECULATING = [cell for cell in rounds() if cell.engine.accept_length is not None]


@pytest.mark.parametrize("load", [1, 8, 32])
def test_accept_length_over_a_streams_cycle_is_its_measured_speed(load: int) -> None:
    cells = [cell for cell in SPECULATING if cell.concurrency == load]
    assert len(cells) >= 20
    for cell in cells:
        comparison = compared(cell)
        assert comparison.predicted_tokens_per_second == pytest.approx(
            cell.stream_tokens_per_second, rel=0.05
        )
        assert comparison.inconsistency is None


def test_the_engines_mean_cycle_alone_overstates_full_batches_and_that_is_said() -> None:
    cells = [cell for cell in SPECULATING if cell.concurrency == 32 and (cell.engine.accept_length or 9) < 4]
    for cell in cells:
        assert cell.engine.accept_length is not None
        assert cell.engine.step_seconds is not None
        assert cell.stream_tokens_per_second is not None
        alone = cell.engine.accept_length / cell.engine.step_seconds
        assert alone / cell.stream_tokens_per_second > 1.10
        waiting = compared(cell).waiting
        assert waiting is not None
        assert "fuller batches" in waiting
    assert all(compared(cell).waiting is None for cell in SPECULATING if cell.concurrency == 1)


def test_merged_events_fall_back_to_the_engines_cycle() -> None:
    cell = SPECULATING[0].model_copy(update={"client_accept_length": 9.0})
    assert stream_cycle(cell) == cell.cycle_seconds


@pytest.mark.parametrize(("prefill", "flagged"), [(0.12, False), (0.04, True), (None, True)])
def test_a_gap_that_prefills_explain_is_no_inconsistency(prefill: float | None, flagged: bool) -> None:
    observation = Observation(
        method=Method("eagle3"),
        band=Band(32),
        tokens_per_second=2900.0,
        stream_tokens_per_second=90.0,  # x 20 ms = 1.8 of 2.0: a tenth is missing
        accept_length=2.0,
        cycle_seconds=0.020,
        prefill_ratio=prefill,
    )
    cell = Cell(observation.method, observation.band, (observation,))
    assert (compare(cell, None, EvidenceRules()).inconsistency is not None) is flagged


def test_prefills_explain_no_gap_in_the_other_direction() -> None:
    observation = Observation(
        method=Method("eagle3"),
        band=Band(32),
        tokens_per_second=2900.0,
        stream_tokens_per_second=110.0,
        accept_length=2.0,
        cycle_seconds=0.020,
        prefill_ratio=0.12,
    )
    cell = Cell(observation.method, observation.band, (observation,))
    assert compare(cell, None, EvidenceRules()).inconsistency is not None
