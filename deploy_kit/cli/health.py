"""`deploy-kit health`: the container's health check."""

from __future__ import annotations

import typer

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: deploy-kit health --json")
def health(as_json: bool = typer.Option(False, "--json", help="Print the state as JSON.")) -> None:
    """Exit 0 when the engine that `deploy-kit serve` runs here is ready, 15 when it is not.

    Reads the state file, so it costs milliseconds and is not fooled by an HTTP port that answers too early,
    nor by one that is slow under a long prefill."""
    from dataclasses import asdict

    from deploy_kit.exit_codes import ExitCode
    from deploy_kit.output import print_json
    from deploy_kit.runtime.settings import read_settings
    from deploy_kit.runtime.state import process_alive, read_state

    state = read_state(read_settings().state_directory)
    alive = state is not None and process_alive(state.pid)
    ready = state is not None and state.ready and alive
    if as_json:
        print_json({"ready": ready, "serve_alive": alive, "state": None if state is None else asdict(state)})
    elif state is None:
        typer.echo("not ready: nothing is served here")
    elif not alive:
        typer.echo(f"not ready: serve has ended ({state.cause or 'without a word'})")
    else:
        typer.echo(f"{'ready' if ready else 'not ready'}: {state.phase}, profile {state.profile}")
    raise typer.Exit(int(ExitCode.OK if ready else ExitCode.NOT_READY))
