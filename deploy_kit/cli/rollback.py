"""`deploy-kit rollback`: every host that serves the newest plan goes back to the one before."""

from __future__ import annotations

from pathlib import Path

import typer

from deploy_kit.cli.playbooks import VAULT, run_and_print

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: deploy-kit rollback --inventory my-fleet        (docs/fleet.md)")
def rollback(
    inventory: Path = typer.Option(..., "--inventory", "-i", help="The fleet's Ansible inventory."),
    limit: str | None = typer.Option(None, "--limit", help="Only these hosts or groups."),
    every: bool = typer.Option(
        False, "--all", help="Every host goes back, not only those that serve what was deployed last."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would change; change nothing."),
    vault_password_file: Path | None = VAULT,
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Return to the previous plan, one host after the other; image and settings are on the hosts already.
    Done twice, it returns to where it began."""
    from deploy_kit.deploy.fleet_progress import FleetProgress

    run_and_print(
        "rollback.yml",
        FleetProgress(),
        inventory=inventory,
        variables={"rollback_all": True} if every else {},
        limit=limit,
        dry_run=dry_run,
        vault_password_file=vault_password_file,
        as_json=as_json,
    )
