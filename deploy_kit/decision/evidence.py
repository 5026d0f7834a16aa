"""From receipts to evidence: what was measured of which method under which load, and what never mixes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.receipts import Receipt
from deploy_kit.receipts.bench import BenchSubject, CellRound, parse_bench

# An event is a step of the engine when it holds as many tokens as a verify accepts, to within this.
EVENTS_ARE_STEPS_RATIO = 0.05


@dataclass(frozen=True, order=True)
class Method:
    """A way to serve that was measured: a profile with levers."""

    profile: str
    levers: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The method for people: "eagle3+pcie-ipc"."""
        return "+".join((self.profile, *self.levers))

    @property
    def speculates(self) -> bool:
        """Whether this is anything but plain decoding."""
        return self.profile != "baseline"


@dataclass(frozen=True, order=True)
class Band:
    """A load that methods are compared under: streams at once, and the context band of their prompts."""

    concurrency: int
    context: str = "0-2k"

    @property
    def label(self) -> str:
        """The band for people: "C=8, 0-2k"."""
        return f"C={self.concurrency}, {self.context}"


@dataclass(frozen=True)
class Observation:
    """One round of one cell. Speeds are in tokens/s, `tokens_per_second` over all streams and whole
    requests; `stream_tokens_per_second` of one stream while decoding. What is not known is None."""

    method: Method
    band: Band
    tokens_per_second: float
    workload: str = ""
    stream_tokens_per_second: float | None = None
    accept_length: float | None = None
    cycle_seconds: float | None = None  # as a stream sees it, see `stream_cycle`
    engine_cycle_seconds: float | None = None  # the engine's mean over its cycles, each counted once
    prefill_ratio: float | None = None  # share of the interval in which the engine prefilled
    verify_seconds: float | None = None
    draft_seconds: float | None = None
    requests: int = 1
    errors: int = 0
    receipt_id: str = ""
    server_start: str | None = None

    @property
    def stream_speed(self) -> float:
        """Tokens/s of one stream while decoding; when only the total is known, its share of that."""
        if self.stream_tokens_per_second is not None:
            return self.stream_tokens_per_second
        return self.tokens_per_second / self.band.concurrency


@dataclass(frozen=True)
class Cell:
    """All rounds of one method under one load."""

    method: Method
    band: Band
    rounds: tuple[Observation, ...]

    @property
    def speeds(self) -> list[float]:
        """Total tokens/s of each round."""
        return [round_.tokens_per_second for round_ in self.rounds]

    @property
    def requests(self) -> int:
        """Finished requests of all rounds."""
        return sum(round_.requests for round_ in self.rounds)

    @property
    def errors(self) -> int:
        """Failed requests of all rounds."""
        return sum(round_.errors for round_ in self.rounds)

    def mean(self, name: str) -> float | None:
        """Return the mean of a quantity over the rounds that have it; None when none has.

        Of times the harmonic mean: speeds are averaged as they are, and accept length / cycle is that average
        only where cycles are averaged as the speeds they make. Where rounds differ by half (a busy machine),
        the plain mean of cycles predicts up to a fifth too little.
        """
        values = [getattr(round_, name) for round_ in self.rounds]
        known = [float(value) for value in values if value is not None]
        if not known:
            return None
        if name.endswith("_seconds") and min(known) > 0:
            return statistics.harmonic_mean(known)
        return statistics.fmean(known)


@dataclass(frozen=True)
class Evidence:
    """Everything usable from the receipts, and what was left aside with the reason."""

    cells: dict[tuple[Method, Band], Cell]
    host: str | None = None
    rehearsal: bool = False
    model: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    plans: dict[str, str | None] = field(default_factory=dict)  # method label → plan id
    set_aside: tuple[str, ...] = ()

    @property
    def methods(self) -> list[Method]:
        """The methods measured, in order of name."""
        return sorted({method for method, _ in self.cells})

    @property
    def bands(self) -> list[Band]:
        """The loads measured, lightest first."""
        return sorted({band for _, band in self.cells})


def gather(receipts: Sequence[Receipt], files: Mapping[str, Any] | None = None) -> Evidence:
    """Given bench receipts (others are ignored), return the evidence in them.

    Raises `DeployKitError` when they mix hosts, stacks, models, rehearsal and real, or, for one method,
    plans: such numbers do not compare, and an average of them would look as good as a real one.
    `files` maps receipt ids to their files, for the messages.
    """
    bench = [receipt for receipt in receipts if receipt.kind == "bench"]
    parsed = [(receipt, *parse_bench(receipt, (files or {}).get(receipt.receipt_id))) for receipt in bench]
    _refuse_mixes([(receipt, subject) for receipt, subject, _ in parsed])
    observations: list[Observation] = []
    aside: list[str] = []
    for receipt, subject, summary in parsed:
        for cell in summary.cells:
            observation, reason = _observe(receipt, subject, cell)
            if observation is not None:
                observations.append(observation)
            elif reason:
                aside.append(f"{receipt.short_id} {reason}")
    cells, dropped = _by_workload(observations)
    return Evidence(
        cells=cells,
        host=bench[0].host.name if bench else None,
        rehearsal=bench[0].rehearsal if bench else False,
        model=parsed[0][1].model if parsed else None,
        versions=dict(bench[0].versions) if bench else {},
        plans={
            Method(subject.profile, tuple(subject.levers)).label: receipt.plan_id
            for receipt, subject, _ in parsed
        },
        set_aside=(*aside, *dropped),
    )


def evidence_of(observations: Sequence[Observation], **facts: Any) -> Evidence:
    """Given observations of one host and stack, return them as evidence (for sums without receipts)."""
    cells, dropped = _by_workload(observations)
    return Evidence(cells=cells, set_aside=tuple(dropped), **facts)


def _observe(
    receipt: Receipt, subject: BenchSubject, cell: CellRound
) -> tuple[Observation | None, str | None]:
    if cell.load == "open":
        return (
            None,
            f"open loop at {cell.rate_per_second}/s: its speed is the arrival rate's, not the engine's",
        )
    where = f"C={cell.concurrency} round {cell.round + 1}"
    if cell.tokens_per_second <= 0 or cell.requests == 0:
        return None, f"{where}: no request finished"
    return (
        Observation(
            method=Method(subject.profile, tuple(sorted(subject.levers))),
            band=Band(cell.concurrency or 1, cell.context_band),
            tokens_per_second=cell.tokens_per_second,
            workload=f"{subject.workload.model_dump_json()} {subject.interface}",
            stream_tokens_per_second=cell.stream_tokens_per_second,
            accept_length=cell.engine.accept_length or cell.client_accept_length,
            cycle_seconds=stream_cycle(cell),
            engine_cycle_seconds=cell.engine.step_seconds if cell.engine.accept_length else None,
            prefill_ratio=(
                None
                if cell.engine.prefill_seconds_total is None
                else cell.engine.prefill_seconds_total / cell.interval_seconds
            ),
            verify_seconds=cell.engine.verify_seconds,
            draft_seconds=cell.engine.draft_seconds,
            requests=cell.requests,
            errors=cell.errors,
            receipt_id=receipt.receipt_id,
            server_start=subject.server_start,
        ),
        None,
    )


def stream_cycle(cell: CellRound) -> float | None:
    """Given a cell, return the cycle its streams see, in seconds; None when it is not known.

    The engine counts each cycle once, however full its batch is, and leaves out what lies between batches.
    A stream sees full batches more often than empty ones, and waits for other streams' prefills. Its gaps
    between events are its cycles when an event holds as many tokens as a verify accepts; when events were
    merged on the way, the engine's mean is the best there is.
    """
    accept, events = cell.engine.accept_length, cell.client_accept_length
    if accept and events and cell.itl_seconds and abs(events / accept - 1) <= EVENTS_ARE_STEPS_RATIO:
        return cell.itl_seconds.mean
    return cell.cycle_seconds


def _by_workload(
    observations: Sequence[Observation],
) -> tuple[dict[tuple[Method, Band], Cell], list[str]]:
    # In one band only the workload that most methods were measured with can be compared; ties: the newest.
    by_band: dict[Band, dict[str, list[Observation]]] = {}
    for observation in observations:
        by_band.setdefault(observation.band, {}).setdefault(observation.workload, []).append(observation)
    cells: dict[tuple[Method, Band], Cell] = {}
    dropped: list[str] = []
    for band, workloads in by_band.items():
        order = list(workloads)
        best = max(order, key=lambda name: (len({o.method for o in workloads[name]}), order.index(name)))
        for name, found in workloads.items():
            if name != best:
                labels = sorted({observation.method.label for observation in found})
                dropped.append(f"{band.label}: another workload, measured of {', '.join(labels)}")
        grouped: dict[Method, list[Observation]] = {}
        for observation in workloads[best]:
            grouped.setdefault(observation.method, []).append(observation)
        for method, rounds in grouped.items():
            cells[(method, band)] = Cell(method, band, tuple(rounds))
    return cells, dropped


def _refuse_mixes(parsed: Sequence[tuple[Receipt, BenchSubject]]) -> None:
    if not parsed:
        return
    first, first_subject = parsed[0]
    plans: dict[Method, Receipt] = {}
    for receipt, subject in parsed:
        for key, mine, other in (
            ("rehearsal", first.rehearsal, receipt.rehearsal),
            ("host", first.host.name, receipt.host.name),
            ("model", first_subject.model, subject.model),
            ("stand-in", first_subject.stand_in, subject.stand_in),
        ):
            if mine != other:
                raise _mixed(key, first, mine, receipt, other)
        for kind, left, right in (
            ("host fact", first.host.facts, receipt.host.facts),
            ("stack", first.versions, receipt.versions),
        ):
            for name in sorted(set(left) | set(right)):
                if kind == "host fact" and (name not in left or name not in right):
                    continue  # an older deploy-kit may have read fewer facts
                if name != "deploy-kit" and left.get(name) != right.get(name):
                    raise _mixed(f"{kind} {name}", first, left.get(name), receipt, right.get(name))
        method = Method(subject.profile, tuple(sorted(subject.levers)))
        known = plans.setdefault(method, receipt)
        if known.plan_id != receipt.plan_id:
            raise _mixed(f"plan of {method.label}", known, known.plan_id, receipt, receipt.plan_id)


def _mixed(key: str, one: Receipt, mine: object, other: Receipt, theirs: object) -> DeployKitError:
    return DeployKitError(
        f"these receipts do not compare: they mix {key}s",
        key=key,
        found=f"{mine} (receipt {one.short_id}) and {theirs} (receipt {other.short_id})",
        remedy="give receipts of one host, one stack, and one plan for each profile; measure the rest",
        exit_code=ExitCode.INPUT,
    )
