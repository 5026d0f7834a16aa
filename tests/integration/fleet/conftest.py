"""One fleet for a whole module of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .hosts import Fleet, docker_answers


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three boxes and a gateway, running; skipped, with the reason, where no Docker daemon answers."""
    if not docker_answers():
        pytest.skip("no Docker daemon answers: `make up` starts one")
    fleet = Fleet(tmp_path_factory.mktemp("fleet") / "f")
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()


@pytest.fixture(scope="module")
def one(fleet: Fleet) -> str:
    """A stand-in engine in the registry: the first version."""
    return fleet.stand_in("one")


@pytest.fixture(scope="module")
def two(fleet: Fleet) -> str:
    """The second version."""
    return fleet.stand_in("two")
