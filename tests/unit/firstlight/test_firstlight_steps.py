"""The steps: their order, what is skipped and why, and a runner that never repeats and never gives up."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deploy_kit.cli.app import COMMANDS
from deploy_kit.errors import DeployKitError
from deploy_kit.firstlight.run import Runner, duration
from deploy_kit.firstlight.settings import STATE_FILE, Settings, Situation, State, StepState
from deploy_kit.firstlight.situation import refuse_foreign_engines
from deploy_kit.firstlight.steps import NO_GPU, Step, bench_seconds, steps_of
from deploy_kit.receipts import Host, new_receipt, write_receipt

BOX = Situation(gpus=8, host="rtx-pro-6000-x8", model="kimi-k2.5", torch=False, image="engine:1")
LAPTOP = Situation(gpus=0, host="rehearsal", model="rehearsal-tiny", torch=True)


def names(settings: Settings, situation: Situation) -> list[str]:
    return [step.name for step in steps_of(settings, situation, Path("w"))]


def test_the_order_is_cheap_things_first_then_baseline_then_speculation() -> None:
    engine = ["plan", "up", "bench", "log", "explain", "down"]
    assert names(Settings(), BOX) == [
        "doctor",
        "probe-allreduce",
        "probe-fusion",
        *(f"{step}-baseline-1" for step in engine),
        *(f"{step}-eagle3-1" for step in engine),
        "decide",
        "report",
    ]


def test_starts_are_taken_in_turns() -> None:
    found = [name for name in names(Settings(starts=2), BOX) if name.startswith("bench")]
    assert found == ["bench-baseline-1", "bench-eagle3-1", "bench-baseline-2", "bench-eagle3-2"]


def test_every_step_is_a_command_there_is() -> None:
    for situation in (BOX, LAPTOP, replace(BOX, image=None)):
        for step in steps_of(Settings(), situation, Path("w")):
            assert step.arguments[0] in COMMANDS
            assert step.estimate_seconds > 0
            assert step.limit_seconds > step.estimate_seconds


def test_without_a_gpu_what_needs_one_is_skipped_and_the_rest_rehearsed() -> None:
    steps = {step.name: step for step in steps_of(Settings(), LAPTOP, Path("w"))}
    assert steps["probe-fusion"].skip == NO_GPU
    assert "gloo" in steps["probe-allreduce"].arguments
    assert "--rehearsal" in steps["up-baseline-1"].arguments
    assert "rtx-pro-6000-x8" not in " ".join(word for step in steps.values() for word in step.arguments)


def test_on_the_box_nothing_can_fall_back_to_a_rehearsal() -> None:
    steps = {step.name: step for step in steps_of(Settings(), BOX, Path("w"))}
    assert "gloo" not in steps["probe-allreduce"].arguments
    assert "--no-rehearsal" in steps["up-eagle3-1"].arguments
    for name in ("doctor", "probe-allreduce", "probe-fusion", "plan-baseline-1", "up-baseline-1"):
        arguments = steps[name].arguments
        assert arguments[arguments.index("--host") + 1] == "rtx-pro-6000-x8"


def test_probes_wait_for_torch_or_the_image() -> None:
    def find(situation: Situation) -> Step:
        return next(s for s in steps_of(Settings(), situation, Path("w")) if s.name == "probe-allreduce")

    assert find(replace(BOX, image=None)).postpone is not None
    assert (find(BOX).postpone, find(BOX).image) == (None, "engine:1")
    assert "/out/receipts" in find(BOX).arguments
    assert find(replace(BOX, torch=True)).image is None


def test_a_running_server_is_measured_and_not_started_or_stopped() -> None:
    settings = Settings(servers={"baseline": "http://a:1", "eagle3": "http://a:2"}, api_key_file="k")
    found = names(settings, BOX)
    assert not [name for name in found if name.startswith(("up", "down", "log"))]
    bench = next(s for s in steps_of(settings, BOX, Path("w")) if s.name == "bench-eagle3-1")
    assert bench.arguments[1] == "http://a:2"
    assert bench.arguments[bench.arguments.index("--api-key-file") + 1] == "k"


def test_a_profile_that_compose_does_not_serve_says_how_it_can_be_measured() -> None:
    bench = next(
        s
        for s in steps_of(Settings(profiles=("eagle3-2step",)), BOX, Path("w"))
        if s.name.startswith("bench")
    )
    assert bench.skip is not None
    assert "--server eagle3-2step=URL" in bench.skip


def test_more_load_takes_longer() -> None:
    assert bench_seconds(Settings(), rehearsal=False) < bench_seconds(Settings(rounds=6), rehearsal=False)
    assert duration(40) == "40 s"
    assert duration(3900) == "65 min"
    assert duration(7500) == "2 h 5 min"


class StandInRunner(Runner):
    """Runs small shell scripts in the steps' stead; everything else is the real runner."""

    scripts: dict[str, str]
    ran: list[str]

    def _command(self, step: Step) -> list[str]:
        self.ran.append(step.name)
        usual = UP if step.name.startswith("up-") else "echo '{}'"
        return ["sh", "-c", self.scripts.get(step.name, usual)]


@pytest.fixture
def make_runner(tmp_path: Path) -> Callable[..., StandInRunner]:
    def make(
        settings: Settings | None = None, situation: Situation = LAPTOP, **scripts: str
    ) -> StandInRunner:
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        runner = StandInRunner(settings or Settings(), situation, work, lambda _text: None)
        runner.scripts = {name.replace("_", "-"): script for name, script in scripts.items()}
        runner.ran = []
        return runner

    return make


UP = """echo '{"report": {"url": "http://x", "api_key_file": "/k"}}'"""


def test_a_failing_step_does_not_hide_the_rest(make_runner: Callable[..., StandInRunner]) -> None:
    runner = make_runner(
        doctor="exit 21",
        up_baseline_1="""echo '{"error": "no room"}'; exit 13""",
        up_eagle3_1=UP,
    )
    steps = runner.run().steps
    assert (steps["doctor"].outcome, steps["doctor"].why) == ("done", "verdict: fail")
    assert (steps["up-baseline-1"].outcome, steps["up-baseline-1"].why) == ("failed", "exit code 13: no room")
    assert (steps["bench-baseline-1"].outcome, steps["bench-baseline-1"].why) == (
        "skipped",
        "up-baseline-1 is not done",
    )
    assert steps["log-baseline-1"].outcome == "done"  # the log of what failed is what one wants
    assert steps["down-baseline-1"].outcome == "done"
    assert steps["bench-eagle3-1"].outcome == "done"
    assert steps["probe-fusion"].why == NO_GPU
    assert steps["report"].outcome == "done"
    assert steps["bench-eagle3-1"].command is not None
    assert "http://x" in steps["bench-eagle3-1"].command


def test_what_is_done_is_not_done_again(make_runner: Callable[..., StandInRunner]) -> None:
    make_runner(up_baseline_1="exit 1", up_eagle3_1=UP).run()
    again = make_runner(up_baseline_1=UP)
    steps = again.run().steps
    engine = ("up", "bench", "log", "explain", "down")
    assert again.ran == [*(f"{step}-baseline-1" for step in engine), "decide", "report"]
    assert all(step.outcome in ("done", "skipped") for step in steps.values())


@pytest.mark.parametrize(
    ("remarks", "again"), [([], False), (["interrupted: 1 of 9 rounds of cells are here"], True)]
)
def test_a_bench_whose_whole_receipt_is_there_is_not_measured_again(
    make_runner: Callable[..., StandInRunner], tmp_path: Path, remarks: list[str], again: bool
) -> None:
    receipt = new_receipt(
        kind="bench",
        host=Host(name="h"),
        rehearsal=True,
        subject={"server_start": "eagle3-1"},
        samples=[],
        summary={"remarks": list(remarks)},
    )
    write_receipt(tmp_path / "work" / "receipts", receipt)
    runner = make_runner(up_baseline_1=UP, up_eagle3_1=UP)
    runner.run()
    assert ("bench-eagle3-1" in runner.ran) is again
    assert "bench-baseline-1" in runner.ran


def test_a_hanging_step_is_stopped_with_its_children(
    make_runner: Callable[..., StandInRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_runner(doctor="sleep 600 & wait")
    runner.steps = [
        replace(step, estimate_seconds=0.1, patience_seconds=0.5) if step.name == "doctor" else step
        for step in runner.steps
        if step.name in ("doctor", "decide")
    ]
    steps = runner.run().steps
    assert steps["doctor"].outcome == "failed"
    assert "it hangs" in (steps["doctor"].why or "")
    assert steps["decide"].outcome == "done"


def test_postponed_steps_run_at_the_end_once_the_image_is_there(
    make_runner: Callable[..., StandInRunner],
) -> None:
    bare = replace(BOX, image=None)
    runner = make_runner(situation=bare, up_baseline_1=UP, up_eagle3_1=UP)
    steps = runner.run(refresh=lambda: BOX).steps
    assert runner.ran.index("probe-allreduce") > runner.ran.index("down-eagle3-1")
    assert runner.ran[-2:] == ["decide", "report"]
    assert steps["probe-fusion"].outcome == "done"
    never = make_runner(Settings(starts=1), situation=bare)
    never.state = State(settings=Settings())
    assert never.run(refresh=lambda: bare).steps["probe-allreduce"].outcome == "skipped"


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Ctrl-C as a terminal has it: what is started in a shell's background is started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupted_step_is_written_down_and_the_next_run_goes_on(
    make_runner: Callable[..., StandInRunner], tmp_path: Path
) -> None:
    runner = make_runner(
        up_baseline_1=UP,
        up_eagle3_1=UP,
        bench_baseline_1="kill -INT $PPID; sleep 60",
    )
    with pytest.raises(KeyboardInterrupt):
        runner.run()
    state = json.loads((tmp_path / "work" / STATE_FILE).read_text())
    assert state["steps"]["bench-baseline-1"]["outcome"] == "interrupted"
    assert state["engine"] == "baseline-1"
    again = make_runner(up_baseline_1=UP, up_eagle3_1=UP)
    assert again.run().steps["bench-baseline-1"].outcome == "done"
    assert "doctor" not in again.ran


def test_a_work_folder_of_other_options_is_refused(
    make_runner: Callable[..., StandInRunner], tmp_path: Path
) -> None:
    make_runner().run()
    with pytest.raises(DeployKitError, match="other options") as caught:
        make_runner(Settings(rounds=9))
    assert caught.value.key == "rounds"
    (tmp_path / "work" / STATE_FILE).write_text("{")
    with pytest.raises(DeployKitError, match="not a first light's state"):
        make_runner()


def test_half_an_answer_of_a_start_fails_the_bench_with_the_reason(
    make_runner: Callable[..., StandInRunner], tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    runner = Runner(Settings(), LAPTOP, work, lambda _text: None)
    runner.state.steps = {name: StepState(outcome="done") for name in ("plan-baseline-1", "up-baseline-1")}
    (work / "engines/baseline-1").mkdir(parents=True)
    (work / "engines/baseline-1/up.json").write_text('{"report": null}')
    step = next(step for step in runner.steps if step.name == "bench-baseline-1")
    (work / "receipts").mkdir()
    runner._take(step)
    assert runner.state.steps[step.name].why == "the start's answer has no url"


def test_servers_of_others_need_no_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    settings = Settings(servers={"baseline": "http://a", "eagle3": "http://b"})
    refuse_foreign_engines(settings, State(settings=settings))
    refuse_foreign_engines(Settings(), State(settings=Settings()))
