"""`deploy-kit startup`: explain an engine's start-up log."""

from __future__ import annotations

from pathlib import Path

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def startup() -> None:
    """Read an engine's start-up log: phase, progress, cause of an end, remedy."""


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
