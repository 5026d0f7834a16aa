"""`deploy-kit rollback`: every host that serves the newest plan goes back to the one before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: deploy-kit rollback --inventory my-fleet        (docs/fleet.md)")
def rollback(
    inventory: Path = typer.Option(..., "--inventory", "-i", help="The fleet's Ansible inventory."),
    limit: str | None = typer.Option(None, "--limit", help="Only these hosts or groups."),
    every: bool = typer.Option(
        False, "--all", help="Every host goes back, not only those that serve what was deployed last."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would change; change nothing."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Return to the previous plan, one host after the other; image and settings are on the hosts already.
    Done twice, it returns to where it began."""
    from deploy_kit.deploy.checkout import find_checkout
    from deploy_kit.deploy.fleet import describe, run_over
    from deploy_kit.deploy.fleet_progress import FleetProgress
    from deploy_kit.output import print_json

    variables: dict[str, Any] = {"rollback_all": True} if every else {}
    with FleetProgress() as progress:
        answer = run_over(
            find_checkout(),
            "rollback.yml",
            inventory=inventory,
            variables=variables,
            limit=limit,
            dry_run=dry_run,
            on_event=progress.show,
        )
    if as_json:
        print_json(answer)
        return
    for line in describe(answer):
        typer.echo(line)
