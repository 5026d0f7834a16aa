"""A bench receipt as a table for people."""

from __future__ import annotations

from deploy_kit.receipts import Receipt
from deploy_kit.receipts.bench import CellRound, Spread, parse_bench


def describe(receipt: Receipt) -> str:
    """Given a bench receipt, return its cells as a table, one line a round, and what is unknown or failed."""
    subject, summary = parse_bench(receipt)
    lines = []
    if subject.stand_in:
        lines.append(f"STAND-IN SERVER ({subject.stand_in}): measures the client, not an engine")
    elif receipt.rehearsal:
        lines.append("REHEARSAL: says nothing about real hardware")
    label = "+".join((subject.profile, *subject.levers))
    lines.append(
        f"receipt {receipt.short_id}   {label} on {receipt.host.name}, model {subject.model}, "
        f"{subject.workload.output_tokens} tokens an answer, prompts {subject.workload.name}"
    )
    head = ("load", "round", "tok/s", "per stream", "TTFT p50/p99 ms", "TPOT p50 ms", "gap p50/p99 ms")
    rows: list[tuple[str, ...]] = [(*head, "accept", "cycle ms", "verify ms", "errors")]
    rows.extend(_row(cell) for cell in summary.cells)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines.extend(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
    lines.extend(f"error ({count} x): {text}" for text, count in summary.errors.items())
    reasons = {f"{name}: {why}" for cell in summary.cells for name, why in cell.engine.unknown.items()}
    lines.extend(f"unknown {text}" for text in sorted(reasons))
    return "\n".join(lines)


def _row(cell: CellRound) -> tuple[str, ...]:
    return (
        f"C={cell.concurrency}" if cell.concurrency else f"{cell.rate_per_second:g}/s",
        str(cell.round + 1),
        f"{cell.tokens_per_second:.1f}",
        "unknown" if cell.stream_tokens_per_second is None else f"{cell.stream_tokens_per_second:.1f}",
        _pair(cell.ttft_seconds),
        "unknown" if cell.tpot_seconds is None else f"{cell.tpot_seconds.p50 * 1000:.2f}",
        _pair(cell.itl_seconds),
        _number(cell.engine.accept_length, 1, 2) if cell.engine.accept_length else _client(cell),
        _number(cell.cycle_seconds, 1000, 2),
        _number(cell.engine.verify_seconds, 1000, 2),
        str(cell.errors) + (f" (+{cell.retries} retries)" if cell.retries else ""),
    )


def _client(cell: CellRound) -> str:
    # The tokens of an event, as the client saw them: marked, since events may be merged on the way.
    return "unknown" if cell.client_accept_length is None else f"~{cell.client_accept_length:.2f}"


def _pair(values: Spread | None) -> str:
    return "unknown" if values is None else f"{values.p50 * 1000:.1f}/{values.p99 * 1000:.1f}"


def _number(value: float | None, scale: float, digits: int) -> str:
    return "unknown" if value is None else f"{value * scale:.{digits}f}"
