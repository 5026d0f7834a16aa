"""A campaign whose engines `deploy-kit up` starts: a lever without effect, and one that crashes."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from deploy_kit.receipts import read_receipts

from .conftest import ROOT, run

pytestmark = [pytest.mark.docker, pytest.mark.engine, pytest.mark.slow]

LEVER = """
name = "{name}"
description = "of this test"
expected_effect = "of this test"
acceptance = "this test"
status_on_sm120 = "not for SM120"
source = "this test"
[needs]
accelerator = "cpu"
[flags]
{flags}
"""
LEVERS = {"crashes": 'load-format = "pt"', "log-oftener": "decode-log-interval = 7"}
CAMPAIGN = """
name = "compose"
description = "One lever and one that crashes on purpose, each start by the playbook"
question = "does a campaign on a deployed box do what one beside it does?"
[base]
profile = "baseline"
host = "rehearsal"
[bench]
concurrencies = [1]
rounds = 1
requests = 2
output_tokens = 32
[schedule]
repeats = 1
start_limit_seconds = 600
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the checkout with the levers in it: `up` serves what its own checkout holds."""
    copy = tmp_path / "checkout"
    for name in run("git", "ls-files", "--cached", "--others", "--exclude-standard").stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    for name, flags in LEVERS.items():
        (copy / "configs/levers" / f"{name}.toml").write_text(LEVER.format(name=name, flags=flags))
    (copy / "compose.toml").write_text(CAMPAIGN + "".join(f'[[lever]]\nname = "{name}"\n' for name in LEVERS))
    return copy


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not os.environ.get("KIT_SLOW"), reason="five starts by the playbook: KIT_SLOW=1 runs it")
def test_a_campaign_brings_each_plan_up_and_leaves_none(checkout: Path) -> None:
    done = run(
        "env", "-C", str(checkout), f"PYTHONPATH={checkout}",
        sys.executable, "-m", "deploy_kit", "campaign", "compose.toml", "--engines", "compose", "--yes",
        "--json", timeout=1700,
    )  # fmt: skip
    assert done.returncode == 20, done.stdout[-3000:] + done.stderr[-3000:]  # a lever crashed
    state = json.loads(done.stdout)
    assert state["finished"]
    cells = {cell["key"]: cell for cell in state["cells"]}
    assert list(cells) == ["crashes/base/0", "crashes/lever/0", "log-oftener/base/0", "log-oftener/lever/0"]
    assert [cell["outcome"] for cell in cells.values()] == ["measured", "failed", "measured", "measured"]
    crash = next(lever for lever in state["levers"] if lever["name"] == "crashes")
    assert crash["cause_id"] == "weights-missing", crash
    # What was measured is what the plan says, with the levers in it.
    found = read_receipts((checkout / state["state_file"]).parent / "receipts", kind="bench")
    assert not found.errors
    plans = {receipt.receipt_id: receipt.plan_id for receipt in found}
    measured = [cell for cell in cells.values() if cell["outcome"] == "measured"]
    assert [plans[cell["receipt_id"]] for cell in measured] == [cell["plan_id"] for cell in measured]
    assert len({cell["plan_id"] for cell in measured}) == 2
    assert run("docker", "ps", "--quiet", "--filter", "name=^deploy-kit-kimi-").stdout == ""
