"""The profile `auto` through the playbook: what this host's own receipts speak for is what serves."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Deployment, deploy_kit, run

pytestmark = [pytest.mark.docker, pytest.mark.engine, pytest.mark.slow]

# Enough for the default rules: two rounds, eight requests a cell.
LOAD = ("--concurrency", "2", "--rounds", "2", "--requests", "2", "--output-tokens", "48")


@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    not os.environ.get("KIT_SLOW"), reason="measures three deployments, starts a fourth: KIT_SLOW=1 runs it"
)
def test_the_playbook_serves_what_the_receipts_speak_for(
    bring_up: Callable[[str], Deployment], tmp_path: Path
) -> None:
    for profile in ("baseline", "eagle3", "ngram"):
        deployment = bring_up(profile)
        report = deployment.answer["report"]
        plan = tmp_path / f"{profile}.json"
        plan.write_text(json.dumps(deploy_kit("plan", profile, "--host", "rehearsal")))
        deploy_kit(
            "bench", deployment.url, "--plan", str(plan), *LOAD,
            "--api-key-file", report["api_key_file"], "--receipts", report["receipts"],
        )  # fmt: skip
    receipts = report["receipts"]
    chosen = deploy_kit(
        "plan", "auto", "--host", "rehearsal", "--receipts", receipts, "--among", "baseline,eagle3,ngram"
    )
    assert chosen["auto"]["from_evidence"], chosen["auto"]
    print(chosen["auto"])

    done = run(
        "ansible-playbook", "ansible/deploy.yml", "-e", "engine_profile=auto", "-e", "engine_rehearsal=true"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{chosen['profile']}: {chosen['auto']['reason']}" in done.stdout
    (engine,) = deploy_kit("status")["engines"].values()
    assert engine["ready"]
    assert engine["state"]["plan_id"] == chosen["plan_id"]
