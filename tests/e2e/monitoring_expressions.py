"""Every expression that Prometheus is asked: of all dashboards and all rules. Pure: tested on its own too."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
NO_GPU = "needs GPUs (dcgm-exporter), which a rehearsal has not"
QUIET = "an alert: no answer means that nothing is wrong"
# Expressions without data on a live rehearsal under a few requests, by a part of the expression: the reason.
EXCEPTIONS = {
    "DCGM_FI_": NO_GPU,
    ">= 16.5": "needs more than 16 requests in one verify; the rehearsal's plan allows 8 at once",
}


@dataclass(frozen=True)
class Panel:
    """One panel of a dashboard; `excused` when its description says that it needs GPUs."""

    where: str
    expressions: tuple[str, ...]
    excused: bool


@dataclass(frozen=True)
class Asked:
    """One expression: where it stands, and why it may have no answer (None: it must have one)."""

    where: str
    expression: str
    exception: str | None


def fill_in(expression: str) -> str:
    """Given a dashboard's expression, return it with Grafana's variables replaced: everything, one minute."""
    for name, value in {
        "$__rate_interval": "1m", "$__interval": "15s", "$instance": ".*", "$host": ".*"
    }.items():  # fmt: skip
        expression = expression.replace(name, value)
    return expression


def _exception(expression: str) -> str | None:
    return next((reason for part, reason in EXCEPTIONS.items() if part in expression), None)


def all_panels() -> list[Panel]:
    """Return every panel of the dashboards, in their order."""
    return [
        Panel(
            f"{path.stem}: {panel['title']}",
            tuple(fill_in(target["expr"]) for target in panel["targets"]),
            "Needs GPUs" in panel["description"],
        )
        for path in sorted((ROOT / "monitoring/grafana/dashboards").glob("*.json"))
        for panel in json.loads(path.read_text())["panels"]
    ]


def all_expressions() -> list[Asked]:
    """Return every expression of the dashboards and the rules, in their order."""
    asked = []
    for path in sorted((ROOT / "monitoring/grafana/dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                expression = fill_in(target["expr"])
                asked.append(Asked(f"{path.stem}: {panel['title']}", expression, _exception(expression)))
    for path in sorted((ROOT / "monitoring/prometheus/rules").glob("*.yml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                name = rule.get("record") or rule["alert"]
                exception = QUIET if "alert" in rule else _exception(rule["expr"])
                asked.append(Asked(f"{path.stem}: {name}", rule["expr"], exception))
    return asked
