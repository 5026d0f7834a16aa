"""`deploy-kit up`: the main job, what `make up` runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from deploy_kit.deploy.up import Wish

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: deploy-kit up --profile baseline        (docs/deploy.md)")
def up(
    profile: str = typer.Option(
        "eagle3",
        "--profile",
        "-p",
        help="eagle3, baseline, ngram, or auto: what this host's receipts in var/receipts say",
    ),
    host: str | None = typer.Option(None, "--host", help="A host's name in configs/hosts."),
    model: str | None = typer.Option(None, "--model", help="A model's name in configs/models."),
    stack: str | None = typer.Option(None, "--stack", help="A stack's name in configs/stacks."),
    lever: list[str] = typer.Option([], "--lever", help="A lever's name in configs/levers; may be repeated."),
    rehearsal: bool | None = typer.Option(
        None,
        "--rehearsal/--no-rehearsal",
        help="Rehearse on the CPU, or refuse to. Not given: only where there is no GPU.",
    ),
    port: int | None = typer.Option(None, "--port", min=1, max=65535, help="The engine's loopback port."),
    prometheus_port: int | None = typer.Option(
        None, "--prometheus-port", min=1, max=65535, help="Prometheus's loopback port."
    ),
    monitoring: str | None = typer.Option(
        None, "--monitoring", help="full (Alertmanager, exporters, Grafana too) or prometheus. Default: full."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would change; change nothing."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Set up this machine, build the images, bring PROFILE up with its monitoring beside it, wait until a
    real completion comes back, and say where everything is. Run again, it changes nothing."""
    from deploy_kit.cli.auto import AUTO
    from deploy_kit.deploy.checkout import find_checkout
    from deploy_kit.deploy.progress import StepProgress
    from deploy_kit.deploy.up import Wish, bring_up, describe_report
    from deploy_kit.output import print_json

    if monitoring not in (None, "full", "prometheus"):
        raise typer.BadParameter("full or prometheus", param_hint="--monitoring")
    wish = Wish(profile, host, model, stack, tuple(lever), rehearsal, port, prometheus_port, monitoring)
    checkout = find_checkout()
    if profile == AUTO:
        wish = _decided(wish, checkout)
    with StepProgress() as progress:
        answer = bring_up(wish, checkout, dry_run=dry_run, on_event=progress.show)
    if as_json:
        print_json(answer)
    else:
        for line in describe_report(answer):
            typer.echo(line)


def _decided(wish: Wish, checkout: Path) -> Wish:
    """Return the wish with the profile and levers that this host's receipts speak for; say which, and why."""
    from dataclasses import replace

    from deploy_kit.cli.auto import choose
    from deploy_kit.configs.catalog import Catalog
    from deploy_kit.deploy.checkout import SERVICES
    from deploy_kit.deploy.up import choose_host
    from deploy_kit.runtime.preflight import count_gpus

    choice = choose(
        Catalog.find(checkout / "configs"),
        host=choose_host(wish, gpus=count_gpus()),
        stack=wish.stack,
        model=wish.model,
        levers=wish.levers,
        among=list(SERVICES),
        receipts=checkout / "var/receipts",
    )
    typer.echo(choice.line, err=True)
    return replace(wish, profile=choice.profile, levers=choice.levers)
