"""Shared by the start-up tests: the rehearsal models, and one `deploy-kit serve` of the real engine."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from real_engine import Serve

IN_ENGINE = all(importlib.util.find_spec(name) for name in ("torch", "sglang", "deploy_kit_rehearsal"))


@pytest.fixture(scope="session")
def rehearsal_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rehearsal models, built once."""
    from deploy_kit_rehearsal.builder import build_models

    folder = tmp_path_factory.mktemp("models") / "models"
    build_models(folder)
    return folder


@pytest.fixture
def serve(tmp_path: Path, rehearsal_models: Path) -> Iterator[Serve]:
    """A `deploy-kit serve` that is not started yet; ended after the test whatever happened."""
    from real_engine import Serve

    running = Serve(tmp_path, rehearsal_models)
    yield running
    running.close()
