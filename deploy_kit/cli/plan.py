"""`deploy-kit plan`: resolve a profile and show the whole plan."""

from __future__ import annotations

from pathlib import Path

import typer

app = typer.Typer(add_completion=False)


@app.command(
    epilog="Example: deploy-kit plan eagle3 --host rtx-pro-6000-x8 --model kimi-k2.5 --lever pcie-ipc --json"
)
def plan(
    profile: str = typer.Argument(
        help="baseline, eagle3, eagle3-2step, eagle3-k2, eagle3-adaptive, ngram; auto: what receipts say"
    ),
    host: str | None = typer.Option(None, "--host", help="A host's name in configs/hosts, or a host file."),
    stack: str | None = typer.Option(None, "--stack", help="A stack's name in configs/stacks."),
    model: str | None = typer.Option(None, "--model", help="A model's name in configs/models."),
    drafter: str | None = typer.Option(None, "--drafter", help="Another drafter of the model's file."),
    lever: list[str] = typer.Option([], "--lever", help="A lever's name in configs/levers; may be repeated."),
    receipts: Path | None = typer.Option(
        None, "--receipts", help="Of auto: the receipts to decide from. [DEPLOY_KIT_RECEIPTS, else receipts/]"
    ),
    among: str = typer.Option("", "--among", help="Of auto: only these profiles, comma separated."),
    traffic: str | None = typer.Option(None, "--traffic", help="Of auto: as in `deploy-kit decide`."),
    configs: Path | None = typer.Option(None, "--configs", help="The folder that holds the configurations."),
    as_json: bool = typer.Option(False, "--json", help="Print the plan as JSON."),
) -> None:
    """Resolve PROFILE with a stack, a model, a host and levers to argv, environment, mounts, CPU set,
    image and an id. Nothing is started or changed. `auto` is what `deploy-kit decide` chooses from
    this host's receipts, and the baseline, with the reason, when they decide nothing."""
    from deploy_kit.cli.auto import AUTO, choose
    from deploy_kit.configs.catalog import Catalog
    from deploy_kit.output import print_json
    from deploy_kit.plan.describe import describe
    from deploy_kit.plan.resolve import resolve

    catalog = Catalog.find(configs)
    choice = None
    if profile == AUTO:
        names = [name.strip() for name in among.split(",") if name.strip()]
        choice = choose(
            catalog, host=host, stack=stack, model=model, levers=lever, among=names, receipts=receipts,
            traffic=traffic,
        )  # fmt: skip
        profile, lever = choice.profile, list(choice.levers)
    elif receipts is not None or among or traffic is not None:
        raise typer.BadParameter(
            f"--receipts, --among and --traffic go with the profile auto; found {profile}"
        )
    resolved = resolve(catalog, profile, host=host, stack=stack, model=model, drafter=drafter, levers=lever)
    if as_json:
        print_json(resolved.as_dict() | ({"auto": choice.as_dict()} if choice else {}))
    else:
        if choice is not None:
            typer.echo(choice.line)
        typer.echo(describe(resolved))
