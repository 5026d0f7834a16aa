"""The committed dashboards: equal to their code, whole, and within the rules."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

GRAFANA = Path(__file__).parents[3] / "monitoring" / "grafana"
FILES = sorted((GRAFANA / "dashboards").glob("*.json"))
BUILT_IN = {"__rate_interval", "__interval", "__range"}


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("grafana_build", GRAFANA / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def panels(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["panels"]
    return found


def test_there_are_five() -> None:
    assert [path.stem for path in FILES] == ["anatomy", "engine", "fleet", "host", "verdict"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_committed_json_equals_the_code(path: Path) -> None:
    assert builder().render(path.stem) == path.read_text(), "run monitoring/grafana/build.py"


def test_the_check_refuses_json_that_was_edited(tmp_path: Path) -> None:
    shutil.copytree(GRAFANA, tmp_path / "grafana", ignore=shutil.ignore_patterns("__pycache__"))
    check = [sys.executable, str(tmp_path / "grafana/build.py"), "--check"]
    assert subprocess.run(check, capture_output=True, check=False).returncode == 0
    edited = tmp_path / "grafana/dashboards/verdict.json"
    edited.write_text(edited.read_text().replace('"Accept length"', '"Accept lengths"', 1))
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "verdict.json" in done.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_round_trip_through_the_sdk_loses_nothing(path: Path) -> None:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    content = json.loads(path.read_text())
    again = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(content)))
    assert again == content


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_panel_ids_are_unique_and_panels_lie_side_by_side(path: Path) -> None:
    ids = [panel["id"] for panel in panels(path)]
    assert len(set(ids)) == len(ids)
    cells: set[tuple[int, int]] = set()
    for panel in panels(path):
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        covered = {
            (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
        }
        assert not covered & cells, panel["title"]
        cells |= covered


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_panel_is_finished(path: Path) -> None:
    for panel in panels(path):
        assert panel["title"]
        assert len(panel["description"]) > 10, panel["title"]
        assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"], panel["title"]
        unit = panel["fieldConfig"]["defaults"].get("unit") or panel["options"]["yAxis"]["unit"]
        assert unit, panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert target["legendFormat"], panel["title"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_no_variable_dangles(path: Path) -> None:
    content = json.loads(path.read_text())
    defined = {variable["name"] for variable in content["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(content["panels"]))) - BUILT_IN
    assert used == defined


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_query_is_filtered_by_the_chosen_engines_or_hosts(path: Path) -> None:
    for panel in panels(path):
        for target in panel["targets"]:
            assert '=~"$instance"' in target["expr"] or '=~"$host"' in target["expr"], target["expr"]


def test_uids_are_unique() -> None:
    uids = [json.loads(path.read_text())["uid"] for path in FILES]
    assert len(set(uids)) == len(uids)
