"""Reads a torch profiler's trace of an engine whose forwards are marked (measuring_plugin.py): the device
time of each phase as the profiler saw it, to hold against what the telemetry plug-in counted meanwhile.

    python3 scripts/gpu/trace_phases.py TRACE.json.gz
"""

from __future__ import annotations

import gzip
import json
import statistics
import sys
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MARK = "kit "
ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCHES = {"cuda_runtime", "cuda_driver"}


def phases(events: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Given a trace's events, return by phase: forwards, and the sums in seconds of `span_seconds` (first to
    last work on the device) and `timer_seconds` (what a pair of device events around the forward reads: from
    the end of earlier work, or from the launch when the device was idle, to the last work's end).

    A forward is a marked range on a CPU thread; its work on the device is what was launched within it.
    """
    marks: list[tuple[float, float, str, Any]] = []
    launches: list[tuple[float, Any, int]] = []
    device: dict[int, list[tuple[float, float]]] = {}
    ends: list[float] = []
    for event in events:
        if event.get("ph") != "X":
            continue
        category, began = event.get("cat"), float(event["ts"])
        if category == "user_annotation" and str(event["name"]).startswith(MARK):
            name = str(event["name"])[len(MARK) :]
            marks.append((began, began + float(event["dur"]), name, event.get("tid")))
        elif category in LAUNCHES:
            correlation = event.get("args", {}).get("correlation")
            if correlation is not None:
                launches.append((began, event.get("tid"), int(correlation)))
        elif category in ON_DEVICE:
            correlation = event.get("args", {}).get("correlation")
            ended = began + float(event.get("dur", 0.0))
            ends.append(ended)
            if correlation is not None:
                device.setdefault(int(correlation), []).append((began, ended))
    ends.sort()
    by_thread: dict[Any, list[tuple[float, int]]] = {}
    for began, thread, correlation in sorted(launches, key=lambda launch: launch[0]):
        by_thread.setdefault(thread, []).append((began, correlation))
    found: dict[str, dict[str, Any]] = {}
    for began, ended, name, thread in sorted(marks):
        mine = by_thread.get(thread, [])
        first = bisect_right(mine, (began, -1))
        last = bisect_right(mine, (ended, sys.maxsize))
        work = [span for _at, correlation in mine[first:last] for span in device.get(correlation, ())]
        if not work:
            continue
        start, end = min(span[0] for span in work), max(span[1] for span in work)
        before = bisect_right(ends, start) - 1
        earlier = ends[before] if before >= 0 else began
        timer_start = min(start, max(earlier, began))
        phase = found.setdefault(name, {"spans": [], "timers": [], "works": []})
        phase["spans"].append((end - start) / 1e6)
        phase["timers"].append((max(end, ended) - timer_start) / 1e6)
        phase["works"].append(len(work))
    return {
        name: {
            "forwards": len(phase["spans"]),
            "span_seconds": sum(phase["spans"]),
            "timer_seconds": sum(phase["timers"]),
            "median_span_seconds": statistics.median(phase["spans"]),
            "device_activities_a_forward": statistics.median(phase["works"]),
        }
        for name, phase in found.items()
    }


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Given a trace file, return its phases."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as stream:
        return phases(json.load(stream)["traceEvents"])


if __name__ == "__main__":
    print(json.dumps(read(Path(sys.argv[1])), indent=1))
