"""The command: exit codes, JSON on stdout, and errors without a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy_kit.cli.metrics import app
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

GOOD = 'sglang:num_running_reqs{model_name="m",tp_rank="0"} 3.0\n'


@pytest.mark.parametrize(
    ("text", "code", "verdict"),
    [(GOOD, 0, "ok"), (GOOD + "garbage line\n", 20, "partial"), ("<html>\n", 21, "no-data")],
)
def test_exit_code_follows_the_verdict(tmp_path: Path, text: str, code: int, verdict: str) -> None:
    path = tmp_path / "scrape.prom"
    path.write_text(text)
    done = CliRunner().invoke(app, ["explain", str(path), "--json"])
    assert done.exit_code == code
    assert json.loads(done.stdout)["verdict"] == verdict
    plain = CliRunner().invoke(app, ["explain", str(path)])
    assert plain.exit_code == code
    assert plain.stdout.startswith(verdict)


def test_standard_input() -> None:
    assert CliRunner().invoke(app, ["explain", "-"], input=GOOD).exit_code == 0


@pytest.mark.parametrize("source", ["nowhere.prom", "http://127.0.0.1:9/metrics", "http://[bad/metrics"])
def test_nothing_to_read_is_a_clear_error(source: str) -> None:
    done = CliRunner().invoke(app, ["explain", source])
    assert isinstance(done.exception, DeployKitError)
    assert done.exception.exit_code == ExitCode.INPUT
