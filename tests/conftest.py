"""For all tests: property tests count examples, not seconds, so that a busy machine fails none; and which
tests stay together when two processes share the work."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings

# The unit tests end in under 30 s; KIT_EXAMPLES=1000 looks longer.
settings.register_profile("kit", deadline=None, max_examples=int(os.environ.get("KIT_EXAMPLES", "40")))
settings.load_profile("kit")

# Their tests share an engine, a store, a process that loads everything, or are timed against each other.
TOGETHER = (
    "nix/test_flake.py",
    "engine/test_bench_real.py",
    "engine/test_drafter_predictions.py",
    "engine/test_sm120_patch.py",
    "engine/test_telemetry.py",
    "probe/test_probe_ranks.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadgroup`, give each process whole files of `TOGETHER` and single tests of the others.

    pytest-xdist's own marks for this have no effect with pytest 9.2, whose node ids cannot be changed."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if file.endswith(TOGETHER) else nodeid

    return Scheduling(config, log)
