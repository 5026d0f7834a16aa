"""The probe's ranks run for real: gloo on CPU, several processes, with the torch of another interpreter."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

VARIABLE = "DEPLOY_KIT_TORCH_PYTHON"


@pytest.fixture(scope="session")
def torch_python() -> str:
    """The interpreter that has torch; without one these tests are skipped, and say so."""
    python = os.environ.get(VARIABLE) or shutil.which("python3")
    if (
        python is None
        or subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode
    ):
        pytest.skip(f"no torch: name an interpreter that has it by {VARIABLE}")
    return python
