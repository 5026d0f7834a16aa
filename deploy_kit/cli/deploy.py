"""`deploy-kit deploy`: roll a plan over the hosts of an inventory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from deploy_kit.cli.playbooks import VAULT, run_and_print

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: deploy-kit deploy --inventory my-fleet --dry-run        (docs/fleet.md)")
def deploy(
    inventory: Path | None = typer.Option(
        None, "--inventory", "-i", help="An Ansible inventory; this machine's when not given."
    ),
    limit: str | None = typer.Option(None, "--limit", help="Only these hosts or groups."),
    profile: str | None = typer.Option(
        None, "--profile", "-p", help="eagle3, baseline or ngram; else what the inventory says."
    ),
    image: str | None = typer.Option(
        None, "--image", help="The engine's image, by digest for a fleet; else what the inventory says."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would change; change nothing."),
    vault_password_file: Path | None = VAULT,
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Run ansible/deploy.yml over the hosts of an inventory, one after the other; the next host begins only
    when the one before it has answered a completion. A host that fails gets its previous plan back, and
    the roll stops there."""
    from deploy_kit.deploy.checkout import service_of
    from deploy_kit.deploy.fleet_progress import FleetProgress
    from deploy_kit.deploy.progress import StepProgress

    variables: dict[str, Any] = {}
    if profile is not None:
        service_of(profile)
        variables["engine_profile"] = profile
    if image is not None:
        variables["engine_image"] = image
    run_and_print(
        "deploy.yml",
        StepProgress() if inventory is None else FleetProgress(),
        inventory=inventory,
        variables=variables,
        limit=limit,
        dry_run=dry_run,
        vault_password_file=vault_password_file,
        as_json=as_json,
    )
