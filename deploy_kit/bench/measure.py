"""From answers to a cell's numbers. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deploy_kit.bench.answers import Answer
from deploy_kit.receipts.bench import CellRound, EngineCell, Spread, context_band


@dataclass(frozen=True)
class Sample:
    """One request of a cell: when it was sent (seconds since the cell's start), its answer, its retries."""

    prompt: int
    turn: int
    sent_seconds: float
    answer: Answer
    retries: int = 0

    def as_dict(self, cell: int) -> dict[str, Any]:
        """Return the sample for the receipt: gaps between events in microseconds, tokens of each event."""
        answer = self.answer
        tokens = [count for _, count in answer.events]
        return {
            "cell": cell,
            "prompt": self.prompt,
            "turn": self.turn,
            "sent_seconds": round(self.sent_seconds, 6),
            "ttft_seconds": _rounded(answer.ttft_seconds),
            "e2e_seconds": _rounded(answer.e2e_seconds),
            "prompt_tokens": answer.prompt_tokens,
            "output_tokens": answer.output_tokens,
            "finish_reason": answer.finish_reason,
            "spec_verify_count": answer.spec_verify_count,
            "retries": self.retries,
            "error": answer.error,
            "tokens_are": answer.tokens_are,
            "event_gaps_us": [round(gap * 1e6) for gap in answer.gaps_seconds],
            "event_tokens": [b - a for a, b in zip([0, *tokens], tokens, strict=False)],
        }


def spread(values: Sequence[float]) -> Spread | None:
    """Given samples, return their spread; None without any."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Spread(
        count=len(ordered),
        mean=statistics.fmean(ordered),
        p50=percentile(ordered, 0.50),
        p90=percentile(ordered, 0.90),
        p99=percentile(ordered, 0.99),
        maximum=ordered[-1],
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Given sorted samples, return the percentile, linear between neighbours (numpy's default)."""
    place = (len(ordered) - 1) * share
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def cell_round(
    samples: Sequence[Sample],
    *,
    round_number: int,
    interval_seconds: float,
    engine: EngineCell,
    concurrency: int | None = None,
    rate_per_second: float | None = None,
) -> CellRound:
    """Given all samples of one round of one cell, failed ones included, return its numbers. Speeds count the
    tokens of failed requests too (the engine made them); latencies only those of whole answers."""
    good = [sample.answer for sample in samples if sample.answer.error is None]
    prompts = [answer.prompt_tokens for answer in good if answer.prompt_tokens is not None]
    output = sum(sample.answer.output_tokens for sample in samples)
    decoding = [(a.events[-1][0] - a.events[0][0], a.events[-1][1] - a.events[0][1], len(a.events) - 1)
                for a in good if len(a.events) > 1]  # fmt: skip
    seconds, tokens, steps = (sum(part[i] for part in decoding) for i in range(3))
    counted = all(answer.tokens_are == "reported" for answer in good)
    verifies = [a.spec_verify_count for a in good if a.spec_verify_count]
    if engine.accept_length is None and verifies and len(verifies) == len(good):
        engine = engine.model_copy(
            update={
                "accept_length": sum(a.output_tokens - 1 for a in good) / sum(verifies),
                "accept_length_source": "meta_info.spec_verify_ct",
                "verify_count": engine.verify_count or sum(verifies),
                "unknown": {k: v for k, v in engine.unknown.items() if k != "accept_length"},
            }
        )
    # The engine times a cycle from verify to verify; of plain decoding it times only the forward, without
    # the gaps, so there the client's own clock is the better one.
    engine_cycle = engine.step_seconds if engine.accept_length is not None else None
    client_cycle = seconds / steps if steps and seconds > 0 else None
    return CellRound(
        load="open" if concurrency is None else "closed",
        concurrency=concurrency,
        rate_per_second=rate_per_second,
        context_band=context_band(statistics.median(prompts)) if prompts else "unknown",
        round=round_number,
        requests=len(good),
        errors=len(samples) - len(good),
        retries=sum(sample.retries for sample in samples),
        interval_seconds=interval_seconds,
        prompt_tokens=sum(prompts) if prompts else None,
        output_tokens=output,
        tokens_per_second=output / interval_seconds,
        stream_tokens_per_second=tokens / seconds if tokens and seconds > 0 else None,
        cycle_seconds=engine_cycle or (client_cycle if counted else None),
        client_accept_length=tokens / steps if steps and counted and tokens else None,
        ttft_seconds=spread([a.ttft_seconds for a in good if a.ttft_seconds is not None]),
        itl_seconds=spread([gap for answer in good for gap in answer.gaps_seconds]),
        tpot_seconds=spread([t for a in good if (t := a.tpot_seconds) is not None]),
        e2e_seconds=spread([answer.e2e_seconds for answer in good]),
        engine=engine,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
