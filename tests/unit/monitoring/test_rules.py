"""The rules' own order: alerts have runbook sections and tests, and use metrics that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
RULES = ROOT / "monitoring" / "prometheus" / "rules"
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((RULES / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
NAMES = {rule["alert"] for rule in ALERTS}


def test_there_are_eleven_alerts() -> None:
    assert len(NAMES) == 11


def test_each_alert_has_its_runbook_section() -> None:
    text = (ROOT / "docs" / "runbooks" / "alerts.md").read_text()
    sections = {line[3:].strip() for line in text.splitlines() if line.startswith("## ")}
    assert sections >= NAMES
    for rule in ALERTS:
        assert rule["annotations"]["runbook"] == f"docs/runbooks/alerts.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_each_alert_is_tested_firing_and_not_firing() -> None:
    tests = yaml.safe_load((ROOT / "monitoring" / "prometheus" / "tests" / "alerts.yml").read_text())["tests"]
    fires: dict[str, set[bool]] = {name: set() for name in NAMES}
    for test in tests:
        alert = test["name"].split(",")[0]
        for check in test["promql_expr_test"]:
            assert alert in check["expr"]
            fires[alert].add(bool(check["exp_samples"]))
    assert all(found == {True, False} for found in fires.values()), fires


def test_recorded_names_that_are_used_are_recorded() -> None:
    recorded = {
        rule["record"]
        for group in yaml.safe_load((RULES / "recording.yml").read_text())["groups"]
        for rule in group["rules"]
    }
    used: set[str] = set()
    for path in [*RULES.glob("*.yml"), *(ROOT / "monitoring" / "grafana" / "dashboards").glob("*.json")]:
        used |= set(re.findall(r"\bdeploy_kit:[a-z_0-9:]+", path.read_text()))
    assert used <= recorded
