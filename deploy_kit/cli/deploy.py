"""`deploy-kit deploy`: the same playbook over an inventory."""

from __future__ import annotations

from pathlib import Path

import typer

app = typer.Typer(add_completion=False)


@app.command(
    epilog="Example: deploy-kit deploy --inventory ansible/inventories/local --limit localhost --dry-run"
)
def deploy(
    inventory: Path | None = typer.Option(
        None, "--inventory", "-i", help="An Ansible inventory; this machine's when not given."
    ),
    limit: str | None = typer.Option(None, "--limit", help="Only these hosts or groups."),
    profile: str | None = typer.Option(
        None, "--profile", "-p", help="eagle3, baseline or ngram; else what the inventory says."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would change; change nothing."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Run ansible/deploy.yml over the hosts of an inventory, one after the other; the next host begins only
    when the one before it has answered a completion."""
    from deploy_kit.deploy.checkout import find_checkout, service_of
    from deploy_kit.deploy.playbook import run_playbook
    from deploy_kit.deploy.progress import StepProgress
    from deploy_kit.errors import DeployKitError
    from deploy_kit.exit_codes import ExitCode
    from deploy_kit.output import print_json

    if inventory is not None and not inventory.exists():
        raise DeployKitError(
            "the inventory is not there",
            file=inventory,
            key="--inventory",
            remedy="ansible/inventories/ holds examples",
            exit_code=ExitCode.INPUT,
        )
    variables = {}
    if profile is not None:
        service_of(profile)
        variables["engine_profile"] = profile
    with StepProgress() as progress:
        run = run_playbook(
            find_checkout(),
            "deploy.yml",
            inventory=None if inventory is None else inventory.resolve(),
            variables=variables,
            limit=limit,
            check=dry_run,
            on_event=progress.show,
        )
    if as_json:
        print_json({"dry_run": dry_run, "changed": run.changed, "hosts": run.hosts, "reports": run.reports})
        return
    for name, counts in run.hosts.items():
        report = run.reports.get(name)
        served = f", serves {report['model']} with {report['profile']}" if report else ""
        typer.echo(f"{name}: {counts.get('changed', 0)} changed{served}")
