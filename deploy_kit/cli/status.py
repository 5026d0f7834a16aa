"""`deploy-kit status`: what runs, and how it does."""

from __future__ import annotations

from pathlib import Path

import typer

from deploy_kit.cli.playbooks import VAULT

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: deploy-kit status --json")
def status(
    inventory: Path | None = typer.Option(
        None, "--inventory", "-i", help="A fleet's Ansible inventory; this machine when not given."
    ),
    vault_password_file: Path | None = VAULT,
    as_json: bool = typer.Option(False, "--json", help="Print the status as JSON."),
) -> None:
    """Show the project's containers and, for a running engine, its plan, phase and readiness. Exit 0 when an
    engine is ready, 15 when none is, 10 when Docker does not answer. Of a fleet: each host's plan, whether
    its engine answers a completion now, and the gateway's word on it; exit 0 when all are ready."""
    if inventory is not None:
        _fleet(inventory, vault_password_file, as_json=as_json)
    from deploy_kit.deploy.checkout import SERVICES
    from deploy_kit.deploy.compose import engine_state, read_status
    from deploy_kit.exit_codes import ExitCode
    from deploy_kit.output import print_json

    containers = read_status()
    engines = {
        one.service: engine_state(one.container)
        for one in containers
        if one.service in SERVICES.values() and one.state == "running"
    }
    ready = any(state is not None and state.get("ready") for state in engines.values())
    if as_json:
        print_json({"ready": ready, "services": [one.as_dict() for one in containers], "engines": engines})
    elif not containers:
        typer.echo("nothing is deployed here (make up)")
    else:
        for one in containers:
            typer.echo(f"{one.service:<14} {one.status:<32} {one.ports}")
        for service, answer in engines.items():
            state = (answer or {}).get("state") or {}
            if not state:
                typer.echo(f"{service}: no word from the engine yet")
                continue
            word = "ready" if answer and answer.get("ready") else "not ready"
            label = "  REHEARSAL" if state.get("rehearsal") else ""
            typer.echo(
                f"{service}: {state.get('phase')}, {word}, profile {state.get('profile')},"
                f" model {state.get('model')}, plan {state.get('plan_id')}{label}"
            )
    raise typer.Exit(int(ExitCode.OK if ready else ExitCode.NOT_READY))


def _fleet(inventory: Path, vault_password_file: Path | None, *, as_json: bool) -> None:
    from deploy_kit.deploy.checkout import find_checkout
    from deploy_kit.deploy.fleet import describe_hosts, run_over
    from deploy_kit.exit_codes import ExitCode
    from deploy_kit.output import print_json, stderr_console

    with stderr_console().status("asking every host …"):
        answer = run_over(
            find_checkout(), "status.yml", inventory=inventory, vault_password_file=vault_password_file
        )
    hosts = answer["reports"]
    ready = bool(hosts) and all(one.get("ready") for one in hosts.values())
    if as_json:
        print_json({"ready": ready, "hosts": hosts})
    else:
        for line in describe_hosts(hosts):
            typer.echo(line)
    raise typer.Exit(int(ExitCode.OK if ready else ExitCode.NOT_READY))
