"""The list of all expressions, and that each is PromQL after Grafana's variables are filled in."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[2] / "e2e" / "monitoring_expressions.py"


def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("monitoring_expressions", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["monitoring_expressions"] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def test_all_are_listed_and_filled_in() -> None:
    asked = module().all_expressions()
    assert len(asked) > 100
    assert not [one for one in asked if "$" in one.expression]


def test_every_exception_is_used() -> None:
    loaded = module()
    reasons = {one.exception for one in loaded.all_expressions()}
    assert set(loaded.EXCEPTIONS.values()) <= reasons


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_dashboard_expressions_parse(tmp_path: Path) -> None:
    lines = ["groups: [{name: dashboards, rules: ["]
    for number, one in enumerate(module().all_expressions()):
        lines.append(f"{{record: 'x:{number}', expr: '{one.expression.strip()}'}},")
    rules = tmp_path / "rules.yml"
    rules.write_text("\n".join(lines) + "\n]}]\n")
    done = subprocess.run(
        ["promtool", "check", "rules", str(rules)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
