"""Reads what scripts/gpu/real_engine.py left and writes receipts with the conclusions, and tables for a page.

    python scripts/gpu/conclude.py WAVES RECEIPTS [--gpus 2] [--name found]

WAVES holds the waves' folders, unpacked: profiles/, curve/, cost/ of one GPU; pair-curve/, pair-paths/,
pair-found/ of two. NAME comes into the receipts' file names, so that those of an earlier run stay.

Everything here is arithmetic on what was measured; a value that a wave did not give stays out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from deploy_kit.bench.counters import read_counters
from deploy_kit.decision import physics
from deploy_kit.metrics.text import parse
from deploy_kit.receipts import Host, new_receipt, read_receipt
from deploy_kit.receipts.bench import parse_bench

sys.path.insert(0, str(Path(__file__).resolve().parent))
from waves import host_name

PATHS = ("pair-paths", "pair-found")
CATEGORIES = {
    "decode": ("decode",),
    "prefill": ("extend",),
    "draft": ("eagle_draft",),
    "verify": ("target_verify",),
    "draft_extend": ("eagle_draft_extend",),
}


def interpolate_crossing(points: Sequence[tuple[float, float]], level: float) -> float | None:
    """Given (accept length, speed) points, return the accept length where the line through neighbours
    reaches `level`; None when it does not within the measured points.

    >>> interpolate_crossing([(1.0, 50.0), (2.0, 150.0)], 100.0)
    1.5
    """
    ordered = sorted(points)
    for (low, slow), (high, fast) in pairwise(ordered):
        if slow <= level <= fast and fast > slow:
            return low + (high - low) * (level - slow) / (fast - slow)
    return None


def engine_seconds(text: str) -> dict[str, float]:
    """Given a /metrics page, return rank 0's own forward_execution_seconds_total by category."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("sglang:forward_execution_seconds_total{") and 'tp_rank="0"' in line:
            found[line.split('category="')[1].split('"')[0]] = float(line.rsplit(" ", 1)[1])
    return found


def telemetry(name: str, text: str, asked: float | None) -> dict[str, Any]:
    """Given an engine's last /metrics page, compare the plug-in's sums with SGLang's own counters."""
    parse(text)  # raises on a page that is none
    counters, own = read_counters(text), engine_seconds(text)
    phases: dict[str, Any] = {}
    for phase, categories in CATEGORIES.items():
        total = counters.get("deploy_kit_forward_seconds_sum", phase)
        if total is None:
            continue
        sglang = sum(own.get(category, 0.0) for category in categories)
        phases[phase] = {
            "forwards": int(counters.get("deploy_kit_forward_seconds_count", phase) or 0),
            "plugin_seconds": total,
            "sglang_seconds": sglang,
            "difference_seconds": total - sglang,
        }
    return {
        "engine": name,
        "phases": phases,
        "sglang_categories": own,
        "accept_length_asked": asked,
        "accept_length_mean": counters.mean("deploy_kit_spec_accept_length"),
        "verifies_of_requests": counters.get("deploy_kit_spec_accept_length_count"),
        "sglang_verify_calls": counters.get("spec_verify_calls_total"),
        "cycle_mean_seconds": counters.mean("deploy_kit_spec_cycle_seconds"),
    }


def cells_of(waves: Path, *, paths: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (engine's name, one round of one cell) of the bench receipts: of the wave that compares paths of
    all-reduce, or of all others."""
    for path in sorted(waves.glob("*/receipts/*/*.json")):
        if (path.parents[2].name in PATHS) is not paths:
            continue
        _subject, summary = parse_bench(read_receipt(path), path)
        for cell in summary.cells:
            yield path.parent.name, cell.model_dump()


def summarize(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Given the rounds of one cell, return their means and the sum's prediction of one stream's speed."""

    def mean(values: Sequence[float | None]) -> float | None:
        present = [value for value in values if value is not None]
        return statistics.fmean(present) if present else None

    engine = [cell["engine"] for cell in cells]
    step = mean([e["step_seconds"] for e in engine])
    speculating = any(e["accept_length"] is not None for e in engine)
    accept = mean([e["accept_length"] for e in engine]) if speculating else 1.0
    stream = mean([cell["stream_tokens_per_second"] for cell in cells])
    predicted = physics.speed(accept, step) if accept and step else None
    draft = mean([e["draft_seconds"] for e in engine])
    verify = mean([e["verify_seconds"] for e in engine])
    return {
        "rounds": len(cells),
        "errors": sum(cell["errors"] for cell in cells),
        "tokens_per_second": mean([cell["tokens_per_second"] for cell in cells]),
        "stream_tokens_per_second": stream,
        "accept_length": accept if speculating else None,
        "step_seconds": step,
        "draft_seconds": draft,
        "verify_seconds": verify,
        "gap_seconds": step - draft - verify if step and draft and verify else None,
        "prefill_share_of_interval": mean(
            [c["engine"]["prefill_seconds_total"] / c["interval_seconds"] for c in cells
             if c["engine"]["prefill_seconds_total"] is not None]
        ),
        "predicted_stream_tokens_per_second": predicted,
        "prediction_over_measured": predicted / stream if predicted and stream else None,
    }  # fmt: skip


def table_of(rounds: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[tuple[str, int], dict[str, Any]]:
    """Given (engine, round of a cell), return each engine's summary at each concurrency."""
    grouped: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for name, cell in rounds:
        grouped.setdefault((name, cell["concurrency"]), []).append(cell)
    return {key: summarize(cells) for key, cells in grouped.items()}


def break_even(table: Mapping[tuple[str, int], Mapping[str, Any]], concurrency: int) -> dict[str, Any]:
    """Given the summaries, return the computed break-even at one load and where the measured curves cross."""
    base = table["baseline", concurrency]
    eagle = [s for (name, c), s in table.items() if c == concurrency and name.startswith("eagle3")]
    cycle = statistics.fmean(s["step_seconds"] for s in eagle)
    computed = physics.break_even_accept_length(cycle, base["stream_tokens_per_second"])
    result: dict[str, Any] = {
        "concurrency": concurrency,
        "baseline_stream_tokens_per_second": base["stream_tokens_per_second"],
        "baseline_tokens_per_second": base["tokens_per_second"],
        "cycle_seconds": cycle,
        "cycle_seconds_range": [min(s["step_seconds"] for s in eagle), max(s["step_seconds"] for s in eagle)],
        "computed_accept_length": computed,
    }
    for what, key in (("stream", "stream_tokens_per_second"), ("total", "tokens_per_second")):
        crossing = interpolate_crossing([(s["accept_length"], s[key]) for s in eagle], base[key])
        result[f"measured_crossing_{what}"] = crossing
        result[f"computed_over_measured_{what}"] = computed / crossing if crossing else None
    return result


def toggles(results: Mapping[str, Any]) -> dict[str, Any]:
    """Given the waves' results, return for each engine whose plug-in was switched the speed with it over the
    speed without, by block."""
    found: dict[str, Any] = {}
    for result in results.values():
        for label, blocks in result.get("toggled", {}).items():
            ratios = [sum(1 / v for v in b["off"]) / sum(1 / v for v in b["on"]) for b in blocks]
            found[label] = {
                "blocks": len(ratios),
                "median_ratio": statistics.median(ratios),
                "ratios": [round(r, 4) for r in ratios],
            }
    return found


def traces(results: Mapping[str, Any]) -> dict[str, Any]:
    """Given the waves' results, return for each traced engine and phase the mean time of a forward as the
    plug-in counted it and as the profiler's trace has it, over the same forwards."""
    found: dict[str, Any] = {}
    for result in results.values():
        for label, trace in result.get("traces", {}).items():
            if "phases" not in trace:
                found[label] = {"unknown": trace.get("error", "no trace")}
                continue
            before, after = (_lines(trace[f"metrics_{when}"]) for when in ("before", "after"))
            phases = {}
            for name, seen in trace["phases"].items():
                counted, seconds = (
                    sum(value - before.get(key, 0.0) for key, value in after.items()
                        if f"forward_seconds_{what}" in key and f'phase="{name}"' in key)
                    for what in ("count", "sum")
                )  # fmt: skip
                mean = seen["timer_seconds"] / seen["forwards"]
                phases[name] = {
                    "forwards_in_trace": seen["forwards"],
                    "forwards_counted": int(counted),
                    "trace_mean_seconds": mean,
                    "trace_first_to_last_kernel_mean_seconds": seen["span_seconds"] / seen["forwards"],
                    "plugin_mean_seconds": seconds / counted if counted else None,
                    "plugin_over_trace": seconds / counted / mean if counted else None,
                    "device_activities_a_forward": seen["device_activities_a_forward"],
                }
            found[label] = phases
    return found


def _lines(lines: Sequence[str]) -> dict[str, float]:
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


def first_light(waves: Path) -> dict[str, Any]:
    """Return what `deploy-kit firstlight` did in the wave that ran it: outcome, exit code, seconds a step."""
    for path in sorted(waves.glob("*/firstlight.json")):
        told = json.loads(path.read_text())
        kept = ("outcome", "exit_code", "seconds", "why")
        steps = {name: {key: step.get(key) for key in kept} for name, step in told["steps"].items()}
        return {"rehearsal": told["rehearsal"], "failed": told["failed"], "steps": steps}
    return {}


def main(waves: Path, receipts: Path, gpus: int, name: str) -> int:
    """Write the receipts and print the tables."""
    results = {p.parent.name: json.loads(p.read_text()) for p in sorted(waves.glob("*/result.json"))}
    machine = next(iter(results.values()))["machine"]
    prefix = ("h200" if gpus == 1 else f"h200x{gpus}") + (f"-{name}" if name else "")
    host = Host(
        name=host_name(gpus), facts={"gpus": gpus, **{k: machine[k] for k in ("gpu", "fields", "cpus")}}
    )
    subject = {
        "model": "Llama-like, hidden 7168, 61 layers, dummy weights",
        "tensor_parallel": gpus,
        "by": "scripts/gpu/real_engine.py",
    }
    asked = {e["name"]: e["accept_length"] for r in results.values() for e in r["engines"]}

    def write(kind: str, samples: Sequence[Any], summary: Mapping[str, Any]) -> None:
        receipt = new_receipt(
            kind=kind, host=host, rehearsal=False, subject=subject, samples=samples, summary=summary,
            versions=machine["versions"],
        )  # fmt: skip
        (receipts / f"{prefix}-{kind}.json").write_text(
            json.dumps(receipt.model_dump(mode="json"), indent=1) + "\n"
        )

    engines = []
    for path in sorted(waves.glob("*/metrics-*.txt")):
        engine = path.stem.removeprefix("metrics-")
        if not engine.endswith("-bare"):
            engines.append({"wave": path.parent.name} | telemetry(engine, path.read_text(), asked[engine]))
    pairs: dict[str, Any] = {}
    for wave, result in results.items():
        for label, samples in result.get("pairs", {}).items():
            by_streams: dict[int, list[float]] = {}
            for sample in samples:
                speeds = sample.get("tokens_per_second")
                values = list(speeds.values()) if speeds else None
                if speeds:
                    one, other = (name.strip() for name in label.split(" : "))
                    values = [speeds[one], speeds[other]]
                else:
                    values = [sample["with_plugin"], sample["without_plugin"]]
                by_streams.setdefault(sample["streams"], []).append(values[0] / values[1])
            for streams, ratios in by_streams.items():
                quarter = statistics.quantiles(ratios, n=4)
                pairs[f"{wave}: {label}, {streams} streams"] = {
                    "pairs": len(ratios), "median_ratio": statistics.median(ratios),
                    "quartiles": [quarter[0], quarter[2]],
                }  # fmt: skip
    write(
        "telemetry",
        [
            {"wave": w, "pairs": r.get("pairs", {}), "toggled": r.get("toggled", {})}
            for w, r in results.items()
        ],
        {
            "engines": engines,
            "speed_ratio_with_over_without": pairs,
            "speed_ratio_switched_on_over_off": toggles(results),
            "against_profiler_trace": traces(results),
        },
    )
    starts = [{"wave": w, **e} for w, r in results.items() for e in r["engines"]]
    write(
        "startup",
        starts,
        {"ready_seconds": {f"{s['wave']}: {s['name']}": s["ready_seconds"] for s in starts}},
    )

    rounds = list(cells_of(waves, paths=False))
    table = table_of(rounds)
    loads = sorted({concurrency for _name, concurrency in table})
    curve = [break_even(table, load) for load in loads]
    profiles = [{"engine": engine, "concurrency": load, **s} for (engine, load), s in table.items()]
    if rounds:
        write(
            "break-even",
            [{"engine": engine, **cell} for engine, cell in rounds],
            {"loads": curve, "profiles": profiles},
        )
    compared = list(cells_of(waves, paths=True))
    if compared:
        rows = [{"engine": n, "concurrency": c, **s} for (n, c), s in table_of(compared).items()]
        nccl = {wave: result.get("best_nccl") for wave, result in results.items() if wave in PATHS}
        write("paths", [{"engine": n, **cell} for n, cell in compared], {"engines": rows, "best_nccl": nccl})
        profiles = [*profiles, *rows]
    if light := first_light(waves):
        write("firstlight", [], light)

    for row in engines:
        gap = max((abs(p["difference_seconds"]) for p in row["phases"].values()), default=None)
        print(row["wave"], row["engine"], "largest difference s", gap, "accept", row["accept_length_mean"],
              {k: v["forwards"] for k, v in row["phases"].items()})  # fmt: skip
    for label, pair in pairs.items():
        print(label, pair)
    for profile in profiles:
        print({k: round(v, 5) if isinstance(v, float) else v for k, v in profile.items()})
    for point in curve:
        print(point)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("waves", type=Path)
    parser.add_argument("receipts", type=Path)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--name", default="")
    given = parser.parse_args()
    sys.exit(main(given.waves, given.receipts, given.gpus, given.name))
