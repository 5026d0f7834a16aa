"""`deploy-kit campaign`: find out which lever helps, one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from deploy_kit.campaign.engines import EngineRunner
    from deploy_kit.campaign.model import Campaign, CampaignState
    from deploy_kit.campaign.outlook import Estimate

app = typer.Typer(add_completion=False)


@app.command(
    epilog="Example: deploy-kit campaign configs/campaigns/fast-verify.toml --host rtx-pro-6000-x8 --dry-run"
)
def campaign(
    file: Path = typer.Argument(help="The campaign file, for example configs/campaigns/fast-verify.toml."),
    state: Path | None = typer.Option(
        None, "--state", help="The campaign's folder: state and receipts. Default: campaigns/NAME."
    ),
    host: str | None = typer.Option(
        None, "--host", help="A host's name or file; goes before the campaign's."
    ),
    engines: str = typer.Option(
        "serve", "--engines", help="serve: start `deploy-kit serve` here; compose: `deploy-kit up` each time."
    ),
    probe: bool = typer.Option(True, "--probe/--no-probe", help="Leave out the probes before the loads."),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Say what would be done, and how long; start none."
    ),
    window: str | None = typer.Option(
        None, "--for", help="Begin no cell that would not be over within so long, for example 8h or 90m."
    ),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask, however long it takes."),
    configs: Path | None = typer.Option(None, "--configs", help="The folder that holds the configurations."),
    as_json: bool = typer.Option(False, "--json", help="Print the state as JSON."),
) -> None:
    """Hold each lever of FILE against the base plan, one at a time, in turns with a start of the engine for
    each, then all winners together. Run again after any interruption, it goes on where it was.

    Exit code 0: finished (also when no lever helps), or the time of --for is over; 20: the same, and a lever
    crashed or hung the engine, or the engine left it off; 1: the base plan does not run; 13: the disk is
    full; 35: the port is taken; 2, 3, 4, 5: wrong input.
    """
    from deploy_kit.campaign.describe import describe, describe_plan
    from deploy_kit.campaign.outlook import estimate
    from deploy_kit.campaign.prepare import default_folder, open_state, prepare
    from deploy_kit.campaign.store import StateFolder, read_campaign
    from deploy_kit.campaign.window import parse_window
    from deploy_kit.configs.catalog import Catalog
    from deploy_kit.exit_codes import ExitCode
    from deploy_kit.output import print_json

    window_seconds = None if window is None else parse_window(window)
    the_campaign = read_campaign(file)
    catalog = Catalog.find(configs)
    runner, chosen_host = _runner(engines, the_campaign, catalog.folder, host)
    prepared = prepare(the_campaign, catalog, host=chosen_host, address=runner.address, port=runner.port)
    folder = StateFolder(state or default_folder(the_campaign))
    if dry_run:
        current = open_state(prepared, folder, runner)
        left = estimate(current)
        if as_json:
            print_json({"dry_run": True, "left": vars(left), "state": current.model_dump(mode="json")})
        else:
            typer.echo(describe_plan(current, left))
        return
    with folder.locked():
        current = open_state(prepared, folder, runner)
        left = estimate(current)
        if not current.finished and not yes and window_seconds is None:
            _ask(current, left, as_json=as_json)
        final = _run(prepared, folder, runner, probe=probe, window_seconds=window_seconds)
    if as_json:
        print_json({"state_file": str(folder.file), **final.model_dump(mode="json")})
    else:
        typer.echo(describe(final))
        typer.echo(f"written to {folder.file}")
    if any(result.outcome == "failed" for result in final.levers):
        raise typer.Exit(int(ExitCode.VERDICT_WARN))


def _runner(
    engines: str, campaign: Campaign, configs: Path, host: str | None
) -> tuple[EngineRunner, str | None]:
    from deploy_kit.campaign.compose import ComposeRunner
    from deploy_kit.campaign.engines import ServeRunner, choose_host
    from deploy_kit.deploy.up import Wish
    from deploy_kit.deploy.up import choose_host as deployed_host
    from deploy_kit.errors import DeployKitError
    from deploy_kit.exit_codes import ExitCode
    from deploy_kit.plan.resolve import DEFAULTS
    from deploy_kit.runtime.preflight import count_gpus
    from deploy_kit.runtime.settings import read_settings

    settings = read_settings()
    chosen = choose_host(host, campaign.base.host, settings)
    if engines == "compose":
        wish = Wish(campaign.base.profile, chosen)
        chosen = deployed_host(wish, gpus=count_gpus()) or DEFAULTS[False]["host"]
        return ComposeRunner(chosen, campaign.schedule.start_limit_seconds), chosen
    if engines == "serve":
        named = chosen or DEFAULTS[False]["host"]
        return ServeRunner(settings, campaign.schedule, named, configs), named
    raise DeployKitError(
        "no such way to start engines",
        key="--engines",
        found=engines,
        allowed=["serve", "compose"],
        exit_code=ExitCode.USAGE,
    )


def _ask(state: CampaignState, left: Estimate, *, as_json: bool) -> None:
    import sys

    from deploy_kit.campaign.describe import describe_plan, time_text
    from deploy_kit.errors import DeployKitError
    from deploy_kit.exit_codes import ExitCode

    if left.seconds is not None and left.seconds <= state.campaign.schedule.ask_above_seconds:
        return
    if as_json or not sys.stdin.isatty():
        raise DeployKitError(
            "this takes long, and nobody can be asked here",
            found=time_text(left),
            remedy="--yes starts it; --dry-run shows what it would do",
            exit_code=ExitCode.USAGE,
        )
    typer.echo(describe_plan(state, left), err=True)
    if not typer.confirm("start?", err=True):
        raise typer.Exit(int(ExitCode.INTERRUPTED))


def _run(
    prepared: Any, folder: Any, runner: EngineRunner, *, probe: bool, window_seconds: int | None
) -> CampaignState:
    import signal

    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bars

    from deploy_kit.campaign.describe import duration
    from deploy_kit.campaign.probes import command_prober
    from deploy_kit.campaign.run import Progress, run_campaign
    from deploy_kit.output import stderr_console

    def stop(_signum: int, _frame: object) -> None:
        raise KeyboardInterrupt

    # An orderly end as for Ctrl-C: the engine is stopped, and the state says where to go on.
    before = signal.signal(signal.SIGTERM, stop)
    prober = command_prober(
        host=prepared.host or prepared.base.host, model=prepared.base.model, configs=prepared.catalog.folder
    )
    console = stderr_console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
    )
    try:
        with Bars(*columns, console=console, transient=True, refresh_per_second=2) as bars:
            task = bars.add_task("campaign", total=None, left="")
            shown = ""

            def show(progress: Progress) -> None:
                nonlocal shown
                left = progress.seconds_left
                bars.update(
                    task,
                    description=progress.what,
                    completed=progress.done,
                    total=progress.total,
                    left="" if left is None else f"at most {duration(left)} left",
                )
                if not console.is_terminal and progress.what != shown:  # a log wants lines, not a bar
                    console.print(f"[{progress.done}/{progress.total}] {progress.what}", markup=False)
                    shown = progress.what

            return run_campaign(
                prepared,
                folder,
                runner,
                prober=prober if probe else None,
                show=show,
                window_seconds=window_seconds,
            )
    finally:
        signal.signal(signal.SIGTERM, before)
