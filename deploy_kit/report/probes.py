"""The probes' part of a report: all-reduce latencies, what crashed and why, the fusion's acceptance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deploy_kit.receipts import Receipt
from deploy_kit.report.content import Paragraph, Section, section, table


def probe_section(receipt: Receipt) -> Section | None:
    """Given an all-reduce or fusion receipt, return its section; other kinds give None. A receipt whose
    summary has another shape than this deploy-kit writes gives what can be read of it."""
    if receipt.kind == "allreduce":
        return _allreduce(receipt)
    return _fusion(receipt) if receipt.kind == "fusion" else None


def _allreduce(receipt: Receipt) -> Section | None:
    sizes = _mapping(receipt.summary.get("sizes"))
    candidates = _mapping(receipt.summary.get("candidates"))
    names = list(
        dict.fromkeys(name for entry in sizes.values() for name in _mapping(entry.get("latency_us")))
    )
    rows = []
    for name in names:
        row = [name]
        for entry in sizes.values():
            latency = _mapping(_mapping(entry.get("latency_us")).get(name))
            row.append(_latency(latency, fastest=entry.get("fastest") == name))
        rows.append(tuple(row))
    headers = ("candidate", *(f"{tokens} tokens" for tokens in sizes))
    setting = _mapping(receipt.summary.get("host_setting"))
    verdict = receipt.summary.get("verdict")
    return section(
        f"All-reduce probe {receipt.short_id}",
        Paragraph(f"Verdict: {verdict}. Best setting for the host file: {_setting(setting)}.", strong=True),
        table("Median µs per all-reduce in one graph, with interval; ▸ fastest correct", headers, rows),
        table(
            "Every candidate: what became of it",
            ("candidate", "outcome", "step", "cause"),
            [
                (
                    name,
                    str(entry.get("status")),
                    str(entry.get("step") or "-"),
                    str(entry.get("cause") or "-"),
                )
                for name, entry in candidates.items()
            ],
        ),
        *(Paragraph(str(note)) for note in receipt.summary.get("notes") or [] if isinstance(note, str)),  # type: ignore[union-attr]
    )


def _fusion(receipt: Receipt) -> Section | None:
    candidates = _mapping(receipt.summary.get("candidates"))
    return section(
        f"Fusion acceptance {receipt.short_id}",
        Paragraph(
            f"Verdict: {receipt.summary.get('verdict')}. "
            "Acceptance is about numbers only; bench says whether it pays.",
            strong=True,
        ),
        table(
            "Fused all-reduce + residual + RMSNorm against a float64 reference",
            ("candidate", "acceptance", "cause"),
            [
                (name, str(entry.get("acceptance")), str(entry.get("cause") or "-"))
                for name, entry in candidates.items()
            ],
        ),
        *(Paragraph(str(note)) for note in receipt.summary.get("notes") or [] if isinstance(note, str)),  # type: ignore[union-attr]
    )


def _latency(latency: Mapping[str, Any], *, fastest: bool) -> str:
    median, low, high = (latency.get(key) for key in ("median", "low", "high"))
    if not isinstance(median, (int, float)):
        return "-"
    text = f"{median:.1f}"
    if isinstance(low, (int, float)) and isinstance(high, (int, float)):
        text += f" ({low:.1f} to {high:.1f})"
    return f"▸ {text}" if fastest else text


def _setting(setting: Mapping[str, Any]) -> str:
    if setting.get("candidate") is None:
        return f"unknown ({setting.get('unknown') or 'no reason given'})"
    environment = _mapping(setting.get("environment"))
    words = " ".join(f"{key}={value}" for key, value in environment.items())
    return f"{setting['candidate']}" + (f" ({words})" if words else "")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
