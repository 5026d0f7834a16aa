"""Runs a campaign with STAND-IN engines in a process of its own, to be killed at any moment.

Usage: campaign_driver.py FOLDER. Each measurement that begins is noted in FOLDER/begun.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from campaign_standins import StandinRunner, campaign_of, configs_with, standin_bencher

from deploy_kit.campaign.prepare import prepare
from deploy_kit.campaign.run import run_campaign
from deploy_kit.campaign.store import StateFolder
from deploy_kit.errors import DeployKitError

LEVERS = ("faster", "crash-oom", "same", "better")


def main() -> None:
    folder = Path(sys.argv[1])
    catalog = configs_with(folder, *LEVERS)
    campaign = campaign_of(*LEVERS, repeats=2)
    prepared = prepare(campaign, catalog, host="rehearsal", address="127.0.0.1", port=30000)

    def note(start: str) -> None:
        with (folder / "begun").open("a") as handle:
            handle.write(start.rsplit(maxsplit=1)[-1] + "\n")
            handle.flush()
            os.fsync(handle.fileno())

    state = StateFolder(folder / "state")
    with state.locked():
        run_campaign(
            prepared,
            state,
            StandinRunner(),
            bencher=standin_bencher(noise_ratio=1e-4, seconds=0.03, note=note),
        )


if __name__ == "__main__":
    try:
        main()
    except DeployKitError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(int(error.exit_code))
