"""`deploy-kit patches`: the source patches of a stack, in an installed SGLang."""

from __future__ import annotations

from pathlib import Path

import typer

app = typer.Typer(add_completion=False)


@app.command(
    epilog="Example: deploy-kit patches --stack current --site /opt/engine/lib/python3.11/site-packages"
)
def patches(
    stack: str = typer.Option("current", "--stack", help="A stack's name."),
    site: Path | None = typer.Option(
        None, "--site", help="The site-packages folder; this Python's when left out."
    ),
    apply: bool = typer.Option(False, "--apply", help="Apply what is not applied, with zero fuzz."),
    configs: Path | None = typer.Option(None, "--configs", help="The configurations' folder."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Print each patch as applied, not applied, skipped (why) or failed. Exit 21 when one failed."""
    import sysconfig
    from dataclasses import asdict

    from deploy_kit.configs.catalog import Catalog
    from deploy_kit.configs.schema import Stack
    from deploy_kit.exit_codes import ExitCode
    from deploy_kit.output import print_json
    from deploy_kit.stacks.patches import apply as apply_patch
    from deploy_kit.stacks.patches import state_of

    catalog = Catalog.find(configs)
    loaded = catalog.load(Stack, stack)
    root = catalog.folder.parent
    folder = site or Path(sysconfig.get_path("purelib"))
    act = apply_patch if apply else state_of
    states = [act(patch, loaded, root, folder) for patch in loaded.patches]
    if as_json:
        print_json([asdict(state) for state in states])
    else:
        for state in states:
            typer.echo(f"{state.state:<12} {state.file} (lever {state.lever}): {state.why}")
        if not states:
            typer.echo(f"stack {stack} has no patches")
    raise typer.Exit(int(ExitCode.VERDICT_FAIL if any(s.state == "failed" for s in states) else ExitCode.OK))
