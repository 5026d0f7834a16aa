"""The engine's own counters before and after a cell, and what their difference says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deploy_kit.metrics.reading import Histogram, read
from deploy_kit.metrics.text import parse
from deploy_kit.receipts.bench import EngineCell

_SPEC = ("accept_length", "cycle_seconds")  # our plug-in's histograms; its others are forward phases


@dataclass(frozen=True)
class Counters:
    """Counter values of one scrape by (name, phase), of one tensor-parallel rank, summed over the rest;
    and the histogram of the verifies' times."""

    values: Mapping[tuple[str, str], float]
    verifies: Histogram | None = None

    def since(self, before: Counters) -> Counters:
        """Return the growth since `before`; a counter that fell (the engine restarted) is left out."""
        grown = {key: value - before.values.get(key, 0.0) for key, value in self.values.items()}
        verifies = self.verifies.since(before.verifies or Histogram(0.0, 0.0)) if self.verifies else None
        return Counters({key: value for key, value in grown.items() if value >= 0}, verifies)

    def get(self, name: str, phase: str = "") -> float | None:
        """Return one value, or None when the scrape has none."""
        return self.values.get((name, phase))

    def mean(self, histogram: str, phase: str = "") -> float | None:
        """Return a histogram's mean, or None when it did not move."""
        count, total = self.get(f"{histogram}_count", phase), self.get(f"{histogram}_sum", phase)
        return total / count if count and total is not None and total > 0 else None


def read_counters(text: str) -> Counters:
    """Given a /metrics page of one engine, return the counters used here (ranks that repeat each other are
    counted once). A page of no engine, or of several, gives none."""
    engines = read(parse(text)).engines
    if len(engines) != 1:
        return Counters({})
    (engine,) = engines
    values: dict[tuple[str, str], float] = {}
    for name, histogram in engine.own.items():
        spec = name in _SPEC
        metric = f"deploy_kit_spec_{name}" if spec else "deploy_kit_forward_seconds"
        phase = "" if spec else name
        values[f"{metric}_count", phase] = histogram.count
        if histogram.total is not None:
            values[f"{metric}_sum", phase] = histogram.total
    calls = engine.value("verify_calls")
    if calls is not None:
        values["spec_verify_calls_total", ""] = calls
    return Counters(values, engine.own.get("verify"))


def engine_cell(
    growth: Counters | None, *, requests: int, output_tokens: int, reason: str | None = None
) -> EngineCell:
    """Given the counters' growth over exactly one cell (all its requests began and ended inside), return
    what the engine says. Without counters every value is unknown for the given reason."""
    if growth is None or not growth.values:
        why = reason or "the metrics page has none of the counters"
        return EngineCell(unknown=dict.fromkeys(("accept_length", "verify_seconds", "draft_seconds"), why))
    unknown: dict[str, str] = {}
    accept = growth.mean("deploy_kit_spec_accept_length")
    source = "deploy_kit_spec_accept_length" if accept else None
    calls = growth.get("spec_verify_calls_total")
    if accept is None and calls:
        # This counter moves when a request finishes; here every request finished inside the interval.
        # A request's first token comes from its prefill, not from a verify.
        accept, source = (output_tokens - requests) / calls, "spec_verify_calls_total"
    verify = growth.mean("deploy_kit_forward_seconds", "verify")
    count = growth.get("deploy_kit_forward_seconds_count", "verify")
    drafts = [growth.get("deploy_kit_forward_seconds_sum", phase) for phase in ("draft", "draft_extend")]
    draft = sum(d or 0.0 for d in drafts) / count if count and any(drafts) else None
    speculating = accept is not None or verify is not None
    step = growth.mean("deploy_kit_spec_cycle_seconds") if speculating else None
    step = step or (None if speculating else growth.mean("deploy_kit_forward_seconds", "decode"))
    if speculating:
        for name, value in (("accept_length", accept), ("verify_seconds", verify), ("draft_seconds", draft)):
            if value is None:
                unknown[name] = "its counter did not move: the plug-in is not loaded, or its timer is off"
    else:
        why = "no verify in the interval: the engine does not speculate, or shows no counters of it"
        unknown = dict.fromkeys(("accept_length", "verify_seconds", "draft_seconds"), why)
    return EngineCell(
        accept_length=accept if accept and accept > 0 else None,
        accept_length_source=source,
        verify_count=int(count) if count else (int(calls) if calls else None),
        verify_seconds=verify,
        verify_p95_seconds=growth.verifies.quantile(0.95) if growth.verifies else None,
        draft_seconds=draft,
        step_seconds=step,
        prefill_seconds_total=growth.get("deploy_kit_forward_seconds_sum", "prefill"),
        unknown=unknown,
    )
