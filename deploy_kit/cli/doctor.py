"""`deploy-kit doctor`: find host faults, on this machine or in a capture of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from deploy_kit.configs.schema import Host, Model

app = typer.Typer(add_completion=False)
_DEFAULT_HOST_FILE = Path("/etc/deploy-kit/host.toml")


@app.command(
    epilog="Examples: deploy-kit doctor --host rtx-pro-6000-x8; deploy-kit doctor --from pasted.txt --json;"
    " sudo deploy-kit doctor --capture box1"
)
def doctor(
    host: str | None = typer.Option(
        None, "--host", help="The host's name or file: what the machine should have."
    ),
    model: str | None = typer.Option(
        None, "--model", help="A model's name in configs/models: is there room and speed for its weights?"
    ),
    capture: Path | None = typer.Option(None, "--capture", help="Write what is read to this folder, too."),
    source: str | None = typer.Option(
        None, "--from", help="Read a captured folder, a text file of pasted outputs, or - for stdin."
    ),
    only: list[str] = typer.Option(
        [], "--only", help="Only findings with these ids, comma separated: p2p,acs"
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the report as JSON."),
) -> None:
    """Find the host faults that make all-reduces slow, or a start fail, before anything is loaded.
    Reads only: nothing on the machine is changed.
    Exit code 0 in order, 20 something to look at, 21 a fault, 22 not known."""
    from deploy_kit.doctor.bundle import read_input, write_bundle
    from deploy_kit.doctor.examine import examine, wanted_checks
    from deploy_kit.errors import DeployKitError
    from deploy_kit.exit_codes import ExitCode
    from deploy_kit.output import print_json, stderr_console, stdout_console

    if source is not None and capture is not None:
        raise DeployKitError(
            "--capture reads this machine, --from a capture: use one of them", exit_code=ExitCode.USAGE
        )
    words = wanted_checks(word for part in only for word in part.split(","))
    expected = _expected(host, live=source is None)
    if source is not None:
        blocks, unknown = read_input(source)
    else:
        from deploy_kit.doctor.sources import read_machine

        with stderr_console().status("reading the machine"):
            blocks, unknown = read_machine(expected.models_directory if expected else None)
        if capture is not None:
            write_bundle(capture, blocks, unknown)
            stderr_console().print(f"captured to {capture}; read it anywhere with --from", markup=False)
    report = examine(blocks, unknown, host=expected, model=_model(model), only=words)
    if as_json:
        print_json(report.as_dict())
    else:
        from deploy_kit.doctor.render import print_report

        print_report(report, stdout_console())
    raise typer.Exit(int(report.verdict.exit_code))


def _model(name: str | None) -> Model | None:
    """Return the model that was named, or None."""
    from deploy_kit.configs.catalog import Catalog
    from deploy_kit.configs.schema import Model

    return None if name is None else Catalog.find().load(Model, name)


def _expected(host: str | None, *, live: bool) -> Host | None:
    """Return the host file that was named; on a live machine also the one it is set up with; else None."""
    from deploy_kit.configs.catalog import Catalog, load_file
    from deploy_kit.configs.schema import Host

    if host is None and live:
        host = os.environ.get("DEPLOY_KIT_HOST")
        if host is None and _DEFAULT_HOST_FILE.is_file():
            host = str(_DEFAULT_HOST_FILE)
    if host is None:
        return None
    if "/" in host or host.endswith(".toml"):
        return load_file(Host, Path(host))
    return Catalog.find().host(host)
