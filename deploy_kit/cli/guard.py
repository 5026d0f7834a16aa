"""`deploy-kit guard`: watch whether speculation still pays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from deploy_kit.decision.guard import Action, Guard, Look

app = typer.Typer(add_completion=False)


@app.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Example: deploy-kit guard http://127.0.0.1:9400/metrics http://127.0.0.1:30000/metrics "
    "--allow-redeploy -- deploy-kit deploy --profile baseline",
)
def guard(
    exporter: str = typer.Argument(help="The exporter's metrics: where the speed-up ratio is."),
    engine: str = typer.Argument(help="The engine's metrics: how many requests run."),
    command: list[str] = typer.Argument(None, help="After --: what redeploys the baseline."),
    allow_redeploy: bool = typer.Option(False, "--allow-redeploy", help="Run the command when quiet, once."),
    every: float = typer.Option(60.0, "--every", min=0.1, help="Seconds between looks."),
    window: float = typer.Option(1800.0, "--window", min=1, help="Seconds the ratio is judged over."),
    min_samples: int = typer.Option(20, "--min-samples", min=2, help="Looks with a ratio it needs in there."),
    losing: float = typer.Option(0.97, "--losing", min=0, max=1, help="Losing below this ratio."),
    winning: float = typer.Option(1.03, "--winning", min=1, help="No longer losing above this ratio."),
    quiet: float = typer.Option(120.0, "--quiet", min=0, help="Seconds without a request before acting."),
    receipts: Path = typer.Option(Path("receipts"), "--receipts", help="Where events are recorded."),
    stop_after: float | None = typer.Option(
        None, "--for", min=0, help="Seconds to watch; default: for ever."
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object a line for each event."),
) -> None:
    """Watch the speed-up of speculation, tell and record when it has been losing, and redeploy the baseline
    at a quiet moment if allowed to, once.

    Exit code 0: watched as long as asked, or redeployed; 20: still losing at the end; 14: the redeploy
    command failed; 2: wrong options.
    """
    import time

    from deploy_kit.decision.guard import Guard, GuardRules
    from deploy_kit.errors import DeployKitError
    from deploy_kit.exit_codes import ExitCode

    for key, address in (("EXPORTER", exporter), ("ENGINE", engine)):
        if not address.startswith(("http://", "https://")):
            raise DeployKitError(
                "this is no address of metrics",
                key=key,
                found=address,
                allowed="http://HOST:PORT/metrics",
                exit_code=ExitCode.USAGE,
            )
    if command and command[0].startswith("-"):
        raise DeployKitError(
            "no such option",
            found=command[0],
            remedy="deploy-kit guard --help lists them; the command that redeploys stands after --",
            exit_code=ExitCode.USAGE,
        )
    if allow_redeploy != bool(command):
        raise DeployKitError(
            "acting needs both leave and a command",
            key="--allow-redeploy",
            remedy="give --allow-redeploy and, after --, the command; or neither",
            exit_code=ExitCode.USAGE,
        )
    rules = GuardRules(
        losing_ratio=losing,
        winning_ratio=winning,
        window_seconds=window,
        min_samples=min_samples,
        quiet_seconds=quiet,
        may_redeploy=allow_redeploy,
    )
    watcher = Guard(rules)
    began = time.monotonic()
    told: tuple[str, ...] = ()
    while stop_after is None or time.monotonic() - began < stop_after:
        look, about = look_once(exporter, engine)
        if (missing := _missing(look)) != told:
            told = missing
            typer.echo(
                f"not read: {', '.join(missing)}" if missing else "read: the ratio and what runs", err=True
            )
        action = watcher.see(look)
        if action != "none":
            _record(action, watcher, about, receipts, as_json)
        if action == "redeploy":
            _run(command)
            return
        left = every if stop_after is None else stop_after - (time.monotonic() - began)
        time.sleep(max(0.0, min(every, left)))
    if watcher.losing:
        raise typer.Exit(int(ExitCode.VERDICT_WARN))


def look_once(exporter: str, engine: str) -> tuple[Look, dict[str, str]]:
    """Return one look, and the labels of the plan that is served; what cannot be read is None in it."""
    import time

    from deploy_kit.decision.guard import Look
    from deploy_kit.metrics.reading import read
    from deploy_kit.metrics.text import parse

    ratio: float | None = None
    about: dict[str, str] = {}
    for sample in parse(_page(exporter)).samples:
        if sample.name == "deploy_kit_speculation_speedup_ratio" and 0 <= sample.value < 1e6:
            ratio = sample.value
        if sample.name == "deploy_kit_plan_info":
            about = dict(sample.labels)
    engines = read(parse(_page(engine))).engines
    counts = [(part.value("running"), part.value("queued")) for part in engines]
    known = bool(counts) and all(running is not None for running, _ in counts)
    total = sum((running or 0.0) + (queued or 0.0) for running, queued in counts)
    return Look(time.time(), ratio, total if known else None), about


def _missing(look: Look) -> tuple[str, ...]:
    """Return what a look did not find: without both there is no verdict, or no moment to act."""
    return tuple(
        name
        for name, value in (
            ("the speed-up ratio (EXPORTER)", look.ratio),
            ("the running requests (ENGINE)", look.running),
        )
        if value is None
    )


def _page(url: str) -> str:
    import httpx

    try:
        page = httpx.get(url, timeout=10.0, follow_redirects=True)
    except (httpx.HTTPError, httpx.InvalidURL):
        return ""
    return page.text if page.status_code == 200 else ""


def _record(action: Action, watcher: Guard, about: dict[str, str], folder: Path, as_json: bool) -> None:
    import json
    from dataclasses import asdict

    from deploy_kit.receipts import Host, new_receipt, write_receipt

    edges = watcher.ratio_between()
    receipt = new_receipt(
        kind="guard",
        host=Host(name=about.get("host") or "unknown"),
        rehearsal=about.get("rehearsal") in ("true", "yes", "1"),
        plan_id=about.get("plan_id"),
        subject={"action": action, "rules": asdict(watcher.rules), "profile": about.get("profile")},
        samples=[list(pair) for pair in watcher.samples()],
        summary={"ratio_between": None if edges is None else list(edges)},
    )
    path = write_receipt(folder, receipt)
    words = {
        "alert": "speculation is losing",
        "recovered": "speculation pays again",
        "redeploy": "redeploying the baseline",
    }[action]
    between = "" if edges is None else f" (ratio {edges[0]:.2f} to {edges[1]:.2f})"
    if as_json:
        typer.echo(json.dumps({"action": action, "ratio_between": edges, "receipt": str(path)}))
    else:
        typer.echo(f"{words}{between}; recorded in {path}")


def _run(command: list[str]) -> None:
    import subprocess

    from deploy_kit.errors import DeployKitError
    from deploy_kit.exit_codes import ExitCode

    try:
        code = subprocess.run(command, check=False).returncode
    except OSError as error:
        raise DeployKitError(
            f"the redeploy command cannot be run: {error}", found=command[0], exit_code=ExitCode.DEPLOY_FAILED
        ) from error
    if code != 0:
        raise DeployKitError(
            f"the redeploy command ended with {code}",
            found=" ".join(command),
            exit_code=ExitCode.DEPLOY_FAILED,
        )
