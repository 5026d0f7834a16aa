"""Runs candidates: starts their ranks, checks them, and measures the correct ones in interleaved rounds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from deploy_kit.probe.candidates import TUNED_VARIABLES, Candidate, Point, nccl_candidate, why_not
from deploy_kit.probe.classify import Outcome
from deploy_kit.probe.group import Group, GroupFailedError
from deploy_kit.probe.machine import Machine, available_memory_bytes
from deploy_kit.probe.search import next_points

Say = Callable[[str], None]
ANCHOR = "nccl-default"

# What SGLang exports unless told otherwise, and multicast off: measured as it will be served.
_AS_SERVED = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
_WARNINGS = {
    "NCCL_DEBUG": "WARN",
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",
}
_SHARED = {"TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1"}
_WARMUP_REPLAYS = 3
# Until something is measured: what a measurement takes, and how many come into the final rounds.
_MEASURE_SECONDS = 0.4
_FINALISTS = 8
_POLL_SECONDS = 0.1  # while candidates compile or join
_PATIENCE = 2.5
_JOIN_TOGETHER_SECONDS = 6.0  # one that needs longer joins while the others are checked
_FINAL_SHARE = 1 / 3
_LEAST_FINAL_ROUNDS = 3
_EAGER_TOO = 1.3  # eager calls are measured in the final rounds as well
_GPU_PROCESS_BYTES = 600 * 1024**2
_CPU_PROCESS_BYTES = 250 * 1024**2


@dataclass(frozen=True)
class Settings:
    """What to measure and how long it may take. Sizes are [tokens, hidden] in bf16."""

    hidden: int
    tokens: tuple[int, ...]
    count: int
    ranks: int
    backend: Literal["nccl", "gloo"]
    python: str
    budget_seconds: float = 120.0
    step_limit_seconds: float = 25.0
    start_limit_seconds: float = 120.0
    prepare_limit_seconds: float = 600.0  # a first compilation takes minutes; a search waits less long
    check_repeats: int = 3
    replay_repeats: int = 3
    screening_rounds: int = 2
    screening_replays: int = 6
    final_rounds: int = 5
    final_replays: int = 10
    eager_calls: int = 20
    measure_limit_seconds: float = 0.8  # of one measurement; a slow all-reduce gets fewer replays
    joining_at_once: int = 6
    together: int | None = None  # most candidates alive at once; None: from the free memory
    base_environment: Mapping[str, str] = field(default_factory=dict)
    task: Literal["allreduce", "fusion"] = "allreduce"
    shared_gpu: bool = False  # all ranks on one GPU: results are checked, nothing is timed

    @property
    def is_rehearsal(self) -> bool:
        """Whether this run says nothing about the host's own all-reduce, and so decides nothing."""
        return self.backend != "nccl" or self.shared_gpu

    def job(self, candidate: Candidate) -> dict[str, Any]:
        """Return the job that this candidate's ranks get."""
        return {
            "task": self.task,
            "shared_gpu": self.shared_gpu,
            "device": "cuda" if self.backend == "nccl" else "cpu",
            "path": candidate.path,
            "fault": None if candidate.fault is None else dict(candidate.fault),
            "hidden": self.hidden,
            "tokens": list(self.tokens),
            "count": self.count,
            "collective_limit_seconds": self.step_limit_seconds * 4,
            "working_set_bytes": (16 if self.backend == "nccl" else 1) * 1024**2,
        }

    def environment(self, candidate: Candidate) -> dict[str, str]:
        """Return the environment of this candidate's ranks: the caller's without the settings under test,
        what serving exports, the base, then the candidate's own."""
        inherited = {name: value for name, value in os.environ.items() if name not in TUNED_VARIABLES}
        shared = _SHARED if self.shared_gpu else {}
        return {
            **_WARNINGS,
            **_AS_SERVED,
            **shared,
            **inherited,
            **self.base_environment,
            **candidate.environment,
        }


@dataclass
class Record:
    """What became of one candidate. `samples`: stage → tokens → rounds of µs per all-reduce."""

    candidate: Candidate
    outcome: Outcome = field(default_factory=lambda: Outcome("not-run", cause="not started"))
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    steps_seconds: dict[str, float] = field(default_factory=dict)
    ranks_agree: bool | None = None
    samples: dict[str, dict[int, list[list[float]]]] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def add(self, stage: str, tokens: int, samples: Sequence[float]) -> None:
        """Add one round's samples."""
        self.samples.setdefault(stage, {}).setdefault(tokens, []).append(list(samples))

    def rounds(self, tokens: int, stage: str = "final") -> list[list[float]]:
        """Return the rounds of one size, empty when there are none."""
        return self.samples.get(stage, {}).get(tokens, [])

    @property
    def is_ok(self) -> bool:
        """Whether every check passed and nothing failed later."""
        return self.outcome.status == "ok"


@dataclass
class ProbeRun:
    """Everything a run found out."""

    settings: Settings
    records: dict[str, Record]
    seconds: float
    machine_facts: dict[str, Any]
    snapshots: list[list[dict[str, Any]]]
    left_out: list[str]
    notes: list[str]


class Runner:
    """One run. Keeps the groups of candidates that may be measured again alive, and ends all in the end."""

    def __init__(self, settings: Settings, say: Say) -> None:
        self.settings = settings
        self.say = say
        self.started = time.monotonic()
        self.records: dict[str, Record] = {}
        self.groups: dict[str, Group] = {}
        self.machine = Machine(settings.ranks)
        self.snapshots: list[list[dict[str, Any]]] = []
        self.left_out: list[str] = []
        self.notes: list[str] = []
        self.ratios: dict[Point, dict[int, float]] = {}
        self.name_ratios: dict[str, dict[int, float]] = {}
        self._searching = False  # only a search has a budget
        self._preparing: dict[str, float] = {}  # candidate → when it was told to import and compile
        self._pending: list[Candidate] = []  # those of them that were not taken up yet
        self._held_against: str | None = None
        # What things took last, for the budget.
        self._start_seconds = 0.0
        self._candidate_seconds = 0.0
        self._measure_seconds = 0.0

    # --- whole runs --------------------------------------------------------------------------------------

    def search(self, first: Sequence[Candidate], axes: Sequence[str]) -> ProbeRun:
        """Measure the first pass, then follow the coordinate search while the budget lasts, then measure the
        best again, interleaved, in more rounds."""
        facts = self.machine.facts()
        self._searching = True
        try:
            self._screen(first, keep=self._together() - 1)
            while points := next_points(self.ratios, self.settings.tokens, axes, self._failed_points()):
                room = self._room()
                wave = [nccl_candidate(dict(point)) for point in points[: min(room, self._together() - 1)]]
                if not wave:
                    self.left_out += [nccl_candidate(dict(point)).name for point in points]
                    self.notes.append("the budget ended before the search converged")
                    break
                self._screen(wave, keep=self._together() - 1)
            self._screen([], keep=self._together() - 1, wait=True)
            self._final()
            return self._result(facts)
        finally:
            self.close()

    def measure(self, candidates: Sequence[Candidate]) -> ProbeRun:
        """Measure the named candidates only, all interleaved; NCCL's default comes along as anchor."""
        facts = self.machine.facts()
        try:
            if len(candidates) < self._together() or self.settings.shared_gpu:
                self._join_and_check(self._importing_over(self._started(candidates), wait=True))
                if self.settings.shared_gpu:
                    self.notes.append("the ranks shared one GPU: results were checked, nothing was timed")
                else:
                    self._rounds(list(self.groups), "final", self.settings.final_rounds)
            else:
                self._screen(candidates, keep=self._together() - 1, wait=True)
                self._final()
            return self._result(facts)
        finally:
            self.close()

    def close(self) -> None:
        """End every rank that is still alive."""
        for group in self.groups.values():
            left = group.kill()
            if left:
                self.notes.append(f"processes {', '.join(map(str, left))} did not end when killed")
        self.groups.clear()

    # --- stages ------------------------------------------------------------------------------------------

    def _screen(self, candidates: Sequence[Candidate], keep: int, *, wait: bool = False) -> None:
        """Prepare candidates in waves, measure each wave interleaved with the anchor, keep the promising.

        What still imports or compiles is taken up by a later call when it is done; `wait`: by this one.
        """
        todo = list(candidates)
        while todo or (
            self._pending and (wait or any(self.groups[c.name].is_settled for c in self._pending))
        ):
            wave, todo = self._next_wave(todo)
            began = time.monotonic()
            started = [*self._pending, *(self._started(wave) if wave else [])]
            if wave:
                self._start_seconds = time.monotonic() - began
            over_at = time.monotonic()
            # What compiles meanwhile holds nobody up, until nothing else is left or fits beside it.
            quick = any(candidate.name not in self._preparing for candidate in started)
            prepared = self._importing_over(started, wait=not quick and (wait or bool(todo)))
            self._pending = [c for c in started if c.name in self._preparing]
            names = [candidate.name for candidate in self._join_and_check(prepared)]
            if not names:
                continue
            reference = self._reference()
            measured = [*([reference] if reference is not None and reference not in names else []), *names]
            stage = f"screen-{sum(name.startswith('screen-') for name in self._stages()) + 1}"
            self._rounds(measured, stage, self.settings.screening_rounds)
            self._note_ratios(measured, stage)
            self._candidate_seconds = (time.monotonic() - over_at) / len(prepared)
            self._drop_slow(max(2, self._together() // 2) if todo else keep)

    def _next_wave(self, todo: Sequence[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
        """Return what is started next, and the rest: as many as fit beside what is alive, of those that
        compile at most half, since they stay until they are done."""
        together = self._together()
        room = max(1, together - len(self.groups))
        slow_room = max(1, together // 2) - len(self._preparing)
        wave: list[Candidate] = []
        rest: list[Candidate] = []
        for candidate in todo:
            slow = sum(one.prepares for one in wave)
            fits = len(wave) < room and not (candidate.prepares and slow >= slow_room)
            (wave if fits else rest).append(candidate)
        return wave, rest

    def _final(self) -> None:
        names = self._finalists()
        one_round = max(0.01, self._final_seconds() / self.settings.final_rounds)
        fitting = max(_LEAST_FINAL_ROUNDS, int(max(self._remaining(), 0.0) / one_round))
        rounds = min(self.settings.final_rounds, fitting) if self._searching else self.settings.final_rounds
        self.say(f"final: {', '.join(names)}, {rounds} interleaved rounds")
        self._rounds(names, "final", rounds)

    def _rounds(self, names: Sequence[str], stage: str, rounds: int) -> None:
        """A B C A B C: one measurement of each in every round, from another start each time."""
        final = stage == "final"
        for number in range(rounds):
            if number and not final and self._is_short_of_time(0):
                return  # one round of each tells enough to choose who comes into the final
            shift = number % max(1, len(names))
            for name in [*names[shift:], *names[:shift]]:
                if name not in self.groups:
                    continue
                self.say(f"measuring {name}, round {number + 1} of {rounds}")
                self._measure_once(name, stage, eager=final)

    def _measure_once(self, name: str, stage: str, *, eager: bool) -> None:
        settings = self.settings
        record = self.records[name]
        began = time.monotonic()
        try:
            answers = self.groups[name].command(
                "measure",
                settings.step_limit_seconds * 2,
                tokens=list(settings.tokens),
                replays=self._replays(stage),
                warmup=_WARMUP_REPLAYS,
                eager_calls=settings.eager_calls if eager else 0,
            )
        except GroupFailedError as error:
            self._fail(record, error.outcome)
            return
        finally:
            record.seconds += time.monotonic() - began
            self._measure_seconds = time.monotonic() - began
        snapshot = self.machine.snapshot()
        if snapshot is not None:
            self.snapshots.append(snapshot)
        for tokens in (tokens for tokens in settings.tokens if str(tokens) in answers[0]["graph_us"]):
            # The slowest rank decides when a step is over.
            record.add(stage, tokens, _slowest([answer["graph_us"][str(tokens)] for answer in answers]))
            if "unfused_us" in answers[0]:
                record.add(
                    "unfused", tokens, _slowest([answer["unfused_us"][str(tokens)] for answer in answers])
                )
            if eager and answers[0].get("eager_us"):
                record.add("eager", tokens, _slowest([answer["eager_us"][str(tokens)] for answer in answers]))

    # --- one candidate -----------------------------------------------------------------------------------

    def _started(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Start the ranks of all of them at once (importing torch takes longest) and return those started."""
        settings = self.settings
        begun = []
        for candidate in candidates:
            record = self.records.setdefault(candidate.name, Record(candidate))
            reason = why_not(candidate, {**self._inherited(), **settings.base_environment}, settings.backend)
            if settings.shared_gpu and candidate.path in ("process-group", "unfused"):
                reason = "NCCL refuses two ranks on one GPU, and gloo's all-reduce cannot be captured"
            if reason is not None:
                record.outcome = Outcome("unsupported", cause=reason)
                continue
            if candidate.name not in self.groups:
                self.groups[candidate.name] = Group(
                    python=settings.python,
                    job=settings.job(candidate),
                    world_size=settings.ranks,
                    environment=settings.environment(candidate),
                )
            begun.append(candidate)
        self.say(f"starting {len(begun)} candidates with {settings.ranks} ranks each")
        ready = []
        for candidate in begun:
            record = self.records[candidate.name]
            if self._step(record, "start"):
                ready.append(candidate)
                if candidate.prepares:
                    self.groups[candidate.name].tell("prepare")
                    self._preparing[candidate.name] = time.monotonic()
        return ready

    def _importing_over(self, candidates: Sequence[Candidate], *, wait: bool) -> list[Candidate]:
        """Return those of started candidates that can join now: they have nothing to import and compile, or
        have done it. `wait`: until all have, or their time is up."""
        settings = self.settings
        pending = [c for c in candidates if c.name in self._preparing]
        if wait and pending:
            self.say(f"importing and compiling: {', '.join(c.name for c in pending)}")
        limit_seconds = settings.prepare_limit_seconds
        if self._searching:
            limit_seconds = min(limit_seconds, max(_POLL_SECONDS, self._remaining() - self._reserve()))
        deadline = time.monotonic() + limit_seconds
        while wait and time.monotonic() < deadline:
            if all(self.groups[c.name].is_settled for c in pending):
                break
            time.sleep(_POLL_SECONDS)
        for candidate in pending:
            if self.groups[candidate.name].is_settled:
                self._took_in_preparation(candidate)
            elif wait:
                self._cut_off_preparation(candidate)
        return [c for c in candidates if c.name in self.groups and c.name not in self._preparing]

    def _took_in_preparation(self, candidate: Candidate) -> None:
        told_at = self._preparing.pop(candidate.name)
        record = self.records[candidate.name]
        self._step(record, "prepare", told_at=told_at)

    def _cut_off_preparation(self, candidate: Candidate) -> None:
        """End one that needs longer than there is time: no finding about the all-reduce."""
        seconds = time.monotonic() - self._preparing.pop(candidate.name)
        record = self.records[candidate.name]
        record.steps_seconds["prepare"] = round(seconds, 3)
        record.outcome = Outcome(
            "not-run",
            "prepare",
            cause=f"still importing or compiling after {seconds:.0f} s; what is compiled is kept: measure it "
            f"again with --candidates {candidate.name}",
        )
        self.left_out.append(candidate.name)
        self.groups.pop(candidate.name).kill()
        self.say(f"{candidate.name}: {record.outcome.text()}")

    def _join_and_check(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Join, check, capture and check the replay; return those that are right.

        Joining is mostly setting up, so several do it at once; all else each does alone on the GPUs. One that
        takes long to join goes on while the others are checked. When the budget has no room for more, the
        rest is left out: what is measured by then is still compared.
        """
        right: list[Candidate] = []
        late: list[tuple[Candidate, float]] = []
        together = [c for c in candidates if not c.tunes]
        at_once = self.settings.joining_at_once
        for first in range(0, len(together), at_once):
            batch = together[first : first + at_once]
            told_at = self._tell_to_join(batch)
            deadline = told_at + _JOIN_TOGETHER_SECONDS
            joined: list[Candidate] = []
            waiting = list(batch)
            while waiting:
                for candidate in [c for c in waiting if self.groups[c.name].is_settled]:
                    waiting.remove(candidate)
                    if self._step(self.records[candidate.name], "join", told_at=told_at):
                        joined.append(candidate)
                if time.monotonic() >= deadline:
                    break
                if waiting:
                    time.sleep(_POLL_SECONDS)
            late += [(c, told_at) for c in waiting]
            # In the order in which they were asked for, not in that in which they happened to be ready.
            right += self._all_checked([c for c in batch if c in joined], len(right))
        for candidate, told_at in late:
            if self._step(self.records[candidate.name], "join", told_at=told_at):
                right += self._all_checked([candidate], len(right))
        # What measures tactics while it joins does so alone, and last: it may take as long as all the rest.
        for candidate in (c for c in candidates if c.tunes):
            told_at = self._tell_to_join([candidate])
            if self._step(self.records[candidate.name], "join", told_at=told_at):
                right += self._all_checked([candidate], len(right))
        return right

    def _tell_to_join(self, batch: Sequence[Candidate]) -> float:
        for candidate in batch:
            self.say(f"{candidate.name}: join")
            self.groups[candidate.name].tell("join")
        return time.monotonic()

    def _all_checked(self, joined: Sequence[Candidate], right_before: int) -> list[Candidate]:
        right: list[Candidate] = []
        for candidate in joined:
            if self._is_short_of_time(right_before + len(right) + 1):
                self.left_out.append(candidate.name)
                self.records[candidate.name].outcome = Outcome("not-run", cause="the budget ended before it")
                self.groups.pop(candidate.name).kill()
            elif self._checked(candidate):
                right.append(candidate)
        return right

    def _checked(self, candidate: Candidate) -> bool:
        record = self.records[candidate.name]
        steps: tuple[tuple[str, dict[str, Any]], ...] = (
            ("check", {"repeats": self.settings.check_repeats}),
            ("capture", {}),
            ("replay", {"repeats": self.settings.replay_repeats}),
        )
        for step, arguments in steps:
            self.say(f"{candidate.name}: {step}")
            if not self._step(record, step, **arguments):
                return False
        record.outcome = Outcome("ok")
        return True

    def _step(self, record: Record, step: str, *, told_at: float | None = None, **arguments: Any) -> bool:
        """Have the ranks do a step, or wait for one that they were told before; return whether all did it."""
        group = self.groups[record.candidate.name]
        began = time.monotonic() if told_at is None else told_at
        waited = time.monotonic() - began
        limit_seconds, cut_by_budget = self._limit(record, step, waited)
        try:
            if step == "start":
                answers = group.started(limit_seconds)
                record.facts = answers[0]
            elif told_at is not None:
                answers = group.answers(step, limit_seconds, waited)
            else:
                answers = group.command(step, limit_seconds, **arguments)
        except GroupFailedError as error:
            outcome = error.outcome
            if cut_by_budget and outcome.status == "hang":
                # Slow or stuck cannot be told apart in the time that was left.
                outcome = Outcome("not-run", step, outcome.ranks, outcome.cause, outcome.evidence)
                self.left_out.append(record.candidate.name)
            self._fail(record, outcome)
            return False
        finally:
            taken = time.monotonic() - began
            record.seconds += taken
            record.steps_seconds[step] = round(taken, 3)
        if step == "check":
            record.ranks_agree = all(answer["digests"] == answers[0]["digests"] for answer in answers)
            if "largest_gap_to_unfused" in answers[0]:
                gaps = [answer["largest_gap_to_unfused"] for answer in answers]
                record.extra["largest_gap_to_unfused"] = {
                    key: max(gap[key] for gap in gaps) for key in gaps[0]
                }
        return True

    def _limit(self, record: Record, step: str, waited_seconds: float = 0.0) -> tuple[float, bool]:
        """Return how long a step may take, in seconds from when it was told (`waited_seconds` ago), and
        whether a search's budget made it shorter."""
        if step == "start":
            return self.settings.start_limit_seconds, False
        if step != "join" or record.candidate.path == "process-group":
            return self.settings.step_limit_seconds, False
        # Implementations with buffers to share and tactics to tune take longer to join.
        wanted = self.settings.step_limit_seconds * _PATIENCE
        if not self._searching:
            return wanted, False
        left = waited_seconds + max(10.0 - waited_seconds, self._remaining() - self._reserve(), 0.0)
        return min(wanted, left), left < wanted

    def _fail(self, record: Record, outcome: Outcome) -> None:
        record.outcome = outcome
        group = self.groups.pop(record.candidate.name, None)
        if group is not None:
            group.kill()
        self.say(f"{record.candidate.name}: {outcome.text()} (after {self._elapsed():.1f} s)")

    # --- choosing ----------------------------------------------------------------------------------------

    def _note_ratios(self, names: Sequence[str], stage: str) -> None:
        reference = self._reference()
        for name in names:
            record = self.records[name]
            if reference is None or not record.is_ok:
                continue
            ratios = {}
            for tokens in self.settings.tokens:
                mine, theirs = record.rounds(tokens, stage), self.records[reference].rounds(tokens, stage)
                if mine and theirs:
                    ratios[tokens] = _middle(mine) / _middle(theirs)
            self.name_ratios[name] = ratios
            if record.candidate.is_nccl and record.candidate.point is not None:
                self.ratios[record.candidate.point] = ratios

    def _reference(self) -> str | None:
        """What the rounds of a search are held against: NCCL's default; where that is not correct, or has
        failed, another one for as long as it lives, NCCL's before others."""
        if ANCHOR in self.groups:
            self._held_against = ANCHOR
        elif self._held_against not in self.groups:
            alive = (name for name in self.groups if name not in self._preparing)
            self._held_against = next(
                iter(sorted(alive, key=lambda name: not self.records[name].candidate.is_nccl)), None
            )
        return self._held_against

    def _finalists(self) -> list[str]:
        """The anchor, today's setting, the story's, and the two fastest of each size; alive ones only."""
        wanted = [
            ANCHOR,
            "host-file",
            "story-2ch-128k",
            *([self._held_against] if self._held_against else []),
        ]
        for tokens in self.settings.tokens:
            ordered = sorted(
                (
                    name
                    for name in self.name_ratios
                    if name in self.groups and tokens in self.name_ratios[name]
                ),
                key=lambda name: self.name_ratios[name][tokens],
            )
            nccl = [name for name in ordered if self.records[name].candidate.is_nccl]
            wanted += [*ordered[:2], *nccl[:2]]
        overall = sorted(
            (name for name in self.groups if self.records[name].candidate.is_nccl),
            key=self._score,
        )
        return [name for name in dict.fromkeys([*wanted, *overall[:2]]) if name in self.groups]

    def _drop_slow(self, keep: int) -> None:
        kept = set(self._finalists())
        measured = [name for name in self.groups if name not in self._preparing]
        ordered = sorted(measured, key=lambda name: (name not in kept, self._score(name)))
        for name in ordered[max(keep, 1) :]:
            self.groups.pop(name).kill()

    def _score(self, name: str) -> float:
        ratios = self.name_ratios.get(name)
        if not ratios:
            return float("inf")
        return sum(ratios.values()) / len(ratios)

    def _failed_points(self) -> list[Point]:
        return [
            record.candidate.point
            for record in self.records.values()
            if record.candidate.point is not None and record.outcome.status not in ("ok", "not-run")
        ]

    def _stages(self) -> set[str]:
        return {stage for record in self.records.values() for stage in record.samples}

    def _together(self) -> int:
        if self.settings.together is not None:
            return max(2, self.settings.together)
        each = (
            _GPU_PROCESS_BYTES if self.settings.backend == "nccl" else _CPU_PROCESS_BYTES
        ) * self.settings.ranks
        available = available_memory_bytes()
        alive = each * len(self.groups)
        fitting = 8 if available is None else int((available + alive) * 0.6 // each)
        return max(3, min(24, fitting))

    def _final_seconds(self) -> float:
        """How long the final rounds of today's finalists will take, from what the last measurement took."""
        replays = self._replays("final") + _WARMUP_REPLAYS
        screening = self._replays("screen-1") + _WARMUP_REPLAYS
        one = (self._measure_seconds or _MEASURE_SECONDS) * replays / screening * _EAGER_TOO
        finalists = len(self._finalists()) if self.name_ratios else _FINALISTS
        return self.settings.final_rounds * max(1, finalists) * one

    def _reserve(self) -> float:
        """What is kept for the final rounds; of a small budget at most a third, then they are fewer."""
        return min(self._final_seconds(), self.settings.budget_seconds * _FINAL_SHARE)

    def _room(self) -> int:
        """How many more candidates fit into the budget, their start and the final rounds taken off."""
        left = self._remaining() - self._reserve() - self._start_seconds
        return max(0, int(left / max(self._candidate_seconds, 0.1)))

    def _is_short_of_time(self, measured_too: int) -> bool:
        """Whether a search's budget has no room for one more candidate, `measured_too` being unmeasured."""
        if not self._searching:
            return False
        if ANCHOR not in self.name_ratios and not any(record.is_ok for record in self.records.values()):
            return False  # without a first one there is nothing to report at all
        screening = measured_too * self.settings.screening_rounds * self._measure_seconds
        return self._remaining() < self._reserve() + screening

    def _replays(self, stage: str) -> int:
        """How many replays make a measurement: as asked, fewer where a forward's all-reduces take long."""
        wanted = self.settings.final_replays if stage == "final" else self.settings.screening_replays
        anchor = self.records.get(ANCHOR)
        if anchor is None or not anchor.samples:
            return wanted
        first = next(iter(anchor.samples.values()))
        once = sum(_middle(rounds) for rounds in first.values()) * self.settings.count / 1e6
        fitting = int(self.settings.measure_limit_seconds / max(once, 1e-9)) - _WARMUP_REPLAYS
        return max(2, min(wanted, fitting))

    def _elapsed(self) -> float:
        return time.monotonic() - self.started

    def _remaining(self) -> float:
        return self.settings.budget_seconds - self._elapsed()

    @staticmethod
    def _inherited() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}

    def _result(self, facts: dict[str, Any]) -> ProbeRun:
        return ProbeRun(
            self.settings,
            self.records,
            round(self._elapsed(), 2),
            facts,
            self.snapshots,
            list(dict.fromkeys(self.left_out)),
            self.notes,
        )


def _slowest(per_rank: Sequence[Sequence[float]]) -> list[float]:
    return [max(samples) for samples in zip(*per_rank, strict=True)]


def _middle(rounds: Sequence[Sequence[float]]) -> float:
    return median([sample for samples in rounds for sample in samples])
