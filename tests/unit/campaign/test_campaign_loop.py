"""The campaign's order, outcomes and resumption, with stand-in engines."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from campaign_standins import StandinRunner, prepared_of, standin_bencher

from deploy_kit.campaign.describe import describe, describe_plan
from deploy_kit.campaign.model import CampaignState, LeverStep, ProbeResult
from deploy_kit.campaign.outlook import estimate
from deploy_kit.campaign.prepare import Prepared, new_state, prepare
from deploy_kit.campaign.run import run_campaign
from deploy_kit.campaign.store import RESERVE_FILE, StateFolder
from deploy_kit.campaign.window import Window, WindowOverError, parse_window
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import file_error
from deploy_kit.receipts import Receipt, read_receipts, write_receipt


def run(
    prepared: Prepared, folder: Path, runner: StandinRunner | None = None, **more: object
) -> CampaignState:
    state = StateFolder(folder)
    with state.locked():
        return run_campaign(
            prepared,
            state,
            runner or StandinRunner(),
            bencher=standin_bencher(),
            **more,  # type: ignore[arg-type]
        )


def test_levers_are_tried_one_at_a_time_in_turns_then_the_winners_together(tmp_path: Path) -> None:
    prepared = prepared_of(tmp_path, "faster", "same", "better")
    runner = StandinRunner()
    state = run(prepared, tmp_path / "state", runner)
    in_turns = [name for lever in ("faster", "same", "better") for _ in range(3) for name in ("base", lever)]
    assert runner.started == [*in_turns, *(["base", "faster+better"] * 3)]
    assert state.finished
    assert [result.verdict for result in state.levers] == ["helps", "no measurable effect", "helps"]
    assert state.winners == ["faster", "better"]
    assert state.combined is not None
    assert state.combined.levers == ["faster", "better"]
    effect = state.combined.effect("tokens_per_second")
    assert effect is not None
    assert effect.ratio == pytest.approx(1.43, rel=0.02)
    assert effect.interval is not None
    assert effect.interval[0] < effect.ratio < effect.interval[1]
    assert "faster + better together" in state.conclusion
    assert len(read_receipts(tmp_path / "state" / "receipts")) == len(state.cells) == 24
    assert "no measurable effect" in describe(state)
    assert "STAND-IN" in describe(state)


@pytest.mark.parametrize("name", ["inert-kernel", "fades-under-load"])
def test_a_lever_that_the_engine_leaves_off_is_never_measured_under_its_name(
    tmp_path: Path, name: str
) -> None:
    prepared = prepared_of(tmp_path, name, "faster")
    runner = StandinRunner()
    state = run(prepared, tmp_path / "state", runner)
    inert, faster = state.levers
    assert (inert.outcome, inert.cause_id, inert.verdict) == ("failed", "lever-off", "unknown")
    assert f"leaves lever {name} off" in (inert.cause or "")
    cell = state.cell(f"{name}/lever/0")
    assert cell is not None
    assert cell.measures == []
    assert cell.evidence == [f"{name} is disabled here"]
    assert runner.started.count(name) == 1, "it is not loaded again"
    assert faster.verdict == "helps"


def test_a_lever_that_crashes_is_recorded_with_its_cause_and_the_campaign_goes_on(tmp_path: Path) -> None:
    prepared = prepared_of(tmp_path, "crash-oom", "faster")
    runner = StandinRunner()
    state = run(prepared, tmp_path / "state", runner)
    crashed, faster = state.levers
    assert crashed.outcome == "failed"
    assert (crashed.cause, crashed.cause_id, crashed.remedy) == ("killed: out of memory", "oom", "less of it")
    cell = state.cell("crash-oom/lever/0")
    assert cell is not None
    assert cell.outcome == "failed"
    assert cell.exit_code == 40
    assert cell.evidence == ["torch.OutOfMemoryError"]
    assert runner.started.count("crash-oom") == 1, "it is not loaded again"
    assert faster.verdict == "helps"
    assert state.combined is None
    assert "use faster" in state.conclusion
    assert "killed: out of memory" in describe(state)


def test_a_lever_that_fails_its_probe_is_never_loaded(tmp_path: Path) -> None:
    prepared = prepared_of(tmp_path, "faster", "same")
    steps = [
        step.model_copy(update={"probe": "allreduce", "candidate": f"c-{step.name}"})
        for step in prepared.campaign.lever
    ]
    campaign = prepared.campaign.model_copy(update={"lever": steps})
    prepared = Prepared(
        campaign, prepared.catalog, prepared.host, prepared.base, prepared.plans, prepared.campaign_id
    )
    asked = []

    def probe(step: LeverStep, receipts: Path) -> ProbeResult:
        del receipts
        asked.append(step.candidate)
        passed = False if step.name == "faster" else None
        return ProbeResult(probe="allreduce", candidate=step.candidate, passed=passed, cause="hang: rank 1")

    runner = StandinRunner()
    state = run(prepared, tmp_path / "state", runner, prober=probe)
    assert asked == ["c-faster", "c-same"], "every probe before the first load"
    assert "faster" not in runner.started
    assert state.levers[0].outcome == "refused-by-probe"
    assert state.levers[0].cause == "hang: rank 1"
    assert state.levers[1].outcome == "done", "a probe that cannot find out refuses nothing"


def test_a_lever_whose_plan_is_refused_is_never_loaded(tmp_path: Path) -> None:
    prepared = prepared_of(tmp_path, "same")
    campaign = prepared.campaign.model_copy(
        update={"lever": [LeverStep(name="pcie-ipc"), *prepared.campaign.lever]}
    )
    prepared = prepare(campaign, prepared.catalog, host="rehearsal", address="127.0.0.1", port=30000)
    runner = StandinRunner()
    state = run(prepared, tmp_path / "state", runner)
    assert state.levers[0].outcome == "refused-by-probe"
    assert "pcie-ipc" in (state.levers[0].cause or "")
    assert set(runner.started) == {"base", "same"}
    assert "never loaded" in describe_plan(new_state(prepared, runner), estimate(state))


def test_winners_that_exclude_each_other_are_not_combined(tmp_path: Path) -> None:
    prepared = prepared_of(tmp_path, "faster", "better", excludes={"better": "faster"})
    state = run(prepared, tmp_path / "state")
    assert state.winners == ["faster", "better"]
    assert state.combined is None
    assert "use faster" in state.conclusion


def test_a_gain_bought_with_accept_length_is_not_accepted(tmp_path: Path) -> None:
    state = run(prepared_of(tmp_path, "wrong"), tmp_path / "state")
    (wrong,) = state.levers
    assert wrong.verdict == "not accepted"
    assert "accept length fell from 2.75 to 0.8" in wrong.reason
    assert state.winners == []


def test_one_pair_is_no_verdict(tmp_path: Path) -> None:
    (lever,) = run(prepared_of(tmp_path, "faster", repeats=1), tmp_path / "state").levers
    assert (lever.outcome, lever.verdict) == ("done", "unknown")
    assert "spread is unknown" in lever.reason


def test_it_goes_on_where_it_was_cut_off_and_repeats_nothing(tmp_path: Path) -> None:
    prepared = prepared_of(tmp_path, "faster", "same")
    folder = tmp_path / "state"
    starts = 0

    def cut(plan: object) -> None:
        nonlocal starts
        del plan
        starts += 1
        if starts in (3, 7):
            raise KeyboardInterrupt

    runner = StandinRunner(before=cut)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(prepared, folder, runner)
    state = run(prepared, folder, runner)
    assert state.finished
    assert state.resumed == 2
    assert len(state.cells) == len({cell.key for cell in state.cells}) == 12
    assert len(runner.started) == 12, "twelve cells were measured, each once"
    again = run(prepared, folder, runner)
    assert again == state, "a finished campaign is only shown"


def test_a_receipt_whose_state_was_not_written_is_found_again(tmp_path: Path) -> None:
    prepared = prepared_of(tmp_path, "faster")
    folder = tmp_path / "state"
    whole = run(prepared, folder)
    kept = StateFolder(folder)
    # As if killed between the receipt and the state of the last two cells.
    kept.write(
        whole.model_copy(
            update={
                "cells": whole.cells[:-2],
                "finished": False,
                "levers": new_state(prepared, StandinRunner()).levers,
            }
        )
    )
    runner = StandinRunner()
    state = run(prepared, folder, runner)
    assert runner.started == []
    assert [cell.receipt_id for cell in state.cells] == [cell.receipt_id for cell in whole.cells]
    assert state.levers[0].verdict == "helps"


def test_a_base_that_fails_twice_stops_it_and_once_does_not(tmp_path: Path) -> None:
    prepared = prepared_of(tmp_path, "faster")
    with pytest.raises(DeployKitError, match="a rank was lost"):
        run(prepared, tmp_path / "state", StandinRunner(base_fails=2))
    state = run(prepared, tmp_path / "state", StandinRunner(base_fails=1))
    assert state.finished
    assert state.cells[0].attempts == 2


def test_a_full_disk_keeps_the_cell_and_stops_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up while a cell is measured: room was set aside, so its receipt and state are kept."""
    prepared = prepared_of(tmp_path, "faster")
    folder = tmp_path / "state"
    full = False
    no_space = OSError(errno.ENOSPC, "No space left on device")

    def write(where: Path, receipt: Receipt) -> Path:
        if full and (folder / RESERVE_FILE).exists():
            raise file_error("cannot write", Path(where), no_space)
        return write_receipt(where, receipt)

    def reserve(self: StateFolder) -> None:
        if full:
            raise file_error("cannot set room aside in", self.folder, no_space)
        (self.folder / RESERVE_FILE).write_bytes(b"-")

    def fill(plan: object) -> None:
        nonlocal full
        del plan
        full = len(list((folder / "receipts").glob("*.json"))) == 2

    monkeypatch.setattr("deploy_kit.campaign.run.write_receipt", write)
    monkeypatch.setattr(StateFolder, "reserve", reserve)
    runner = StandinRunner(before=fill)
    with pytest.raises(DeployKitError) as caught:
        run(prepared, folder, runner)
    assert caught.value.exit_code == ExitCode.DISK_FULL
    kept = StateFolder(folder).read()
    assert kept is not None
    assert [cell.key for cell in kept.cells] == ["faster/base/0", "faster/lever/0", "faster/base/1"]
    full = False
    runner.before = lambda plan: None
    state = run(prepared, folder, runner)
    assert state.finished
    assert len(runner.started) == 6


def test_another_campaign_in_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    run(prepared_of(tmp_path, "faster"), folder)
    with pytest.raises(DeployKitError, match="with other settings") as caught:
        run(prepared_of(tmp_path, "faster", repeats=4), folder)
    assert caught.value.exit_code == ExitCode.INPUT


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    one, two = StateFolder(tmp_path / "state"), StateFolder(tmp_path / "state")
    with one.locked(), pytest.raises(DeployKitError, match="another campaign runs"), two.locked():
        pass


def test_a_damaged_state_is_refused_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    run(prepared_of(tmp_path, "faster"), folder)
    file = folder / "campaign.json"
    damaged = file.read_text()[:400]
    file.write_text(damaged)
    with pytest.raises(DeployKitError, match="not a campaign's state"):
        run(prepared_of(tmp_path, "faster"), folder)
    assert file.read_text() == damaged


def test_the_time_is_estimated_from_its_own_cells_once_there_are_some(tmp_path: Path) -> None:
    given = prepared_of(tmp_path, "faster", "same", expected_start_seconds=1200, expected_bench_seconds=60)
    before = estimate(new_state(given, StandinRunner()))
    assert before.cells == 2 * 6 + 6
    assert before.seconds == before.cells * 1260
    unknown = estimate(new_state(prepared_of(tmp_path, "faster"), StandinRunner()))
    assert unknown.seconds is None
    assert "expected_start_seconds" in unknown.why
    over = estimate(run(given, tmp_path / "state"))
    assert over.cells == 0


def test_a_window_ends_between_cells_and_the_next_goes_on(tmp_path: Path) -> None:
    prepared = prepared_of(tmp_path, "faster", "same", repeats=2)
    # The stand-in's cells say that a start takes 10 s, so none more fits into 9.
    first = run(prepared, tmp_path / "state", window_seconds=9)
    assert not first.finished
    assert [cell.key for cell in first.cells] == ["faster/base/0"]  # nothing was known before it
    assert first.running is None
    assert not (tmp_path / "state" / RESERVE_FILE).exists()
    assert "not finished: at most 11 cells left, about 110 s" in describe(first)
    # A whole night is enough for the rest, and the cell measured before is not measured again.
    runner = StandinRunner()
    second = run(prepared, tmp_path / "state", runner, window_seconds=8 * 3600)
    assert second.finished
    assert second.resumed == 1
    assert len(runner.started) == len(second.cells) - 1


def test_a_window_that_is_over_starts_nothing(tmp_path: Path) -> None:
    runner = StandinRunner()
    prepared = prepared_of(tmp_path, "faster", expected_start_seconds=1200, expected_bench_seconds=60)
    state = run(prepared, tmp_path / "state", runner, window_seconds=1200)
    assert not state.cells
    assert not runner.started


def test_a_cell_that_took_longer_than_it_says_counts_as_it_took() -> None:
    window = Window(5)
    window.refuse_unless_it_fits(1)
    window.cell_took(6)
    with pytest.raises(WindowOverError):
        window.refuse_unless_it_fits(1)
    Window(None).refuse_unless_it_fits(1e9)


@pytest.mark.parametrize(
    ("text", "seconds"), [("8h", 28800), ("90m", 5400), ("1h30m", 5400), (" 9m 30s ", 570), ("540s", 540)]
)
def test_a_length_of_time_is_read(text: str, seconds: int) -> None:
    assert parse_window(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0s", "8", "h", "-1h", "1.5h", "30m1h", "8 hours", "\u0668h", "9" * 30 + "s"]
)
def test_another_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(DeployKitError) as caught:
        parse_window(text)
    assert caught.value.exit_code == ExitCode.USAGE
    assert "8h" in str(caught.value.allowed)
