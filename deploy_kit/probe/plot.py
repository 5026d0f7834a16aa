"""Latency against size, log-log, as PNG and as one self-contained HTML page."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import write_atomically
from deploy_kit.probe.runner import ANCHOR
from deploy_kit.probe.verdict import STORY_NAME

_NAMED = {ANCHOR: ("#1f4e9c", "o"), STORY_NAME: ("#c0392b", "s"), "host-file": ("#7d5ba6", "D")}
_BEST = ("#12805c", "#e08e0b", "#0a8fb3", "#a3336e", "#5c6b1f", "#444444")
_MARKS = ("^", "v", "P", "X", "<", ">")


def write_plots(path: Path, summary: Mapping[str, Any], title: str, lines: Sequence[str]) -> list[Path]:
    """Write PATH as PNG and, beside it with the same stem, as HTML; return both paths.

    Raises `DeployKitError` when Matplotlib is not installed.
    """
    figure = draw(summary, title)
    png, svg = io.BytesIO(), io.StringIO()
    figure.savefig(png, format="png", dpi=130)
    figure.savefig(svg, format="svg")
    png_path, html_path = path.with_suffix(".png"), path.with_suffix(".html")
    write_atomically(png_path, png.getvalue())
    write_atomically(html_path, page(svg.getvalue(), summary, title, lines))
    return [png_path, html_path]


def draw(summary: Mapping[str, Any], title: str) -> Any:
    """Return a Matplotlib figure of a summary: finalists in colour, the rest of the first pass in grey."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.ticker import FixedLocator, NullLocator
    except ImportError as error:
        raise DeployKitError(
            "plots need Matplotlib, which is not installed",
            key="--plot",
            remedy="pip install 'deploy-kit[ops]', or leave --plot out: the receipt holds every sample",
            exit_code=ExitCode.FAILURE,
        ) from error
    matplotlib.rcParams["svg.fonttype"] = "none"
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    axes = figure.subplots()
    sizes = summary["sizes"]
    kib = {tokens: entry["bytes"] / 1024 for tokens, entry in sizes.items()}
    finalists = list(dict.fromkeys(name for entry in sizes.values() for name in entry["latency_us"]))
    grey_labelled = False
    for name, candidate in summary["candidates"].items():
        first = candidate["screening_us"]
        if name in finalists or not first or candidate["status"] != "ok":
            continue
        label = None if grey_labelled else "others, first pass only"
        axes.plot(
            [kib[t] for t in first],
            list(first.values()),
            color="#c4c4c4",
            linewidth=0.9,
            zorder=1,
            label=label,
        )
        grey_labelled = True
    others = [name for name in finalists if name not in _NAMED]
    others.sort(key=lambda name: -sum(entry.get("fastest") == name for entry in sizes.values()))
    for position, name in enumerate([*(n for n in _NAMED if n in finalists), *others]):
        colour, mark = _NAMED.get(name, (_BEST[position % len(_BEST)], _MARKS[position % len(_MARKS)]))
        points = [
            (kib[t], entry["latency_us"][name]) for t, entry in sizes.items() if name in entry["latency_us"]
        ]
        middles = [interval["median"] for _, interval in points]
        errors = [
            [interval["median"] - interval["low"] for _, interval in points],
            [interval["high"] - interval["median"] for _, interval in points],
        ]
        wins = sum(entry.get("fastest") == name for entry in sizes.values())
        axes.errorbar(
            [x for x, _ in points], middles, yerr=errors, color=colour, marker=mark, markersize=5, capsize=2,
            linewidth=2.2 if wins or name in _NAMED else 1.2, zorder=3,
            label=name + (f" (fastest at {wins} of {len(sizes)})" if wins else ""),
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for tokens, x in kib.items():
        axes.axvline(x, color="#eeeeee", linewidth=0.8, zorder=0)
        axes.annotate(
            f"{tokens} tok", (x, 1.0), xycoords=("data", "axes fraction"), xytext=(0, -4),
            textcoords="offset points", ha="center", va="top", fontsize=8, color="#555555",
        )  # fmt: skip
    axes.xaxis.set_major_locator(FixedLocator(list(kib.values())))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([f"{x:.0f}" for x in kib.values()])
    _latency_ticks(axes)
    axes.set_xlabel("message, KiB (the model's sizes are marked with their tokens)")
    axes.set_ylabel("µs per all-reduce, in one graph")
    axes.set_title(title, fontsize=11, loc="left")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return figure


def _latency_ticks(axes: Any) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    low, high = axes.get_ylim()
    steps = [m * 10.0**e for e in range(-1, 7) for m in (1, 1.5, 2, 3, 4, 5, 7)]
    inside = [step for step in steps if low <= step <= high]
    axes.yaxis.set_major_locator(FixedLocator(inside))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_yticklabels([f"{step:g}" for step in inside])
    axes.grid(axis="y", color="#eeeeee", linewidth=0.8)


def page(svg: str, summary: Mapping[str, Any], title: str, lines: Sequence[str]) -> str:
    """Return one HTML page that needs nothing else: the plot, the verdict, the outcomes, the numbers."""
    drawing = svg[svg.index("<svg") :]
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(entry['status']))}</td>"
        f"<td>{html.escape(str(entry['cause']))}</td></tr>"
        for name, entry in summary["candidates"].items()
    )
    head = "".join(f"<th>{html.escape(tokens)} tok</th>" for tokens in summary["sizes"])
    names = dict.fromkeys(name for entry in summary["sizes"].values() for name in entry["latency_us"])
    numbers = "".join(
        f"<tr><td>{html.escape(name)}</td>"
        + "".join(
            f"<td class='n{' best' if entry.get('fastest') == name else ''}'>"
            + (f"{entry['latency_us'][name]['median']:.1f}" if name in entry["latency_us"] else "")
            + "</td>"
            for entry in summary["sizes"].values()
        )
        + "</tr>"
        for name in names
    )
    verdict = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    data = json.dumps(summary, ensure_ascii=True).replace("</", "<\\/")
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{html.escape(title)}</title>"
        "<style>body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;"
        "max-width:72rem;padding:0 1rem;color:#222}"
        "svg{max-width:100%;height:auto}table{border-collapse:collapse;font-size:13px}"
        "td,th{border-bottom:1px solid #ddd;padding:.2rem .6rem;text-align:left;vertical-align:top}"
        ".n{text-align:right;font-variant-numeric:tabular-nums}.best{font-weight:700;color:#12805c}</style>"
        f"<h1>{html.escape(title)}</h1>{drawing}<h2>Verdict</h2><ul>{verdict}</ul>"
        f"<h2>Median µs per all-reduce</h2><table><tr><th>candidate</th>{head}</tr>{numbers}</table>"
        "<h2>Every candidate</h2><table>"
        f"<tr><th>candidate</th><th>outcome</th><th>why</th></tr>{rows}</table>"
        f"<script type='application/json' id='summary'>{data}</script></html>\n"
    )
