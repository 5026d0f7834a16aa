"""A sample of the generated corpus (all of it: tests/integration/startup/test_whole_corpus.py)."""

from __future__ import annotations

import pytest
from startup_corpus import FAULTS, STEPS, VERDICT_AT, Log, generate
from startup_fault import Fault

from deploy_kit.startup.causes import CAUSES
from deploy_kit.startup.explain import explain_bytes
from deploy_kit.startup.watcher import StartupWatcher


def check(log: Log) -> None:
    """Hold a log against its answers: the phase at every prefix, the verdict, the cause."""
    watcher = StartupWatcher()
    for raw, phase in zip(log.lines, log.phases, strict=True):
        watcher.feed(raw)
        if phase != "?":
            assert watcher.phase == phase, (log.name, raw)
            if phase != "exited" and not (log.verdict == "hung" and raw is log.lines[-1]):
                assert watcher.explain().verdict == VERDICT_AT[phase], (log.name, raw)
    watcher.close()
    answer = watcher.explain()
    assert answer.verdict == (log.verdict or VERDICT_AT[log.phases[-1]]), (log.name, answer)
    if log.causes:
        assert answer.cause_id in log.causes, (log.name, answer)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(fault: Fault) -> None:
    check(generate(FAULTS.index(fault), fault))


@pytest.mark.parametrize("seed", range(24))
def test_healthy(seed: int) -> None:
    check(generate(seed, stop_at=STEPS[2 + seed % (len(STEPS) - 2)]))


def test_every_cause_has_two_faults_or_more() -> None:
    count = dict.fromkeys(CAUSES, 0)
    for fault in FAULTS:
        for cause in fault.causes:
            count[cause] += 1
    # Not of a log alone, or one wording only: these are met by the supervisor and in own cases.
    for elsewhere in (
        "stopped",
        "stalled",
        "nccl-init-hang",
        "nccl-internal",
        "nccl-cuda",
        "detokenizer-died",
    ):
        count.pop(elsewhere)
    assert [cause for cause, number in count.items() if number < 2] == []


def test_a_restart_in_the_same_log_begins_anew() -> None:
    crashed = generate(1, next(fault for fault in FAULTS if fault.name == "oom-kv"))
    again = generate(2, stop_at="capturing")
    answer = explain_bytes(crashed.data + again.data)
    assert answer.verdict == "capturing"
    assert answer.facts["attempts"] == 2
    assert "crashed" in answer.facts["previous_attempt"]
