"""Tests that run inside the rehearsal engine (torch, sglang and deploy-kit-rehearsal installed), with its own
pytest.

Outside it they are skipped as a whole: `python -m pytest tests/integration/engine` in the engine's
environment.
"""

import importlib.util
from pathlib import Path

import pytest

IN_ENGINE = all(importlib.util.find_spec(name) for name in ("torch", "sglang", "deploy_kit_rehearsal"))
HERE = Path(__file__).parent
collect_ignore_glob: list[str] = [] if IN_ENGINE else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rehearsal models, made once for all tests."""
    from deploy_kit_rehearsal.builder import build_models

    folder = tmp_path_factory.mktemp("models") / "models"
    build_models(folder)
    return folder
