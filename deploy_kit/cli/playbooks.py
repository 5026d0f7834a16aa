"""What `deploy` and `rollback` share: a playbook over an inventory, shown on stderr, its result printed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from deploy_kit.deploy.fleet_progress import FleetProgress
    from deploy_kit.deploy.progress import StepProgress


VAULT = typer.Option(
    None,
    "--vault-password-file",
    help="A file with the password of Ansible Vault, where the inventory has encrypted values.",
)


def run_and_print(
    playbook: str,
    following: StepProgress | FleetProgress,
    *,
    inventory: Path | None,
    variables: Mapping[str, Any],
    limit: str | None,
    dry_run: bool,
    vault_password_file: Path | None,
    as_json: bool,
) -> None:
    """Run the playbook over the inventory's hosts (without one: this machine), and print the outcome."""
    from deploy_kit.deploy.checkout import find_checkout
    from deploy_kit.deploy.fleet import describe, run_over
    from deploy_kit.output import print_json

    try:
        with following as progress:
            answer = run_over(
                find_checkout(),
                playbook,
                inventory=inventory,
                variables=dict(variables),
                limit=limit,
                dry_run=dry_run,
                vault_password_file=vault_password_file,
                on_event=progress.show,
            )
    except KeyboardInterrupt:
        if inventory is not None and not dry_run:
            typer.echo(
                "stopped: a box in the middle of a change ends it by itself, with the new plan or the old one"
                " (deploy-kit status -i …); the same command goes on from there",
                err=True,
            )
        raise
    if as_json:
        print_json(answer)
        return
    for line in describe(answer):
        typer.echo(line)
