"""From the samples of a scrape to an engine's quantities: one number each, or none and the reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from deploy_kit.metrics.names import (
    ALIASES,
    DISTINCTIVE,
    MODEL_LABELS,
    PART_LABELS,
    PREFIXES,
    REPLICA_LABELS,
    ROUTER_PREFIXES,
    WORKER_LABELS,
)
from deploy_kit.metrics.text import Sample, Scrape

OWN_PREFIX = "deploy_kit_"


@dataclass(frozen=True)
class Absent:
    """A quantity that a scrape does not give; `remedy` when something can be done about it."""

    reason: str
    remedy: str | None = None


@dataclass
class Engine:
    """One engine's part of a scrape. `values` holds numbers by quantity, `absent` the others' reasons."""

    model: str | None
    engine_type: str | None
    worker: str | None
    values: dict[str, float] = field(default_factory=dict)
    absent: dict[str, Absent] = field(default_factory=dict)
    per_part: dict[str, dict[str, float]] = field(default_factory=dict)
    forward_seconds: dict[str, float] = field(default_factory=dict)
    graph_passes: dict[str, float] = field(default_factory=dict)
    own: dict[str, Histogram] = field(default_factory=dict)
    positions: dict[int, float] = field(default_factory=dict)
    replicas: int = 1
    notes: list[str] = field(default_factory=list)

    def value(self, quantity: str) -> float | None:
        """Return a quantity's number, or None."""
        return self.values.get(quantity)


@dataclass(frozen=True)
class Histogram:
    """A histogram's totals and its cumulative buckets (upper bound → count)."""

    count: float
    total: float | None
    buckets: tuple[tuple[float, float], ...] = ()

    @property
    def mean(self) -> float | None:
        """The mean of what was observed; None without observations or without a sum."""
        return self.total / self.count if self.count > 0 and self.total is not None else None

    def quantile(self, share: float) -> float | None:
        """Return the value below which `share` (0 to 1) of the observations lie, straight within its bucket
        as PromQL reads it; None without observations, or when it lies above the last finite bound."""
        if not self.buckets or self.count <= 0 or not 0.0 <= share <= 1.0:
            return None
        rank = share * self.buckets[-1][1]
        lower_bound = lower_count = 0.0
        for bound, count in self.buckets:
            if count >= rank and count > lower_count:
                if math.isinf(bound):
                    return None
                return lower_bound + (bound - lower_bound) * (rank - lower_count) / (count - lower_count)
            lower_bound, lower_count = bound, count
        return None

    def since(self, earlier: Histogram | None) -> Histogram | None:
        """Return what was added since `earlier`; None when a count went down (the engine was restarted)."""
        if earlier is None:
            return None
        if self.count < earlier.count or self.total is None or earlier.total is None:
            return None
        if self.total < earlier.total:
            return None
        before = dict(earlier.buckets)
        buckets = tuple((bound, count - before.get(bound, 0.0)) for bound, count in self.buckets)
        return Histogram(self.count - earlier.count, self.total - earlier.total, buckets)


@dataclass
class Reading:
    """All that a scrape says about engines."""

    engines: list[Engine]
    prefix: str | None  # "sglang:", "sglang_", "" (missing) or None (nothing of an engine)
    other_prefixes: tuple[str, ...]  # whose metrics these are when they are not an engine's
    scrape: Scrape
    timer_declared: bool = False
    rate_definition: str | None = None  # "length / draft tokens", "accepted drafts / proposed drafts"


@dataclass(frozen=True)
class _Quantity:
    metric: str
    combine: Callable[[Sequence[float]], float | None]
    least: float = 0.0  # a smaller number cannot be


def _same(values: Sequence[float]) -> float | None:
    return values[0] if all(math.isclose(value, values[0], rel_tol=1e-9) for value in values) else None


QUANTITIES: dict[str, _Quantity] = {
    "running": _Quantity("num_running_reqs", sum),
    "queued": _Quantity("num_queue_reqs", sum),
    "gen_tok_s": _Quantity("gen_throughput", sum),
    "kv_usage": _Quantity("token_usage", max),
    "used_tokens": _Quantity("num_used_tokens", sum),
    "max_tokens": _Quantity("max_total_num_tokens", sum),
    "context_len": _Quantity("context_len", _same),
    "cache_hit_rate": _Quantity("cache_hit_rate", _same),
    "prompt_tokens": _Quantity("prompt_tokens_total", sum),
    "generation_tokens": _Quantity("generation_tokens_total", sum),
    "requests": _Quantity("num_requests_total", sum),
    "accept_length": _Quantity("spec_accept_length", _same),
    "accept_rate": _Quantity("spec_accept_rate", _same),
    "spec_steps": _Quantity("spec_num_steps", _same),
    "draft_tokens": _Quantity("spec_num_draft_tokens", _same),
    "verify_calls": _Quantity("spec_verify_calls_total", sum),
    "cuda_graph": _Quantity("is_cuda_graph", _same),
}
SPEC_QUANTITIES = ("accept_length", "accept_rate", "spec_steps", "draft_tokens", "verify_calls")
LOAD_QUANTITIES = ("running", "queued", "gen_tok_s", "used_tokens", "kv_usage")


def read(scrape: Scrape) -> Reading:
    """Given a parsed scrape, return the engines in it. Never raises."""
    prefix, engine_samples, others = _of_engines(scrape)
    own = [sample for sample in scrape.samples if sample.name.startswith(OWN_PREFIX)]
    groups = _by_engine(engine_samples)
    engines = [_engine(key, samples, scrape) for key, samples in sorted(groups.items(), key=str)]
    for sample_group in _by_engine(own).items():
        _add_own(engines, sample_group, scrape)
    names = {
        f"{p}{n}"
        for p in (*PREFIXES, "")
        for n in ("forward_execution_seconds_total", "forward_execution_seconds")
    }
    helps = [
        scrape.helps[name] for p in PREFIXES for name in (f"{p}spec_accept_rate",) if name in scrape.helps
    ]
    return Reading(
        engines=engines,
        prefix=prefix,
        other_prefixes=others,
        scrape=scrape,
        timer_declared=any(name in scrape.types or name in scrape.helps for name in names)
        or any(sample.name == "forward_execution_seconds_total" for sample in engine_samples),
        rate_definition=_rate_definition(helps[0]) if helps else None,
    )


def _rate_definition(text: str) -> str | None:
    if "proposed drafts" in text or "accepted drafts" in text:
        return "accepted drafts / proposed drafts"
    if "total draft tokens" in text or "accepted tokens" in text:
        return "length / draft tokens"
    return None


def _of_engines(scrape: Scrape) -> tuple[str | None, list[Sample], tuple[str, ...]]:
    """Return the prefix in use, the engine's samples without it, and whose other metrics are there."""
    found: dict[str, list[Sample]] = {prefix: [] for prefix in PREFIXES}
    rest: list[Sample] = []
    for sample in scrape.samples:
        if sample.name.startswith(ROUTER_PREFIXES):
            rest.append(sample)
            continue
        for prefix in PREFIXES:
            if sample.name.startswith(prefix):
                found[prefix].append(_renamed(sample, sample.name.removeprefix(prefix)))
                break
        else:
            rest.append(sample)
    for prefix in PREFIXES:
        if found[prefix]:
            # Both: a gateway exports its copy beside the engine's own; one of them is enough.
            return prefix, found[prefix], _prefixes(rest)
    bare = [sample for sample in rest if ":" not in sample.name]
    if any(_base(sample.name) in DISTINCTIVE for sample in bare):
        known = {quantity.metric for quantity in QUANTITIES.values()} | {"forward_execution_seconds_total"}
        return "", [sample for sample in bare if _base(sample.name) in known], _prefixes(rest)
    return None, [], _prefixes(rest)


def _prefixes(samples: Iterable[Sample]) -> tuple[str, ...]:
    prefixes = set()
    for sample in samples:
        if sample.name.startswith(OWN_PREFIX):
            continue
        router = next((p for p in ROUTER_PREFIXES if sample.name.startswith(p)), None)
        separator = ":" if ":" in sample.name else "_"
        prefixes.add(router or sample.name.partition(separator)[0] + separator)
    return tuple(sorted(prefixes))


def _base(name: str) -> str:
    return ALIASES.get(name, name)


def _renamed(sample: Sample, name: str) -> Sample:
    return Sample(name, sample.labels, sample.value, sample.line)


_Key = tuple[str | None, str | None, str | None]


def _by_engine(samples: list[Sample]) -> dict[_Key, list[Sample]]:
    def worker(sample: Sample) -> str | None:
        return next((sample.labels[name] for name in WORKER_LABELS if name in sample.labels), None)

    def model(sample: Sample) -> str | None:
        return next((sample.labels[name] for name in MODEL_LABELS if sample.labels.get(name)), None)

    kinds: dict[tuple[str | None, str | None], set[str]] = {}
    for sample in samples:
        kinds.setdefault((model(sample), worker(sample)), set())
        if sample.labels.get("engine_type"):
            kinds[model(sample), worker(sample)].add(sample.labels["engine_type"])
    models = {name for name, _worker in kinds if name is not None}
    groups: dict[_Key, list[Sample]] = {}
    for sample in samples:
        name, address = model(sample), worker(sample)
        if name is None and len(models) == 1:
            name = next(iter(models))  # process-wide series carry no model
        of_model = kinds.get((name, address), set())
        kind = sample.labels.get("engine_type") or (next(iter(of_model)) if len(of_model) == 1 else None)
        groups.setdefault((name, kind, address), []).append(sample)
    return groups


def _engine(key: _Key, samples: list[Sample], scrape: Scrape) -> Engine:
    engine = Engine(*key)
    present = {sample.name for sample in samples}
    samples = [
        _renamed(sample, ALIASES[sample.name])
        if sample.name in ALIASES and ALIASES[sample.name] not in present
        else sample
        for sample in samples
    ]
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    engine.replicas = max(
        (len({s.labels.get("tp_rank") for s in group}) for group in by_name.values()), default=1
    )
    for quantity, rule in QUANTITIES.items():
        _read_quantity(engine, quantity, rule, by_name.get(rule.metric, []), scrape)
    for label, metric, target in (
        ("category", "forward_execution_seconds_total", engine.forward_seconds),
        ("mode", "cuda_graph_passes_total", engine.graph_passes),
    ):
        parts: dict[str, list[Sample]] = {}
        for sample in by_name.get(metric, []):
            parts.setdefault(sample.labels.get(label, ""), []).append(sample)
        for part, group in parts.items():
            contributors, reason = _contributors(group)
            values = list(contributors.values())
            if reason is None and values and all(math.isfinite(v) and v >= 0 for v in values):
                target[part] = sum(values)
            else:
                scrape.report("unusable value", f"{metric}{{{label}={part!r}}}: {reason or 'not a number'}")
    return engine


def _read_quantity(
    engine: Engine, quantity: str, rule: _Quantity, samples: list[Sample], scrape: Scrape
) -> None:
    if not samples:
        engine.absent[quantity] = Absent(f"the scrape has no {rule.metric}")
        return
    contributors, reason = _contributors(samples)
    if reason is not None:
        scrape.report("unusable value", f"{rule.metric}: {reason}")
        engine.absent[quantity] = Absent(reason)
        return
    bad = [value for value in contributors.values() if not math.isfinite(value) or value < rule.least]
    if bad:
        text = f"{rule.metric} is {bad[0]:g}" if not math.isnan(bad[0]) else f"{rule.metric} is NaN"
        scrape.report("unusable value", text)
        engine.absent[quantity] = Absent(f"{text}: not a measurement")
        return
    combined = rule.combine(list(contributors.values()))
    if combined is None:
        engine.per_part[quantity] = {name or "-": value for name, value in contributors.items()}
        engine.absent[quantity] = Absent(
            f"{len(contributors)} data-parallel parts differ; see them one by one"
        )
        return
    engine.values[quantity] = float(combined)
    if len(contributors) > 1:
        engine.per_part[quantity] = {name or "-": value for name, value in contributors.items()}


def _contributors(samples: list[Sample]) -> tuple[dict[str, float], str | None]:
    """Given one metric's series of one engine, return one value for each independent part of it.

    Ranks repeat each other: the lowest is taken. Of a total and its parts the total is taken. Data-parallel
    ranks (and anything else) are parts. The text is a reason why there is no answer.
    """
    remaining: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in samples:
        remaining.setdefault(sample.without(*REPLICA_LABELS, *PART_LABELS), []).append(sample)
    common = set.intersection(*(set(key) for key in remaining)) if len(remaining) > 1 else set()
    contributors: dict[str, float] = {}
    for key, group in remaining.items():
        name = ",".join(f"{label}={value}" for label, value in key if (label, value) not in common)
        totals = [s for s in group if all(s.labels.get(part, "") == "" for part in PART_LABELS)]
        if totals:
            lowest = min(_rank(sample) for sample in totals)
            chosen = [sample for sample in totals if _rank(sample) == lowest]
            if len({repr(sample.value) for sample in chosen}) > 1:
                return {}, "several processes report it and differ; a dead one may linger"
            contributors[name] = chosen[0].value
        else:
            lowest = min(_rank(sample) for sample in group)
            contributors[name] = sum(sample.value for sample in group if _rank(sample) == lowest)
    return contributors, None


def _rank(sample: Sample) -> tuple[int, ...]:
    ranks = []
    for label in REPLICA_LABELS:
        if label == "pid":
            continue
        text = sample.labels.get(label, "")
        ranks.append(int(text) if text.isdecimal() else -1)
    return tuple(ranks)


def _add_own(engines: list[Engine], group: tuple[_Key, list[Sample]], scrape: Scrape) -> None:
    """Add our plug-in's histograms to the engine they belong to."""
    (model, kind, worker), samples = group
    fitting = [e for e in engines if model in (None, e.model) and worker in (None, e.worker)]
    if kind is not None and len(fitting) > 1:
        fitting = [e for e in fitting if e.engine_type == kind]
    if len(fitting) != 1:
        return
    engine = fitting[0]
    # One rank only; a scrape in which two export must still count each forward once.
    lowest = min((_rank(sample) for sample in samples if "tp_rank" in sample.labels), default=None)
    samples = [s for s in samples if lowest is None or "tp_rank" not in s.labels or _rank(s) == lowest]
    for sample in samples:
        if sample.name == "deploy_kit_spec_accepted_position_total":
            position = sample.labels.get("position", "")
            if position.isdecimal() and math.isfinite(sample.value):
                engine.positions[int(position)] = engine.positions.get(int(position), 0.0) + sample.value
    for name, label in (
        ("deploy_kit_forward_seconds", "phase"),
        ("deploy_kit_spec_cycle_seconds", None),
        ("deploy_kit_spec_accept_length", None),
    ):
        keys = {s.labels.get(label, "") if label else "" for s in samples if s.name.startswith(f"{name}_")}
        for key in sorted(keys):
            part = [s for s in samples if not label or s.labels.get(label, "") == key]
            histogram = _histogram(name, part, scrape)
            if histogram is not None:
                engine.own[key or name.removeprefix("deploy_kit_spec_")] = histogram


def _histogram(name: str, samples: list[Sample], scrape: Scrape) -> Histogram | None:
    def total(suffix: str) -> float | None:
        values = [sample.value for sample in samples if sample.name == name + suffix]
        return sum(values) if values and all(math.isfinite(value) for value in values) else None

    buckets: dict[float, float] = {}
    for sample in samples:
        if sample.name == f"{name}_bucket":
            try:
                bound = float(sample.labels.get("le", ""))
            except ValueError:
                continue
            buckets[bound] = buckets.get(bound, 0.0) + sample.value
    ordered = tuple(sorted(buckets.items()))
    count = total("_count")
    if count is None and ordered and math.isinf(ordered[-1][0]):
        count = ordered[-1][1]
    counts = [value for _bound, value in ordered]
    if any(not math.isfinite(value) for value in counts) or any(
        later < earlier for earlier, later in pairwise(counts)
    ):
        scrape.report("broken histogram", f"{name}: a bucket is smaller than the one below it")
        return None
    if count is None or not math.isfinite(count):
        scrape.report("broken histogram", f"{name}: no usable count")
        return None
    if counts and counts[-1] > count:
        scrape.report("broken histogram", f"{name}: more in the buckets than counted")
        return None
    whole = total("_sum")
    if whole is None:
        scrape.report("broken histogram", f"{name}: no usable sum, so no mean")
    return Histogram(count, whole, ordered)
