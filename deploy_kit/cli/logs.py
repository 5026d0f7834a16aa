"""`deploy-kit logs`: the log of a service."""

from __future__ import annotations

import typer

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: deploy-kit logs kimi-eagle --follow")
def logs(
    service: str | None = typer.Argument(None, help="A service; the running engine when not given."),
    follow: bool = typer.Option(False, "--follow", "-f", help="Go on as the service writes."),
    tail: int = typer.Option(100, "--tail", "-n", min=0, help="How many lines of the past."),
    as_json: bool = typer.Option(False, "--json", help="Print the lines as a JSON list (not with --follow)."),
) -> None:
    """Print the last lines of a service's log. A stopped container's log is there until `down`."""
    import subprocess
    import sys

    from deploy_kit.deploy.checkout import SERVICES
    from deploy_kit.deploy.compose import container_error, read_status
    from deploy_kit.errors import DeployKitError, nearest_names
    from deploy_kit.exit_codes import ExitCode
    from deploy_kit.output import print_json

    if follow and as_json:
        raise DeployKitError("--json needs an end, --follow has none", exit_code=ExitCode.USAGE)
    containers = {one.service: one for one in read_status()}
    if service is None:
        engines = sorted(
            (one for one in containers.values() if one.service in SERVICES.values()),
            key=lambda one: one.state != "running",
        )
        service = engines[0].service if engines else "kimi-eagle"
    if service not in containers:
        raise DeployKitError(
            f"no container of the service {service}",
            key="SERVICE",
            found=service,
            allowed=nearest_names(service, list(containers))
            or list(containers)
            or "nothing is deployed here",
            remedy="deploy-kit status lists them",
            exit_code=ExitCode.UNKNOWN_NAME,
        )
    command = ["docker", "logs", "--tail", str(tail), *(["--follow"] if follow else [])]
    command.append(containers[service].container)
    if not as_json:
        # Both streams of a container are its log; here they are the result, so both go to stdout.
        done = subprocess.run(command, stdout=sys.stdout, stderr=subprocess.STDOUT, check=False)
        raise typer.Exit(done.returncode)
    read = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )
    if read.returncode != 0:
        raise container_error("reading the log", read.stdout)
    print_json({"service": service, "lines": read.stdout.splitlines()})
