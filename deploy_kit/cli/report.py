"""`deploy-kit report`: receipts as one page to read and to share."""

from __future__ import annotations

from pathlib import Path

import typer

app = typer.Typer(add_completion=False)


@app.command(
    epilog="Example: deploy-kit report receipts/ --campaign state/ --traffic 1:70,32:30 -o report.html"
)
def report(
    receipts: list[Path] | None = typer.Argument(None, help="Receipt files, or folders of them."),
    output: Path | None = typer.Option(None, "--output", "-o", help="The HTML file; it needs nothing else."),
    markdown: Path | None = typer.Option(None, "--markdown", help="The same as Markdown."),
    campaign: Path | None = typer.Option(None, "--campaign", help="A campaign's state folder or file."),
    traffic: str | None = typer.Option(
        None, "--traffic", help='Shares of the time by load, as `decide` takes them: "1:70,32:30".'
    ),
    host: str | None = typer.Option(None, "--host", help="Only receipts of this host."),
    model: str | None = typer.Option(None, "--model", help="Only bench receipts of this model."),
    as_json: bool = typer.Option(False, "--json", help="Print the report's facts as JSON."),
) -> None:
    """Write the question, the host, what was tried with what effect, cycles, break-even, the decision with
    its sum, versions and commands as one page.

    Receipts that do not compare are refused, as `decide` does. Exit code 0: written; 5: a receipt is damaged,
    or they mix hosts, stacks, models, plans, or rehearsal and real; 13: the disk is full.
    """
    import shlex
    import sys

    from deploy_kit import report as reports
    from deploy_kit.decision.traffic import parse_traffic
    from deploy_kit.errors import DeployKitError
    from deploy_kit.exit_codes import ExitCode
    from deploy_kit.files import write_atomically
    from deploy_kit.output import print_json

    if output is None and markdown is None:
        raise DeployKitError(
            "where should the report go?",
            key="-o",
            allowed="-o FILE.html, --markdown FILE.md, or both",
            exit_code=ExitCode.USAGE,
        )
    if not receipts and campaign is None:
        raise DeployKitError(
            "a report of what?",
            key="RECEIPTS",
            allowed="receipt files or folders, --campaign STATE, or both",
            exit_code=ExitCode.USAGE,
        )
    content = reports.build(
        receipts or [],
        campaign=campaign,
        host=host,
        model=model,
        traffic=parse_traffic(traffic) if traffic else None,
        command=["deploy-kit", shlex.join(sys.argv[1:])],
    )
    # Both are made before either is written: an error leaves no half of the pair.
    texts = [
        (output, "" if output is None else reports.page(content)),
        (markdown, "" if markdown is None else reports.markdown(content)),
    ]
    written = []
    for path, text in texts:
        if path is not None:
            write_atomically(path, text)
            written.append(str(path))
    if as_json:
        print_json({"files": written, **content.facts})
    else:
        for warning in content.warnings:
            typer.echo(warning)
        typer.echo(content.answer)
        for name in written:
            typer.echo(f"written: {name}")
