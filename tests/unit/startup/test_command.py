"""`deploy-kit startup explain` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from deploy_kit.cli.startup import app
from deploy_kit.errors import DeployKitError

CASES = Path(__file__).parents[2] / "cases"


def case(name: str) -> bytes:
    text: str = yaml.safe_load(next(CASES.glob(f"{name}*.yaml")).read_text())["input"]
    return text.encode()


def test_json_of_a_file_and_of_a_pipe(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(case("startup-07"))
    from_file = CliRunner().invoke(app, ["explain", str(log), "--json"])
    from_pipe = CliRunner().invoke(app, ["explain", "-", "--json"], input=case("startup-07"))
    answer = json.loads(from_file.stdout)
    assert json.loads(from_pipe.stdout) == answer
    assert from_file.exit_code == from_pipe.exit_code == 21
    assert {"verdict", "cause", "evidence", "remedy", "phase", "progress", "facts"} <= set(answer)


def test_text_and_exit_codes() -> None:
    ready = CliRunner().invoke(app, ["explain", "-"], input=case("startup-01"))
    assert (ready.exit_code, ready.stdout.split(":")[0]) == (0, "ready")
    hung = CliRunner().invoke(app, ["explain", "-"], input=case("startup-17"))
    assert hung.exit_code == 21
    assert "remedy:" in hung.stdout


def test_follow_ends_with_a_final_verdict(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(case("startup-09"))
    followed = CliRunner().invoke(app, ["explain", str(log), "--follow", "--json"])
    assert json.loads(followed.stdout)["verdict"] == "crashed"


def test_an_empty_log_and_one_that_is_not_there(tmp_path: Path) -> None:
    empty = CliRunner().invoke(app, ["explain", "-", "--json"], input=b"")
    assert json.loads(empty.stdout)["verdict"] == "starting"
    with pytest.raises(DeployKitError, match="cannot read the log"):
        CliRunner().invoke(app, ["explain", str(tmp_path / "none")], catch_exceptions=False)
    with pytest.raises(DeployKitError, match="cannot read the log"):
        CliRunner().invoke(app, ["explain", str(tmp_path)], catch_exceptions=False)
