"""`deploy-kit metrics explain`: what a scrape says, what it does not, and why."""

from __future__ import annotations

from typing import Any

import typer

from deploy_kit.exit_codes import ExitCode

app = typer.Typer(add_completion=False)

EXITS = {"ok": ExitCode.OK, "partial": ExitCode.VERDICT_WARN, "no-data": ExitCode.VERDICT_FAIL}


@app.callback()
def metrics() -> None:
    """Read an engine's metrics."""


@app.command(epilog="Example: deploy-kit metrics explain http://localhost:30000/metrics --json")
def explain(
    source: str = typer.Argument(help="A file, '-' for standard input, or the URL of an engine's /metrics."),
    api_key_file: str | None = typer.Option(
        None, "--api-key-file", help="A file with the engine's API key, for a URL that needs one."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the answer as JSON."),
) -> None:
    """Say what is read from a scrape and what is absent and why.

    Verdict ok (exit 0), partial (20) or no-data (21). Several scrapes may stand in one file under lines
    that begin with ---.
    """
    from deploy_kit.metrics.explain import explain as explain_text
    from deploy_kit.metrics.source import read_source
    from deploy_kit.output import print_json

    answer = explain_text(read_source(source, api_key_file=api_key_file))
    if as_json:
        print_json(answer.as_dict())
    else:
        _print(answer.as_dict(), "")
    raise typer.Exit(int(EXITS[answer.verdict]))


def _print(answer: dict[str, Any], indent: str) -> None:
    title = f"{answer['title']}: " if "title" in answer else ""
    typer.echo(f"{indent}{title}{answer['verdict']}: {answer['cause']}")
    if answer["action"]:
        typer.echo(f"{indent}  do: {answer['action']}")
    if "scrapes" not in answer:
        for name, value in answer["facts"].items():
            if name == "engines":
                for engine in value:
                    typer.echo(f"{indent}  engine:")
                    for key, item in engine.items():
                        typer.echo(f"{indent}    {key} = {item}")
            else:
                typer.echo(f"{indent}  {name} = {value}")
        for name, reason in answer["absent"].items():
            typer.echo(f"{indent}  {name}: absent, {reason}")
    for note in answer["notes"]:
        typer.echo(f"{indent}  note: {note}")
    for line in answer["problem_lines"]:
        typer.echo(f"{indent}  problem: {line}")
    for section in answer.get("scrapes", []):
        _print(section, indent + "  ")
