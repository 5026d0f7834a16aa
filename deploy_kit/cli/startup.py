"""`deploy-kit startup`: explain an engine's start-up log; show how far a running start is."""

from __future__ import annotations

from pathlib import Path

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def startup() -> None:
    """Follow an engine's start: phase, progress, elapsed and expected time, cause of an end, remedy."""


@app.command(
    epilog="Example: docker compose logs --no-color kimi-eagle | deploy-kit startup explain - --json"
)
def explain(
    log: str = typer.Argument(help="The log's file, or - for standard input."),
    as_json: bool = typer.Option(False, "--json", help="Print the answer as JSON."),
    follow: bool = typer.Option(
        False, "--follow", "-f", help="Go on reading until the engine is ready, has ended or hangs."
    ),
    silent_seconds: float | None = typer.Option(
        None, "--silent-seconds", min=0, help="How long nothing has been written (tells a hang from a load)."
    ),
) -> None:
    """Say what the log of an engine's start means: verdict (starting, loading, capturing, ready, degraded,
    hung, crashed), cause with evidence and remedy, phase, progress, facts.

    Exits 0 for starting, loading, capturing and ready, 20 for degraded, 21 for hung and crashed."""
    from deploy_kit.exit_codes import ExitCode
    from deploy_kit.output import print_json
    from deploy_kit.startup.report import describe, follow_log, read_log

    path = None if log == "-" else Path(log)
    answer = follow_log(path) if follow else read_log(path, silent_seconds=silent_seconds)
    if as_json:
        print_json(answer.as_dict())
    else:
        typer.echo(describe(answer))
    code = {
        "degraded": ExitCode.VERDICT_WARN,
        "hung": ExitCode.VERDICT_FAIL,
        "crashed": ExitCode.VERDICT_FAIL,
    }
    raise typer.Exit(int(code.get(answer.verdict, ExitCode.OK)))


@app.command(epilog="Example: docker compose exec kimi-eagle deploy-kit startup show --follow")
def show(
    state_directory: Path | None = typer.Option(
        None, "--state-dir", help="The state folder of `deploy-kit serve`. [DEPLOY_KIT_STATE_DIR]"
    ),
    follow: bool = typer.Option(False, "--follow", "-f", help="Go on until it is ready or has ended."),
    as_json: bool = typer.Option(False, "--json", help="Print the state as JSON."),
) -> None:
    """Show where the engine of `deploy-kit serve` is: phases with their times, the bar, elapsed and expected
    time (from earlier starts), and what was checked when it stalls.

    Exits 0 when it is ready, 15 when not yet (or when there is no state), else with the engine's own code."""
    from deploy_kit.output import print_json
    from deploy_kit.runtime.settings import read_settings
    from deploy_kit.runtime.show import describe_state, exit_code_of, follow_state, show_state

    folder = state_directory or read_settings().state_directory
    state = follow_state(folder) if follow else show_state(folder)
    if as_json:
        print_json(describe_state(state))
    raise typer.Exit(exit_code_of(state))
