"""Receipts in, evidence out: what is refused, set aside, and asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deploy_kit.cli.decide import app
from deploy_kit.decision.choose import EvidenceRules, decide
from deploy_kit.decision.estimate import Candidate, allreduce_times
from deploy_kit.decision.evidence import Band, Method, gather
from deploy_kit.decision.from_receipts import choose_profile
from deploy_kit.decision.traffic import parse_traffic
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.probe.candidates import nccl_candidate
from deploy_kit.probe.classify import Outcome
from deploy_kit.probe.report import make_receipt
from deploy_kit.probe.runner import ProbeRun, Record, Settings
from deploy_kit.probe.verdict import summarize
from deploy_kit.receipts import Host, Receipt, new_receipt, read_receipt, write_receipt
from deploy_kit.receipts.bench import context_band

RECEIPTS = Path(__file__).parents[3] / "docs" / "receipts"
VERSIONS = {"stack": "current", "sglang": "0.5.23", "deploy-kit": "0.1"}


def bench(
    profile: str,
    speeds: dict[int, list[float]],
    *,
    levers: tuple[str, ...] = (),
    host: str = "box-1",
    facts: dict[str, Any] | None = None,
    versions: dict[str, str] | None = None,
    plan_id: str | None = None,
    rehearsal: bool = False,
    model: str = "kimi-k2.5",
    workload: str = "a" * 64,
    requests: int = 8,
    errors: int = 0,
    load: str = "closed",
    engine: dict[str, Any] | None = None,
    cycle_seconds: float | None = None,
) -> Receipt:
    cells = [
        {
            "load": load,
            "concurrency": concurrency if load == "closed" else None,
            "rate_per_second": None if load == "closed" else 2.0,
            "context_band": "0-2k",
            "round": number,
            "requests": requests,
            "errors": errors,
            "retries": 0,
            "interval_seconds": 10.0,
            "output_tokens": int(speed * 10),
            "tokens_per_second": speed,
            "cycle_seconds": cycle_seconds,
            "engine": engine or {},
        }
        for concurrency, rounds in speeds.items()
        for number, speed in enumerate(rounds)
    ]
    return new_receipt(
        kind="bench",
        host=Host(name=host, facts=facts or {"gpus": 8}),
        rehearsal=rehearsal,
        plan_id=plan_id or "-".join((profile, *levers)),
        versions=VERSIONS if versions is None else versions,
        subject={
            "profile": profile,
            "levers": list(levers),
            "model": model,
            "interface": "sglang",
            "workload": {
                "name": "prose-code",
                "sha256": workload,
                "output_tokens": 128,
                "temperature": 0.0,
                "ignore_eos": True,
                "seed": 1,
            },
        },
        samples=[],
        summary={"cells": cells},
    )


BASE = bench("baseline", {1: [82, 82.4, 81.7]})
FAST = bench("eagle3", {1: [133, 132, 134]}, engine={"accept_length": 2.0}, cycle_seconds=0.015)


def test_receipts_to_a_choice() -> None:
    decision = decide(gather([BASE, FAST]))
    assert decision.profile == "eagle3"
    assert decision.evidence.plans == {"baseline": "baseline", "eagle3": "eagle3"}


def test_the_sum_of_rounds_of_a_busy_machine_is_the_speed_that_was_measured() -> None:
    """Three rounds at very different speeds, each exactly accept length / cycle: so is the whole."""
    rounds = [
        bench("eagle3", {1: [2.0 / cycle]}, engine={"accept_length": 2.0}, cycle_seconds=cycle)
        for cycle in (0.015, 0.030, 0.060)
    ]
    (band,) = decide(gather([BASE, *rounds])).bands
    (comparison,) = band.comparisons
    assert comparison.predicted_tokens_per_second == pytest.approx(comparison.stream_tokens_per_second)
    assert comparison.inconsistency is None


@pytest.mark.parametrize(
    ("other", "key"),
    [
        (bench("eagle3", {1: [99]}, host="box-2"), "host"),
        (bench("eagle3", {1: [99]}, facts={"gpus": 4}), "host fact gpus"),
        (bench("eagle3", {1: [99]}, versions={**VERSIONS, "sglang": "0.5.22"}), "stack sglang"),
        (bench("eagle3", {1: [99]}, versions={}), "stack sglang"),
        (bench("eagle3", {1: [99]}, rehearsal=True), "rehearsal"),
        (bench("eagle3", {1: [99]}, model="other"), "model"),
        (bench("baseline", {1: [99]}, plan_id="another"), "plan of baseline"),
    ],
)
def test_mixes_are_refused_and_named(other: Receipt, key: str) -> None:
    with pytest.raises(DeployKitError, match="do not compare") as caught:
        gather([BASE, other])
    assert caught.value.key == key
    assert BASE.short_id in str(caught.value.found)
    assert other.short_id in str(caught.value.found)


def test_the_measuring_tool_may_be_of_another_version() -> None:
    newer = bench("eagle3", {1: [133, 132, 134]}, versions={**VERSIONS, "deploy-kit": "0.2"})
    assert decide(gather([BASE, newer])).profile == "eagle3"


def test_open_loop_and_another_workload_are_set_aside_aloud() -> None:
    evidence = gather([BASE, bench("eagle3", {1: [500]}, load="open")])
    assert evidence.methods == [Method("baseline")]
    assert "open loop" in evidence.set_aside[0]
    evidence = gather([BASE, bench("ngram", {1: [100, 101]}), bench("eagle3", {1: [500]}, workload="b" * 64)])
    assert Method("eagle3") not in evidence.methods
    assert "another workload" in evidence.set_aside[0]


@pytest.mark.parametrize(
    ("fast", "words"),
    [
        (bench("eagle3", {1: [133]}), "1 of 2 rounds"),
        (bench("eagle3", {1: [133, 134]}, requests=1), "2 of 8 finished requests"),
        (bench("eagle3", {1: [133, 134]}, errors=1), "2 failed requests of 18"),
        (bench("eagle3", {1: [70, 200, 130]}), "confident only"),
        (bench("eagle3", {1: [84, 84.1, 84]}), "a tie"),
        (bench("eagle3", {8: [900, 901, 903]}), "baseline is not measured"),
    ],
)
def test_thin_evidence_goes_to_the_baseline(fast: Receipt, words: str) -> None:
    decision = decide(gather([BASE, fast]))
    assert not decision.choice.speculates
    told = [decision.reason, *decision.missing, *(c.reason for b in decision.bands for c in b.comparisons)]
    told += [band.reason for band in decision.bands]
    assert any(words in text for text in told), told


def test_levers_must_be_measured_on_the_baseline_too() -> None:
    decision = decide(gather([BASE, bench("eagle3", {1: [133, 132, 134]}, levers=("pcie-ipc",))]))
    assert decision.choice == Method("eagle3", ("pcie-ipc",))
    assert any(line.startswith("baseline+pcie-ipc") for line in decision.missing)
    # Once measured, it is what must be beaten.
    plain = bench("baseline", {1: [131, 132, 133]}, levers=("pcie-ipc",))
    decision = decide(gather([BASE, plain, bench("eagle3", {1: [133, 132, 134]}, levers=("pcie-ipc",))]))
    assert decision.choice == Method("baseline", ("pcie-ipc",))


def test_traffic_turns_the_choice() -> None:
    receipts = [
        bench("baseline", {1: [80, 80.2, 80.1], 64: [2200, 2205, 2203]}),
        bench("eagle3", {1: [120, 121, 120], 64: [1500, 1502, 1499]}),
    ]
    evidence = gather(receipts)
    for text, profile in (("1:90,64:10", "eagle3"), ("1:10,64:90", "baseline"), ("C=1:1", "eagle3")):
        shares = parse_traffic(text).shares(evidence.bands)
        assert decide(evidence, traffic=shares).profile == profile
    unmeasured = parse_traffic("1:1,16:1").shares(evidence.bands)
    decision = decide(evidence, traffic=unmeasured)
    assert decision.ratio is None
    assert "C=16" in decision.reason


@pytest.mark.parametrize("text", ["1:x", "a:b", "1/:2", ":", "1:70,,x", "1:-2"])
def test_bad_traffic_is_told(text: str) -> None:
    with pytest.raises(DeployKitError) as caught:
        parse_traffic(text)
    assert caught.value.exit_code in (ExitCode.USAGE, ExitCode.CONFIG)


def test_traffic_file(tmp_path: Path) -> None:
    file = tmp_path / "traffic.toml"
    file.write_text("[[band]]\nconcurrency = 1\nshare = 2\n[evidence]\nmin_rounds = 5\n")
    assert parse_traffic(str(file)).evidence.min_rounds == 5
    file.write_text("[[band]]\nconcurency = 1\nshare = 2\n")
    with pytest.raises(DeployKitError) as caught:
        parse_traffic(str(file))
    assert caught.value.file == str(file)
    assert "band.0" in str(caught.value.key)


def probe_receipt(latencies_us: dict[int, float]) -> Receipt:
    """A receipt as `deploy-kit probe allreduce` writes it, by its own code, of a run with these latencies."""
    default = Record(nccl_candidate({}), Outcome("ok"), ranks_agree=True)
    for tokens, latency in latencies_us.items():
        default.add("final", tokens, [latency] * 8)
    settings = Settings(
        hidden=7168, tokens=tuple(latencies_us), count=122, ranks=8, backend="nccl", python="python3"
    )
    run = ProbeRun(settings, {default.candidate.name: default}, 9.0, {"gpus": 8}, [], [], [])
    return make_receipt(
        run, summarize(run), kind="allreduce", host_name="box-1", model_name="kimi-k2.5", command="probe"
    )


def test_what_the_probe_writes_is_what_the_estimate_reads() -> None:
    receipt = probe_receipt({1: 25.0, 4: 30.0, 64: 71.6})
    assert allreduce_times([receipt], "box-1", rehearsal=False) == pytest.approx(
        {1: 25e-6, 4: 30e-6, 64: 71.6e-6}
    )
    assert allreduce_times([receipt], "box-2", rehearsal=False) == {}
    assert allreduce_times([receipt], "box-1", rehearsal=True) == {}


def test_a_real_probe_receipt_without_timings_gives_no_estimate() -> None:
    """All ranks on one GPU: results were checked, nothing was timed."""
    (file,) = RECEIPTS.glob("allreduce-*-5afe6839bc71.json")
    receipt = read_receipt(file)
    assert set(receipt.summary["sizes"]) == {"1", "4", "64"}  # type: ignore[arg-type]
    assert allreduce_times([receipt], receipt.host.name, rehearsal=receipt.rehearsal) == {}


def test_unmeasured_profiles_are_ranked_by_an_estimate_that_says_so(tmp_path: Path) -> None:
    for receipt in (BASE, probe_receipt({1: 25.0, 3: 28.0, 4: 30.0, 8: 60.0})):
        write_receipt(tmp_path, receipt)
    decision = choose_profile(
        [tmp_path],
        candidates=[Candidate("baseline", 0, 1), Candidate("ngram", 0, 8), Candidate("eagle3", 3, 4)],
        layers=61,
        allreduces_per_forward=122,
    )
    assert decision.profile == "baseline"
    assert "eagle3: not measured at all" in decision.missing
    assert [line.split(":")[1].split()[0] for line in decision.estimates] == ["ngram", "eagle3"]
    assert all(line.startswith("estimate (lower bound)") for line in decision.estimates)
    # 1/82 s x (1 + 3/61) + 122 x 5 us = 13.4 ms
    assert "13.4 ms" in decision.estimates[1]


def test_context_bands() -> None:
    assert [context_band(n) for n in (1, 2048, 2049, 9000, 40000, 500_000)] == [
        "0-2k",
        "0-2k",
        "2k-8k",
        "8k-32k",
        "32k-128k",
        "128k+",
    ]


def test_command(tmp_path: Path) -> None:
    write_receipt(tmp_path, BASE)
    write_receipt(tmp_path, FAST)
    result = CliRunner().invoke(app, [str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "choice    eagle3" in result.output
    assert "= 133 tok/s" in result.output
    result = CliRunner().invoke(app, [str(tmp_path), "--json", "--min-rounds", "9"])
    assert '"profile": "baseline"' in result.output
    (tmp_path / "broken.json").write_text("{")
    result = CliRunner().invoke(app, [str(tmp_path)])
    assert isinstance(result.exception, DeployKitError)
    assert "broken.json" in str(result.exception.file)
    result = CliRunner().invoke(app, [str(tmp_path / "absent")])
    assert isinstance(result.exception, DeployKitError)


def test_nothing_but_speculation_measured_is_no_decision(tmp_path: Path) -> None:
    write_receipt(tmp_path, FAST)
    result = CliRunner().invoke(app, [str(tmp_path)])
    assert result.exit_code == int(ExitCode.VERDICT_UNKNOWN)
    assert "baseline: not measured at all" in result.output


def test_rules_ask_for_sane_values() -> None:
    with pytest.raises(ValueError, match="min_rounds"):
        EvidenceRules(min_rounds=0)
    assert Band(8).label == "C=8, 0-2k"
