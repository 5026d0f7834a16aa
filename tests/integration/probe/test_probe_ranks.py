"""Real processes over gloo: every outcome the harness names is made to happen, and told apart."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from deploy_kit.probe.candidates import Candidate, first_pass, named_candidates
from deploy_kit.probe.fusion import named_fusions, summarize_fusion
from deploy_kit.probe.runner import ProbeRun, Runner, Settings
from deploy_kit.probe.verdict import summarize
from deploy_kit.receipts import read_receipts

ROOT = Path(__file__).parents[3]


def settings(python: str, **changes: object) -> Settings:
    given: dict[str, object] = {
        "hidden": 64,
        "tokens": (1, 4),
        "count": 6,
        "ranks": 2,
        "backend": "gloo",
        "python": python,
        "start_limit_seconds": 400.0,  # torch's import, on a busy machine
        "step_limit_seconds": 20.0,
        "final_rounds": 3,
        "final_replays": 4,
        "eager_calls": 5,
    }
    return Settings(**{**given, **changes})  # type: ignore[arg-type]


def measure(given: Settings, candidates: list[Candidate]) -> tuple[ProbeRun, list[str]]:
    said: list[str] = []
    return Runner(given, said.append).measure(candidates), said


def children(pid: int | None = None) -> set[int]:
    """Return the processes that any thread of a process, or of this one, has started."""
    listings = Path(f"/proc/{pid or os.getpid()}/task").glob("*/children")
    return {int(child) for listing in listings for child in listing.read_text(encoding="ascii").split()}


@pytest.fixture(scope="module")
def faulty(torch_python: str) -> ProbeRun:
    """One run in which everything that can go wrong does, beside two candidates that are right."""
    names = [
        "nccl-default",
        "fault-late",
        "fault-wrong",
        "fault-wrong-in-graph",
        "fault-stale",
        "fault-crash-at-capture",
        "fault-raise-at-replay",
        "fault-no-memory-at-check",
        "fault-crash-at-join",
        "symm-one-shot",
    ]
    run, _ = measure(settings(torch_python), named_candidates(names, 2))
    return run


def test_right_ones_are_measured_in_every_round_graph_and_eager(faulty: ProbeRun) -> None:
    for name in ("nccl-default", "fault-late"):
        record = faulty.records[name]
        assert record.is_ok, record.outcome.text()
        assert record.ranks_agree is True
        for tokens in (1, 4):
            assert [len(samples) for samples in record.rounds(tokens)] == [4, 4, 4]
            assert all(value > 0 for samples in record.rounds(tokens) for value in samples)
            assert len(record.rounds(tokens, "eager")) == 3


def test_a_late_rank_is_slow_but_never_wrong(faulty: ProbeRun) -> None:
    late, default = (
        [value for samples in faulty.records[name].rounds(1) for value in samples]
        for name in ("fault-late", "nccl-default")
    )
    assert faulty.records["fault-late"].is_ok
    # Its sleep is in every sample, on a busy machine as well; the other's quickest has nothing to wait for.
    assert min(late) > min(default)
    assert "fault-late" in summarize(faulty)["sizes"]["1"]["latency_us"]


@pytest.mark.parametrize(
    ("name", "status", "step", "words"),
    [
        ("fault-wrong", "wrong", "check", "1 of 64 elements differ"),
        ("fault-wrong-in-graph", "wrong", "replay", "elements differ"),
        ("fault-stale", "wrong", "replay", "all-reduce 2 of 6 in the graph"),
        ("fault-crash-at-capture", "crash", "capture", "SIGSEGV"),
        ("fault-crash-at-join", "crash", "join", "SIGSEGV"),
        ("fault-raise-at-replay", "crash", "replay", "unhandled system error"),
        ("fault-no-memory-at-check", "crash", "check", "out of memory"),
    ],
)
def test_each_fault_is_told_apart_and_its_rank_named(
    faulty: ProbeRun, name: str, status: str, step: str, words: str
) -> None:
    outcome = faulty.records[name].outcome
    assert (outcome.status, outcome.step, outcome.ranks) == (status, step, (1,)), outcome.text()
    assert words in outcome.cause


def test_what_needs_gpus_is_unsupported_with_the_reason(faulty: ProbeRun) -> None:
    assert faulty.records["symm-one-shot"].outcome.status == "unsupported"
    assert faulty.records["symm-one-shot"].outcome.cause == "it needs CUDA GPUs"


@pytest.mark.parametrize(("step", "ranks"), [("join", 2), ("check", 3)])
def test_a_hang_is_ended_in_time_with_rank_and_place_and_nothing_is_left(
    torch_python: str, step: str, ranks: int
) -> None:
    before = children()
    began = time.monotonic()
    given = settings(torch_python, ranks=ranks, step_limit_seconds=4.0, final_rounds=1)
    run, said = measure(given, named_candidates([f"fault-hang-at-{step}"], ranks))
    outcome = run.records[f"fault-hang-at-{step}"].outcome
    assert (outcome.status, outcome.step, outcome.ranks) == ("hang", step, (ranks - 1,)), outcome.text()
    assert any("faults.py" in line for line in outcome.evidence), outcome.evidence
    assert any("hang" in line for line in said)
    assert time.monotonic() - began < 120  # 15 s on a quiet machine, most of it torch's import in each rank
    assert children() == before


def test_the_search_finds_the_best_of_a_known_landscape(
    torch_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_KIT_PROBE_STANDIN_LANDSCAPE", "1")
    axes = ["protocol", "channels"]
    given = settings(
        torch_python, tokens=(1,), count=3, budget_seconds=900, screening_replays=3, check_repeats=1
    )
    first = [
        c
        for c in first_pass(axes)
        if c.path == "process-group" and c.name not in ("1ch", "32ch", "tree-for-all")
    ]
    run = Runner(given, lambda _: None).search(first, axes)
    setting = summarize(run)["host_setting"]
    assert setting["candidate"] == "LL+8ch", {name: r.outcome.text() for name, r in run.records.items()}
    assert setting["ratio_to_default"]["high"] < 1


def test_fusion_accepts_the_reference_and_rejects_a_missing_end_barrier(torch_python: str) -> None:
    names = ["unfused", "fault-stale", "fault-wrong", "flashinfer-auto"]
    run = Runner(settings(torch_python, task="fusion"), lambda _: None).measure(named_fusions(names, 2))
    found = summarize_fusion(run)
    acceptance = {name: entry["acceptance"] for name, entry in found["candidates"].items()}
    assert acceptance == {
        "unfused": "accept",
        "fault-stale": "reject",
        "fault-wrong": "reject",
        "flashinfer-auto": "unknown",
    }
    assert "norm" in found["candidates"]["fault-stale"]["cause"]
    assert found["candidates"]["unfused"]["largest_gap_to_unfused"] == {"norm": 0.0, "residual": 0.0}
    assert found["verdict"] == "fail"


def test_the_references_are_right_and_the_tolerance_is_tight(torch_python: str) -> None:
    """Exact integers sum exactly in any order; one bf16 step off is an error for reals."""
    script = """
import torch
from deploy_kit.probe.worker.data import compare, digest, integers, reals, sum_over_ranks
cpu = torch.device("cpu")
for world in (2, 3, 4, 8):
    seeds = [world * 10 + r for r in range(world)]
    parts = [integers(5000, s, world, cpu) for s in seeds]
    for order in (parts, parts[::-1]):
        total = torch.zeros(5000, dtype=torch.bfloat16)
        for part in order:
            total = total + part
        assert compare(total, sum_over_ranks(5000, seeds, cpu, exact=True)[0], 0.0).count == 0
        again = total.clone()
        for _ in range(world - 1):
            again = again + total
        assert compare(again, total.double() * world, 0.0).count == 0
    values = [reals(5000, s, cpu) for s in seeds]
    total, magnitude = sum_over_ranks(5000, seeds, cpu, exact=False)
    summed = torch.zeros(5000, dtype=torch.bfloat16)
    for value in values:
        summed = summed + value
    assert compare(summed, total, magnitude * (world * 2.0**-8)).count == 0
    summed[17] += 0.2
    assert compare(summed, total, magnitude * (world * 2.0**-8)).index == 17
    summed[17] = float("nan")
    assert compare(summed, total, magnitude * (world * 2.0**-8)).count == 1
assert len({digest(reals(64, s, cpu)) for s in range(200)}) == 200
a = reals(100000, 1, cpu).float()
assert abs(float(a.mean())) < 0.01 and abs(float(a.std()) - 0.577) < 0.01
print("right")
"""
    done = subprocess.run(
        [torch_python, "-c", f"import sys; sys.path.append({str(ROOT)!r})\n{script}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "right", done.stderr


def test_the_worker_runs_from_a_folder_of_its_own(torch_python: str, tmp_path: Path) -> None:
    """It can be carried alone: only its folder, torch and the standard library."""
    shutil.copytree(ROOT / "deploy_kit" / "probe" / "worker", tmp_path / "worker")
    job = {
        "task": "allreduce",
        "device": "cpu",
        "path": "process-group",
        "fault": None,
        "hidden": 8,
        "tokens": [1],
        "count": 2,
        "collective_limit_seconds": 10,
        "working_set_bytes": 1024,
        "rank": 0,
        "world_size": 1,
        "rendezvous": str(tmp_path / "rendezvous"),
    }
    commands = [job, {"do": "join"}, {"do": "check", "repeats": 1}, {"do": "leave"}]
    done = subprocess.run(
        [torch_python, "-m", "worker"],
        cwd=tmp_path,
        input="".join(json.dumps(c) + "\n" for c in commands),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": "", "GLOO_SOCKET_IFNAME": "lo"},
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    finished = [event["step"] for event in events if event["event"] == "done"]
    assert finished == ["start", "join", "check", "leave"], done


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deploy_kit", "probe", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=80,
        env={**os.environ, **environment},
    )


def test_the_command_measures_reports_and_keeps_a_rehearsal_receipt(
    torch_python: str, tmp_path: Path
) -> None:
    # The engine's image has no matplotlib; there everything but the plot is tried.
    plotted = find_spec("matplotlib") is not None
    done = command(
        "allreduce", "--model", "rehearsal-tiny", "--tokens", "1,4", "--count", "4",
        "--candidates", "fault-wrong", "--backend", "gloo", "--python", torch_python,
        "--json", "--receipts", str(tmp_path / "receipts"),
        *(("--plot", str(tmp_path / "plot")) if plotted else ()),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rehearsal"] is True
    assert found["candidates"]["fault-wrong"]["status"] == "wrong"
    assert found["sizes"]["4"]["fastest"] == "nccl-default"
    (receipt,) = read_receipts(tmp_path / "receipts").receipts
    assert receipt.rehearsal
    assert "Traceback" not in done.stderr
    if plotted:
        assert (tmp_path / "plot.png").stat().st_size > 10_000
        assert "REHEARSAL" in (tmp_path / "plot.html").read_text(encoding="utf-8")


def test_a_rehearsal_never_writes_a_host_file(torch_python: str, tmp_path: Path) -> None:
    host = tmp_path / "host.toml"
    host.write_bytes((ROOT / "configs" / "hosts" / "rehearsal.toml").read_bytes())
    done = command("allreduce", "--backend", "gloo", "--python", torch_python, "--write-host", str(host))
    assert done.returncode == 2
    assert "rehearsal" in done.stderr
    assert host.read_bytes() == (ROOT / "configs" / "hosts" / "rehearsal.toml").read_bytes()


def test_interrupting_ends_every_rank(torch_python: str) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "deploy_kit",
            "probe",
            "allreduce",
            "--backend",
            "gloo",
            "--python",
            torch_python,
            "--candidates",
            "fault-hang-at-check",
            "--model",
            "rehearsal-tiny",
            "--step-limit-seconds",
            "60",
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "fault-hang-at-check: check" in line:
            break
    ranks = children(process.pid)
    assert ranks
    process.send_signal(2)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not [pid for pid in ranks if Path(f"/proc/{pid}").exists()]


def test_what_compiles_long_holds_nobody_up_and_is_no_hang(torch_python: str) -> None:
    # "late" sleeps under a millisecond: this one has compiled by the time it is asked.
    names = ["nccl-default", "fault-hang-at-prepare", "fault-crash-at-prepare", "fault-late-at-prepare", "LL"]
    given = settings(
        torch_python, tokens=(1,), final_rounds=1, budget_seconds=900.0, prepare_limit_seconds=3.0
    )
    said: list[str] = []
    run = Runner(given, said.append).search(named_candidates(names, 2), [])
    hanging = run.records["fault-hang-at-prepare"].outcome
    assert (hanging.status, hanging.step) == ("not-run", "prepare"), hanging.text()
    assert "still importing or compiling" in hanging.cause
    assert "fault-hang-at-prepare" in run.left_out
    crashed = run.records["fault-crash-at-prepare"].outcome
    assert (crashed.status, crashed.step, crashed.ranks) == ("crash", "prepare", (1,)), crashed.text()
    for name in ("nccl-default", "LL", "fault-late-at-prepare"):
        assert run.records[name].is_ok, run.records[name].outcome.text()
    assert "prepare" in run.records["fault-late-at-prepare"].steps_seconds
    # The others were measured while it compiled, not after it.
    assert said.index("measuring LL, round 1 of 2") < said.index(
        "importing and compiling: fault-hang-at-prepare"
    )


def test_named_candidates_are_waited_for_while_they_compile(torch_python: str) -> None:
    given = settings(torch_python, tokens=(1,), final_rounds=1, prepare_limit_seconds=3.0)
    run, _ = measure(given, named_candidates(["fault-hang-at-prepare", "fault-late-at-prepare"], 2))
    assert run.records["fault-late-at-prepare"].is_ok
    outcome = run.records["fault-hang-at-prepare"].outcome
    assert (outcome.status, outcome.step) == ("not-run", "prepare"), outcome.text()
    assert run.records["fault-hang-at-prepare"].steps_seconds["prepare"] >= 3.0


def test_one_that_hangs_while_joining_is_waited_for_after_the_others(torch_python: str) -> None:
    given = settings(torch_python, tokens=(1,), final_rounds=1, step_limit_seconds=9.0)
    run, said = measure(given, named_candidates(["fault-hang-at-join", "LL"], 2))
    outcome = run.records["fault-hang-at-join"].outcome
    assert (outcome.status, outcome.step, outcome.ranks) == ("hang", "join", (1,)), outcome.text()
    assert "after 9 s" in outcome.cause
    assert run.records["LL"].is_ok
    gave_up = next(number for number, line in enumerate(said) if line.startswith("fault-hang-at-join: hang"))
    assert said.index("LL: replay") < gave_up
