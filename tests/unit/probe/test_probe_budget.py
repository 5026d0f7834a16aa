"""The search's budget, with a clock that only what is done moves: no process is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from deploy_kit.probe.candidates import Candidate, first_pass, useful_axes
from deploy_kit.probe.classify import Outcome
from deploy_kit.probe.runner import ProbeRun, Record, Runner, Settings


class PlayedGroup:
    """Ranks that are only told to join, and have done so `seconds` later."""

    def __init__(self, runner: PlayedRunner, seconds: float) -> None:
        self.runner = runner
        self.seconds = seconds
        self.settles_at = 0.0

    def tell(self, _step: str) -> None:
        self.settles_at = self.runner.now + self.seconds

    @property
    def is_settled(self) -> bool:
        return self.runner.now >= self.settles_at

    def kill(self) -> list[int]:
        return []


class PlayedRunner(Runner):
    """Every step costs what it is said to cost, and a latency follows from the candidate's name. `joining`:
    candidate → seconds that it needs to join; `compiling`: before that."""

    def __init__(
        self,
        budget: float,
        *,
        start: float,
        step: float,
        measure: float,
        joining: Mapping[str, float] | None = None,
        compiling: Mapping[str, float] | None = None,
        together: int = 24,
    ) -> None:
        self.most_alive = 0
        self.now = 0.0
        self.joining = dict(joining or {})
        self.compiling = dict(compiling or {})
        self.costs = (start, step, measure)
        given = Settings(
            hidden=64, tokens=(1, 64), count=122, ranks=2, backend="nccl", python="none",
            budget_seconds=budget, together=together,
        )  # fmt: skip
        super().__init__(given, lambda _text: None)
        self.started = 0.0

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def _elapsed(self) -> float:
        return self.now

    def _started(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        self.now += self.costs[0]
        self._start_seconds = self.costs[0]
        for candidate in candidates:
            self.records.setdefault(candidate.name, Record(candidate))
            group = PlayedGroup(self, self.joining.get(candidate.name, 0.0))
            self.groups[candidate.name] = group  # type: ignore[assignment]
            if candidate.name in self.compiling:
                self._preparing[candidate.name] = self.now
                group.settles_at = self.now + self.compiling[candidate.name]
        self.most_alive = max(self.most_alive, len(self.groups))
        return list(candidates)

    def _step(self, record: Record, step: str, *, told_at: float | None = None, **arguments: Any) -> bool:
        if told_at is None:
            self.now += self.costs[1]
            return True
        group: Any = self.groups[record.candidate.name]
        limit_seconds, _cut = self._limit(record, step, self.now - told_at)
        self.now = max(self.now, min(group.settles_at, told_at + limit_seconds))
        if not group.is_settled:
            self._fail(record, Outcome("hang", step))
        return bool(group.is_settled)

    def _measure_once(self, name: str, stage: str, *, eager: bool) -> None:
        self.now += self.costs[2] * (1.3 if eager else 1.0)
        self._measure_seconds = self.costs[2]
        for tokens in self.settings.tokens:
            self.records[name].add(stage, tokens, [20.0 + (sum(map(ord, name)) % 100) / 10])


def searched(monkeypatch: pytest.MonkeyPatch, played: PlayedRunner) -> ProbeRun:
    monkeypatch.setattr("deploy_kit.probe.runner.time.monotonic", lambda: played.now)
    monkeypatch.setattr("deploy_kit.probe.runner.time.sleep", played.wait)
    monkeypatch.setattr(played.machine, "facts", dict)
    axes = useful_axes({})
    return played.search(first_pass(axes), axes)


COSTS = st.floats(0.05, 2.0)


@given(budget=st.floats(20, 200), start=st.floats(1, 12), step=COSTS, measure=COSTS)
@hypothesis_settings(max_examples=60, deadline=None)
def test_the_budget_is_kept_but_for_what_is_begun(
    budget: float, start: float, step: float, measure: float
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        played = PlayedRunner(budget, start=start, step=step, measure=measure)
        run = searched(monkeypatch, played)
        finalists = sum("final" in record.samples for record in run.records.values())
        # Begun when there was room: a wave's start, one candidate, a round of each, the fewest final rounds.
        begun = start + 3 * step + 24 * measure + 3 * finalists * measure * 1.3
        assert played.now <= budget + begun
        assert run.records["nccl-default"].is_ok
        left_out = [record for record in run.records.values() if record.outcome.status == "not-run"]
        assert {record.candidate.name for record in left_out} <= set(run.left_out)
        assert len(run.left_out) == len(set(run.left_out))


def test_a_small_budget_measures_several_not_one(monkeypatch: pytest.MonkeyPatch) -> None:
    run = searched(monkeypatch, PlayedRunner(45, start=12, step=0.3, measure=0.3))
    measured = [name for name, record in run.records.items() if record.samples]
    assert len(measured) >= 8
    assert run.left_out


def test_with_room_for_all_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run = searched(monkeypatch, PlayedRunner(3000, start=5, step=0.1, measure=0.1))
    assert run.left_out == []
    assert all(record.is_ok for record in run.records.values())


def test_one_that_joins_late_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    played = PlayedRunner(120, start=12, step=0.4, measure=0.3, joining={"sglang-custom": 41.0})
    run = searched(monkeypatch, played)
    for name in ("flashinfer-fused", "symm-one-shot", "LL", "p2p=LOC"):
        assert run.records[name].is_ok, name
    assert played.now <= 120 + 15
    # Told at the same time as the others of its batch, and waited for after them.
    quick = PlayedRunner(120, start=12, step=0.4, measure=0.3)
    assert set(searched(monkeypatch, quick).left_out) <= set(run.left_out) | {"sglang-custom"}


class WithLandscape(PlayedRunner):
    """LL, 16 channels and a buffer of 1 MiB each help, and help together."""

    def _measure_once(self, name: str, stage: str, *, eager: bool) -> None:
        self.now += self.costs[2] * (1.3 if eager else 1.0)
        self._measure_seconds = self.costs[2]
        gain = 0.9 ** len({"LL", "16ch", "1mB"}.intersection(name.split("+")))
        for tokens in self.settings.tokens:
            self.records[name].add(stage, tokens, [20.0 * gain])


def test_a_long_compilation_costs_the_search_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refined(played: PlayedRunner) -> set[str]:
        run = searched(monkeypatch, played)
        first = {candidate.name for candidate in first_pass(useful_axes({}))}
        return {name for name, record in run.records.items() if record.is_ok and name not in first}

    plain = refined(WithLandscape(120, start=5, step=0.1, measure=0.1))
    slow = WithLandscape(120, start=5, step=0.1, measure=0.1, compiling={"flashinfer-pcie-ipc": 600.0})
    assert len(refined(slow)) >= 0.8 * len(plain) > 0
    outcome = slow.records["flashinfer-pcie-ipc"].outcome
    assert (outcome.status, outcome.step) == ("not-run", "prepare")
    assert slow.now <= 120 + 15
    quick = WithLandscape(120, start=5, step=0.1, measure=0.1, compiling={"flashinfer-pcie-ipc": 30.0})
    refined(quick)
    assert quick.records["flashinfer-pcie-ipc"].is_ok


@given(slow=st.integers(0, 4), together=st.integers(3, 12))
@hypothesis_settings(max_examples=30, deadline=None)
def test_what_compiles_keeps_within_what_the_memory_holds(slow: int, together: int) -> None:
    names = ["flashinfer-pcie-ipc", "flashinfer-fused", "sglang-custom", "mscclpp"][:slow]
    with pytest.MonkeyPatch.context() as monkeypatch:
        compiling = dict.fromkeys(names, 40.0)
        played = PlayedRunner(300, start=5, step=0.3, measure=0.3, compiling=compiling, together=together)
        searched(monkeypatch, played)
        assert played.most_alive <= together + 1


class WithoutDefault(PlayedRunner):
    """NCCL's default hangs, as where P2P is granted and does not deliver."""

    def _step(self, record: Record, step: str, *, told_at: float | None = None, **arguments: Any) -> bool:
        if record.candidate.name == "nccl-default" and step == "check":
            self._fail(record, Outcome("hang", cause="the first transfer never returned"))
            return False
        return super()._step(record, step, told_at=told_at, **arguments)


def test_where_the_default_fails_the_others_are_still_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    run = searched(monkeypatch, WithoutDefault(3000, start=5, step=0.1, measure=0.1))
    played = {name: 20.0 + (sum(map(ord, name)) % 100) / 10 for name, r in run.records.items() if r.is_ok}
    finals = {name for name, record in run.records.items() if "final" in record.samples}
    assert min(played, key=lambda name: played[name]) in finals
    assert any(
        name.startswith("screen-") for r in run.records.values() for name in r.samples if name[-1] > "1"
    )
