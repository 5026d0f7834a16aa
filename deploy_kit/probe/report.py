"""What people see of a run: tables on the terminal, and the receipt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group as RichGroup
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from deploy_kit.probe.machine import steady
from deploy_kit.probe.runner import ANCHOR, ProbeRun
from deploy_kit.receipts import Host, Receipt, new_receipt

REHEARSAL = "REHEARSAL over gloo on CPU: it tests the probe, and says nothing about GPUs or NCCL"


def rehearsal_label(run: ProbeRun) -> str:
    """Return what a run that decides nothing is called."""
    if run.settings.shared_gpu:
        return (
            "REHEARSAL with all ranks on one GPU: results are checked, nothing is timed, no peer is reached"
        )
    return REHEARSAL


def make_receipt(
    run: ProbeRun, summary: Mapping[str, Any], *, kind: str, host_name: str, model_name: str, command: str
) -> Receipt:
    """Return the run's receipt with every sample, the machine's facts and its clocks while measuring."""
    settings = run.settings
    facts = next((record.facts for record in run.records.values() if record.facts), {})
    versions: dict[str, str] = {
        key: str(facts[key]) for key in ("python", "torch", "cuda", "nccl") if key in facts
    }
    return new_receipt(
        kind=kind,
        host=Host(
            name=host_name,
            facts={
                **run.machine_facts,
                "device": facts.get("device"),
                "capability": facts.get("capability"),
                "while_measuring": steady(run.snapshots),
            },
        ),
        rehearsal=settings.is_rehearsal,
        versions=versions,
        subject={
            "model": model_name,
            "hidden": settings.hidden,
            "element_bytes": 2,
            "tokens": list(settings.tokens),
            "allreduces_per_graph": settings.count,
            "ranks": settings.ranks,
            "backend": settings.backend,
            "in_graph": settings.backend == "nccl",
            "budget_seconds": settings.budget_seconds,
            "base_environment": {
                name: value
                for name, value in sorted(
                    settings.environment(next(iter(run.records.values())).candidate).items()
                )
                if name.startswith(("NCCL_", "TORCH_SYMM_", "CUDA_VISIBLE_"))
                and name not in next(iter(run.records.values())).candidate.environment
            },
            "command": command,
        },
        samples=[
            {
                "candidate": name,
                "stage": stage,
                "tokens": tokens,
                "rounds_us": rounds,
            }
            for name, record in run.records.items()
            for stage, sizes in record.samples.items()
            for tokens, rounds in sizes.items()
        ],
        summary=dict(summary),
    )


def describe(run: ProbeRun, summary: Mapping[str, Any]) -> RenderableType:
    """Return the all-reduce run for the terminal: what failed, the finalists' latencies, the verdict."""
    parts: list[RenderableType] = []
    if run.settings.is_rehearsal:
        parts.append(Text(rehearsal_label(run), style="yellow"))
    parts.append(_latencies(run, summary))
    parts.append(_outcomes(summary))
    parts += [Text(line) for line in verdict_lines(run, summary)]
    return RichGroup(*parts)


def verdict_lines(run: ProbeRun, summary: Mapping[str, Any]) -> list[str]:
    """Return the verdict in sentences."""
    lines = []
    for tokens, size in summary["sizes"].items():
        if size.get("fastest") is None:
            lines.append(f"{tokens} tokens: unknown ({size.get('unknown')})")
            continue
        latency = size["latency_us"][size["fastest"]]
        ratios = "".join(
            f", {_percent(size[key]['median'])} {words}"
            for key, words in (
                ("ratio_to_default", "NCCL's default"),
                ("ratio_to_story", "the story's choice"),
            )
            if key in size and (size["fastest"], key) != (ANCHOR, "ratio_to_default")
        )
        tie = "" if size["sure"] else f"; within noise: {', '.join(size['ties'])}"
        lines.append(f"{tokens} tokens: {size['fastest']} {latency['median']:.1f} µs{ratios}{tie}")
    setting = summary["host_setting"]
    if setting.get("candidate"):
        environment = (
            " ".join(f"{name}={value}" for name, value in setting["environment"].items()) or "nothing set"
        )
        ratio = setting.get("ratio_to_default", {}).get("median")
        spread = "" if ratio is None else f" ({_percent(ratio)} NCCL's default over all sizes)"
        lines.append(
            f"For the host file: {setting['candidate']}: {environment}{spread}; "
            f"{setting.get('why', setting.get('unknown'))}"
        )
    else:
        lines.append(f"For the host file: unknown ({setting.get('unknown')})")
    for name, forward in summary["forwards"]["candidates"].items():
        if forward["decode_ms"] is not None and forward["verify_ms"] is not None:
            lines.append(
                f"All-reduces of one forward with {name}: decode {forward['decode_ms']:.2f} ms, "
                f"verify of {summary['forwards']['verify_tokens']} tokens {forward['verify_ms']:.2f} ms"
            )
    even = summary["forwards"]["break_even"]
    if "unknown" in even:
        lines.append(f"Break-even accept length: unknown; {even['unknown']}")
    else:
        lines.append(f"Break-even accept length as measured: {even['measured_accept_length']:.2f}")
        lines += [
            f"  with {name}: {entry['accept_length']:.2f} (cycle {entry['cycle_ms']:.1f} ms, "
            f"baseline {entry['baseline_tokens_per_second']:.0f} tok/s)"
            if "accept_length" in entry
            else f"  with {name}: unknown; {entry['unknown']}"
            for name, entry in even["with"].items()
        ]
    if summary["left_out"]:
        lines.append(f"Not measured for lack of budget: {', '.join(summary['left_out'][:12])}")
    lines += list(summary["notes"])
    lines.append(f"{len(run.records)} candidates in {summary['seconds']:.0f} s")
    return lines


def describe_fusion(run: ProbeRun, summary: Mapping[str, Any]) -> RenderableType:
    """Return the fusion run for the terminal."""
    table = Table(title="Fused all-reduce + residual + RMSNorm against the float64 reference")
    for column in ("candidate", "acceptance", "why", "gap to unfused (norm)"):
        table.add_column(column)
    for tokens in run.settings.tokens:
        table.add_column(f"{tokens} tok\nfused / unfused µs", justify="right")
    for name, entry in summary["candidates"].items():
        gap = entry.get("largest_gap_to_unfused")
        table.add_row(
            name,
            entry["acceptance"],
            entry["cause"][:120],
            "" if gap is None else f"{gap['norm']:.4f}",
            *(
                f"{size['fused_us']['median']:.1f} / {size['unfused_us']['median']:.1f}" if size else ""
                for size in (entry["sizes"].get(str(tokens)) for tokens in run.settings.tokens)
            ),
        )
    parts: list[RenderableType] = [table]
    if run.settings.is_rehearsal:
        parts.insert(0, Text(rehearsal_label(run), style="yellow"))
    parts.append(Text(f"verdict: {summary['verdict']}"))
    return RichGroup(*parts)


def _latencies(run: ProbeRun, summary: Mapping[str, Any]) -> Table:
    table = Table(
        title=f"µs per all-reduce, {run.settings.count} a graph, {run.settings.ranks} ranks: median [95 %]"
    )
    table.add_column("candidate")
    for tokens in run.settings.tokens:
        size = summary["sizes"][str(tokens)]
        table.add_column(f"{tokens} tok\n{size['bytes'] / 1024:.0f} KiB", justify="right")
    names = dict.fromkeys(name for size in summary["sizes"].values() for name in size["latency_us"])
    order = sorted(names, key=lambda name: _mean_latency(name, summary))
    for name in order:
        cells: list[Text] = []
        for tokens in run.settings.tokens:
            size = summary["sizes"][str(tokens)]
            interval = size["latency_us"].get(name)
            if interval is None:
                cells.append(Text(""))
                continue
            text = f"{interval['median']:.1f} [{interval['low']:.1f}-{interval['high']:.1f}]"
            cells.append(Text(text, style="bold green" if name == size["fastest"] else ""))
        table.add_row(name, *cells)
    return table


def _outcomes(summary: Mapping[str, Any]) -> Table:
    table = Table(title="Every candidate")
    for column in ("candidate", "outcome", "where and why", "first pass, µs"):
        table.add_column(column)
    for name, entry in summary["candidates"].items():
        ranks = f"rank {', '.join(map(str, entry['ranks']))}: " if entry["ranks"] else ""
        step = f"{entry['step']}: " if entry["step"] else ""
        why = "" if entry["status"] == "ok" else f"{step}{ranks}{entry['cause']}"
        table.add_row(
            name,
            entry["status"],
            Text(why[:160]),
            " ".join(f"{value:.0f}" for value in entry["screening_us"].values()),
        )
    return table


def _mean_latency(name: str, summary: Mapping[str, Any]) -> float:
    found: list[float] = [
        size["latency_us"][name]["median"] for size in summary["sizes"].values() if name in size["latency_us"]
    ]
    return sum(found) / len(found)


def _percent(ratio: float) -> str:
    return f"{abs(1 - ratio) * 100:.0f} % {'under' if ratio <= 1 else 'over'}"
