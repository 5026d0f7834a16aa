"""A model that the engine's user may not read is refused before the load, without a traceback."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deploy_kit.configs.catalog import Catalog
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.plan.model import Plan
from deploy_kit.plan.resolve import resolve
from deploy_kit.runtime.preflight import refuse_missing_paths

OTHER_USER = 10001


@pytest.fixture
def model() -> Iterator[Path]:
    """A model's folder that anyone may read (pytest's own folders are closed to other users)."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "models" / "target"
        path.mkdir(parents=True)
        (path / "config.json").write_text("{}")
        (path / "model.safetensors").write_bytes(b"x")
        yield path


def plan_of(path: Path) -> Plan:
    catalog = Catalog(Path(__file__).parents[3] / "configs")
    plan = resolve(catalog, "baseline", host="rehearsal")
    return replace(plan, required_paths=(("model", str(path)),))


def refused_as_other_user(path: Path) -> int:
    """Return the exit code of the refusal in a process of another user; 0: not refused, 1: something else."""
    plan = plan_of(path)
    if os.geteuid() != 0:
        try:
            refuse_missing_paths(plan)
        except DeployKitError as error:
            return int(error.exit_code)
        return 0
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(OTHER_USER)
            os.setuid(OTHER_USER)
            try:
                refuse_missing_paths(plan)
                code = 0
            except DeployKitError as error:
                code = int(error.exit_code)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("closed", ["models", "models/target", "models/target/model.safetensors"])
def test_what_may_not_be_read_is_refused(model: Path, closed: str) -> None:
    path = model.parents[1] / closed
    before = path.stat().st_mode
    path.chmod(0)
    try:
        assert refused_as_other_user(model) == ExitCode.ENGINE_WEIGHTS
    finally:
        path.chmod(before)


def test_what_may_be_read_is_not(model: Path) -> None:
    assert refused_as_other_user(model) == 0
