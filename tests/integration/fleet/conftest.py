"""One fleet for a whole module of tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .hosts import Fleet, docker_answers


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three boxes and a gateway, running; skipped, with the reason, where no Docker daemon answers."""
    if not docker_answers():
        pytest.skip("no Docker daemon answers: `make up` starts one")
    # FLEET_KEEP=FOLDER: machines that an earlier run left there are used again, and stay: a course in pieces.
    kept = os.environ.get("FLEET_KEEP")
    fleet = Fleet(Path(kept) if kept else tmp_path_factory.mktemp("fleet") / "f")
    try:
        if not (kept and fleet.takes_over()):
            fleet.start()
        yield fleet
    finally:
        if not kept:
            fleet.stop()


@pytest.fixture(scope="module")
def one(fleet: Fleet) -> str:
    """A stand-in engine in the registry: the first version."""
    return fleet.stand_in("one")


@pytest.fixture(scope="module")
def two(fleet: Fleet) -> str:
    """The second version."""
    return fleet.stand_in("two")
