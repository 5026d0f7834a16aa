"""The machine that these tests provision: a systemd container of Debian 12, made anew for each test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .machines import Machine, require_docker, start_machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A fresh Debian 12."""
    require_docker()
    made = start_machine(tmp_path)
    yield made
    subprocess.run(["docker", "rm", "--force", made.name], capture_output=True, check=False)
