"""`deploy-kit firstlight`: what a person with the box runs first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from deploy_kit.firstlight.settings import Settings, Situation, State
    from deploy_kit.firstlight.steps import Step

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: deploy-kit firstlight --host rtx-pro-6000-x8 -o firstlight.tar.gz")
def firstlight(
    output: Path = typer.Option(..., "--output", "-o", help="The file to share, FILE.tar.gz."),
    host: str | None = typer.Option(None, "--host", help="A host's name in configs/hosts, or a host file."),
    model: str | None = typer.Option(None, "--model", help="A model's name in configs/models."),
    stack: str | None = typer.Option(None, "--stack", help="A stack's name in configs/stacks."),
    profile: list[str] = typer.Option(
        ["baseline", "eagle3"], "--profile", "-p", help="What to measure, in this order; may be repeated."
    ),
    server: list[str] = typer.Option(
        [], "--server", help="PROFILE=URL: measure this running server instead of starting one."
    ),
    api_key_file: Path | None = typer.Option(None, "--api-key-file", help="The key of those servers."),
    starts: int = typer.Option(1, "--starts", min=1, max=20, help="Starts of each profile, in turns."),
    concurrency: str | None = typer.Option(
        None, "--concurrency", help="Streams at once, as in bench (1,8,32; rehearsal 1,4)."
    ),
    rounds: int | None = typer.Option(None, "--rounds", min=1, help="Rounds of each cell (3; rehearsal 2)."),
    requests: int = typer.Option(4, "--requests", min=1, help="Requests of each stream in a round."),
    output_tokens: int | None = typer.Option(
        None, "--output-tokens", min=2, help="The length of each answer (256; rehearsal 64)."
    ),
    probe_seconds: int | None = typer.Option(
        None, "--probe-seconds", min=1, help="Time for the all-reduce search, seconds (120; rehearsal 20)."
    ),
    traffic: str | None = typer.Option(None, "--traffic", help="Shares of load, as decide takes them."),
    work: Path | None = typer.Option(
        None,
        "--work",
        help="Folder for everything on the way; run again with it to go on. Default: FILE.work.",
    ),
    redact: bool = typer.Option(False, "--redact", help="Remove host names, user names and addresses, too."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would run and how long; run nothing."),
    as_json: bool = typer.Option(False, "--json", help="Print the steps and the file as JSON."),
) -> None:
    """Run doctor, the all-reduce probe, the fusion's acceptance, then baseline and EAGLE-3 with bench each,
    then decide and report, and pack it all into one file without secrets.

    Without a GPU it is a rehearsal (steps that need one are skipped). A failing step does not stop the rest.
    Interrupted, the same command goes on. Exit code 0: all ran; 20: packed, but a step failed.
    """
    from deploy_kit.exit_codes import ExitCode
    from deploy_kit.firstlight.pack import pack
    from deploy_kit.firstlight.run import Runner
    from deploy_kit.firstlight.secrets import make_guard
    from deploy_kit.firstlight.situation import key_files, look, refuse_foreign_engines
    from deploy_kit.output import print_json, stderr_console

    settings = _settings(
        host, model, stack, profile, server, api_key_file, starts, concurrency, rounds, requests,
        output_tokens, probe_seconds, traffic,
    )  # fmt: skip
    folder = work or output.with_name(output.name.removesuffix(".gz").removesuffix(".tar") + ".work")
    situation = look(settings)
    console = stderr_console()

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    runner = Runner(settings, situation, folder, say)
    if dry_run:
        _show_plan(runner.steps, runner.state, situation, as_json=as_json)
        return
    _refuse_unwritable(output)
    refuse_foreign_engines(settings, runner.state)
    total = sum(step.estimate_seconds for step in runner.steps if step.skip is None)
    say(f"about {_duration(total)} in all; interrupted, the same command goes on (work folder {folder})")
    state = runner.run(refresh=lambda: look(settings))
    guard = make_guard(key_files(settings, runner.work), redact=redact)
    packed = pack(runner.work, output, state, guard, rehearsal=situation.rehearsal)
    failed = [name for name, step in state.steps.items() if step.outcome == "failed"]
    if as_json:
        print_json(
            {
                "rehearsal": situation.rehearsal,
                "host": situation.host,
                "steps": {name: step.model_dump() for name, step in state.steps.items()},
                "failed": failed,
                **packed,
            }
        )
    else:
        if situation.rehearsal:
            typer.echo("REHEARSAL: no GPU here; nothing in the file says anything about real hardware")
        for name, step in state.steps.items():
            typer.echo(f"{name:24} {step.outcome:9} {step.why or ''}".rstrip())
        typer.echo(f"written: {packed['file']} ({packed['bytes']} bytes); read report.html in it first")
    if failed:
        raise typer.Exit(int(ExitCode.VERDICT_WARN))


def _settings(
    host: str | None,
    model: str | None,
    stack: str | None,
    profiles: list[str],
    servers: list[str],
    api_key_file: Path | None,
    starts: int,
    concurrency: str | None,
    rounds: int | None,
    requests: int,
    output_tokens: int | None,
    probe_seconds: int | None,
    traffic: str | None,
) -> Settings:
    from deploy_kit.cli.bench import numbers
    from deploy_kit.decision.traffic import parse_traffic
    from deploy_kit.errors import DeployKitError
    from deploy_kit.exit_codes import ExitCode
    from deploy_kit.firstlight.settings import Settings
    from deploy_kit.runtime.preflight import count_gpus

    urls: dict[str, str] = {}
    for entry in servers:
        name, _, url = entry.partition("=")
        if name not in profiles or not url.startswith(("http://", "https://")):
            raise DeployKitError(
                "--server cannot be read",
                key="--server",
                found=entry,
                allowed=f"PROFILE=http://HOST:PORT, PROFILE one of {', '.join(profiles)}",
                exit_code=ExitCode.USAGE,
            )
        if name in urls:
            raise DeployKitError(
                "--server names a profile twice",
                key="--server",
                found=f"{name}={urls[name]} and {entry}",
                allowed="one server for each profile",
                exit_code=ExitCode.USAGE,
            )
        urls[name] = url
    if traffic:
        parse_traffic(traffic)
    rehearsal = count_gpus() == 0
    streams = concurrency or ("1,4" if rehearsal else "1,8,32")
    return Settings(
        host=host,
        model=model,
        stack=stack,
        profiles=tuple(dict.fromkeys(profiles)),
        servers=urls,
        api_key_file=None if api_key_file is None else str(api_key_file.resolve()),
        starts=starts,
        concurrencies=tuple(int(number) for number in numbers(streams, "--concurrency", whole=True)),
        rounds=rounds or (2 if rehearsal else 3),
        requests=requests,
        output_tokens=output_tokens or (64 if rehearsal else 256),
        probe_seconds=probe_seconds or (20 if rehearsal else 120),
        traffic=traffic,
    )


def _show_plan(steps: list[Step], state: State, situation: Situation, *, as_json: bool) -> None:
    import re
    import shlex

    from deploy_kit.output import print_json

    rows = []
    for step in steps:
        known = state.steps.get(step.name)
        done = known is not None and known.outcome == "done"
        rows.append(
            {
                "step": step.name,
                "title": step.title,
                "estimate_seconds": step.estimate_seconds,
                "state": "done" if done else f"skipped: {step.skip}" if step.skip else "to run",
                "waits_for": step.postpone,
                "command": re.sub(
                    r"'?\{(url|key):[^}]*\}'?",
                    lambda match: "URL" if match[1] == "url" else "KEYFILE",
                    shlex.join(["deploy-kit", *step.arguments]),
                ),
            }
        )
    left = sum(
        step.estimate_seconds for step, row in zip(steps, rows, strict=True) if row["state"] == "to run"
    )
    if as_json:
        print_json(
            {"dry_run": True, "rehearsal": situation.rehearsal, "estimate_seconds": left, "steps": rows}
        )
        return
    for row in rows:
        typer.echo(f"{row['step']:18} {_duration(float(str(row['estimate_seconds']))):>9}  {row['state']}")
        typer.echo(f"{'':18} {'':>9}  {row['command']}")
    typer.echo(f"about {_duration(left)} in all (an estimate); nothing was run")


def _duration(seconds: float) -> str:
    from deploy_kit.firstlight.run import duration

    return duration(seconds)


def _refuse_unwritable(output: Path) -> None:
    from deploy_kit.errors import DeployKitError
    from deploy_kit.exit_codes import ExitCode

    if not output.parent.is_dir() or output.is_dir():
        raise DeployKitError(
            "the file cannot be written there",
            file=output,
            key="-o",
            allowed="a file name in a folder that exists",
            exit_code=ExitCode.USAGE,
        )
