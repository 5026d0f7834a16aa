"""The whole generated corpus: no false crash, none missed, the right cause, the right phase everywhere."""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "startup"))

from startup_corpus import FAULTS, STEPS, VERDICT_AT, generate

from deploy_kit.startup.watcher import StartupWatcher

LOGS = 2_400


def test_two_thousand_logs() -> None:
    wrong_phase: list[str] = []
    false_crash: list[str] = []
    missed: list[str] = []
    wrong_cause: list[str] = []
    faults = 0
    for seed in range(LOGS):
        fault = FAULTS[seed // 2 % len(FAULTS)] if seed % 2 else None
        log = generate(10_000 + seed, fault, stop_at=STEPS[2 + seed // 2 % (len(STEPS) - 2)])
        watcher = StartupWatcher()
        for raw, phase in zip(log.lines, log.phases, strict=True):
            watcher.feed(raw)
            if phase != "?" and watcher.phase != phase:
                wrong_phase.append(f"{log.name}: {watcher.phase} for {phase}: {raw[:120]!r}")
                break
        watcher.close()
        answer = watcher.explain()
        if fault is None:
            if answer.verdict != VERDICT_AT[log.phases[-1]]:
                false_crash.append(f"{log.name}: {answer}")
            continue
        faults += 1
        if answer.verdict != log.verdict:
            missed.append(f"{log.name}: {answer}")
        elif answer.cause_id not in log.causes:
            wrong_cause.append(f"{log.name}: {answer.cause_id}")
    assert false_crash == []
    assert missed == []
    assert wrong_phase == []
    assert len(wrong_cause) <= faults * 0.01, wrong_cause


def test_chopped_anywhere_the_answer_is_the_same() -> None:
    """Logs of every fault, cut at random bytes, against the whole in one piece."""
    for index, fault in enumerate(FAULTS):
        data = generate(70_000 + index, fault).data
        whole = StartupWatcher()
        whole.feed(data)
        whole.close()
        rng = random.Random(index)
        chopped = StartupWatcher()
        at = 0
        while at < len(data):
            size = rng.choice((1, 2, 3, 17, 200, 4_000))
            chopped.feed(data[at : at + size])
            if rng.random() < 0.01:
                chopped.unfinished_progress()
                chopped.explain()  # asking changes nothing
            at += size
        chopped.close()
        assert chopped.explain() == whole.explain(), fault.name
