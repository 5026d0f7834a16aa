"""`deploy-kit down`: what `make down` runs."""

from __future__ import annotations

import typer

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: deploy-kit down --volumes")
def down(
    volumes: bool = typer.Option(False, "--volumes", help="Remove Prometheus's stored data too."),
    keep_docker: bool = typer.Option(
        False, "--keep-docker", help="Leave a dockerd that `up` started by hand running."
    ),
    timeout: int = typer.Option(75, "--timeout", min=1, help="Seconds an engine may take to drain."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Stop and remove the project's containers and networks, and the dockerd that `up` started by hand
    where systemd is not process 1. A Docker that `up` found running, images, settings and the key stay."""
    from deploy_kit.deploy.compose import DOCKERD_PID_FILE, own_dockerd, remove_project, stop_dockerd
    from deploy_kit.deploy.machine import docker_answers
    from deploy_kit.output import print_json, stderr_console

    stopped: list[str] = []
    if docker_answers():
        with stderr_console().status("stopping the services …"):
            stopped = remove_project(timeout_seconds=timeout, volumes=volumes)
    pid = None if keep_docker else own_dockerd()
    if pid is not None:
        stop_dockerd(pid)
        DOCKERD_PID_FILE.unlink(missing_ok=True)
    if as_json:
        print_json({"stopped_services": stopped, "stopped_dockerd": pid})
        return
    typer.echo("stopped: " + (", ".join(stopped) or "nothing of ours was running"))
    if pid is not None:
        typer.echo(f"stopped: dockerd (process {pid}), which `up` had started")
