"""The watcher on real start logs: SGLang 0.5.17 on one H200, CUDA graphs on, nothing compiled before."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy_kit.startup.report import read_log
from deploy_kit.startup.watcher import StartupWatcher

LOGS = Path(__file__).parent / "logs"
ORDER = ("loading", "allocating", "capturing", "warming", "serving")


@pytest.mark.parametrize(
    ("profile", "algorithm"), [("baseline", None), ("eagle3", "EAGLE3"), ("ngram", "NGRAM")]
)
def test_a_real_start_is_ready_and_its_facts_are_read(profile: str, algorithm: str | None) -> None:
    answer = read_log(LOGS / f"h200-0.5.17-{profile}.log").as_dict()
    assert (answer["verdict"], answer["phase"]) == ("ready", "serving")
    assert answer["facts"]["kv_tokens"] == 16384
    assert answer["facts"]["tp_ranks"] == 1
    assert answer["facts"].get("speculative_algorithm") == algorithm
    assert 50 < answer["facts"]["capture_seconds"] < 70


@pytest.mark.parametrize("profile", ["baseline", "eagle3", "ngram"])
def test_a_real_start_cut_anywhere_is_never_called_an_error(profile: str) -> None:
    lines = (LOGS / f"h200-0.5.17-{profile}.log").read_bytes().splitlines(keepends=True)
    watcher = StartupWatcher()
    seen = []
    for line in lines:
        watcher.feed(line)
        answer = watcher.explain()
        assert answer.verdict in ("starting", "loading", "capturing", "ready"), line
        if answer.phase in ORDER and answer.phase not in seen:
            seen.append(answer.phase)
    assert seen == [phase for phase in ORDER if phase in seen], "phases went back"
    assert {"loading", "capturing", "serving"} <= set(seen)
