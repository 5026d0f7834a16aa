"""`deploy-kit bench`: measure a running server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from deploy_kit.bench.run import About, Progress, Settings
    from deploy_kit.receipts import Receipt

app = typer.Typer(add_completion=False)


@app.command(
    epilog="Example: deploy-kit plan eagle3 --json > plan.json; "
    "deploy-kit bench http://127.0.0.1:30000 --plan plan.json --concurrency 1,8,32 --api-key-file key"
)
def bench(
    url: str | None = typer.Argument(None, help="The server's address, http://HOST:PORT."),
    plan: Path | None = typer.Option(
        None, "--plan", help="The plan it runs, from `deploy-kit plan … --json`: names profile, host, stack."
    ),
    profile: str | None = typer.Option(None, "--profile", help="The profile's name, without a plan."),
    lever: list[str] = typer.Option([], "--lever", help="A lever in use, without a plan; may be repeated."),
    host: str = typer.Option("unknown", "--host", help="The measured host's name, without a plan."),
    concurrency: str = typer.Option("1,4,16", "--concurrency", help="Closed loops: streams at once."),
    rate: str = typer.Option("", "--rate", help="Open loops: arrivals a second, Poisson."),
    rounds: int = typer.Option(3, "--rounds", min=1, help="How often each cell is measured."),
    requests: int = typer.Option(4, "--requests", min=1, help="Requests of each stream in a cell."),
    open_requests: int = typer.Option(32, "--open-requests", min=1, help="Arrivals in an open-loop cell."),
    output_tokens: int = typer.Option(256, "--output-tokens", min=2, help="The length of each answer."),
    prompts: Path | None = typer.Option(
        None, "--prompts", help="Prompts: .jsonl or text; see docs/bench.md."
    ),
    prompt_tokens: int | None = typer.Option(
        None, "--prompt-tokens", min=16, help="About so long, from the built-in prompts."
    ),
    temperature: float = typer.Option(0.0, "--temperature", min=0, max=2),
    ignore_eos: bool = typer.Option(True, "--ignore-eos/--no-ignore-eos", help="Fixed lengths of answers."),
    unique: bool = typer.Option(True, "--unique/--shared-prefix", help="Keep the prefix cache out of it."),
    seed: int = typer.Option(1, "--seed", help="Of the prompts' order and the arrivals."),
    retries: int = typer.Option(2, "--retries", min=0, help="For refused requests (429, 502, 503, no link)."),
    timeout: float = typer.Option(600.0, "--timeout", min=1, help="Seconds for one answer."),
    interface: str = typer.Option("openai", "--interface", help="openai, or sglang (/generate)."),
    model: str | None = typer.Option(None, "--model", help="The served name; asked for when not given."),
    api_key_file: Path | None = typer.Option(None, "--api-key-file", help="The file that holds the key."),
    metrics_url: str | None = typer.Option(None, "--metrics-url", help="If not at URL/metrics."),
    receipts: Path = typer.Option(Path("receipts"), "--receipts", help="Where the receipt goes."),
    server_start: str | None = typer.Option(
        None, "--server-start", help="A name for this start of the server, to tell starts apart."
    ),
    rehearsal: bool = typer.Option(False, "--rehearsal", help="Mark as rehearsal (CPU engines always are)."),
    self_test: bool = typer.Option(False, "--self-test", help="Measure this client against a stand-in."),
    as_json: bool = typer.Option(False, "--json", help="Print the receipt (without samples) as JSON."),
) -> None:
    """Measure the server at URL: closed and open loops, streamed, with every sample kept in a receipt.

    Accept length and verify time come from the engine's own counters over exactly each cell. Exit code 0:
    measured; 20: measured, with failed requests; 15: the server cannot be reached; 21: the self-test says
    that this machine is too slow to measure with; 22: it is too busy now to say.
    """
    from deploy_kit.errors import DeployKitError
    from deploy_kit.exit_codes import ExitCode

    if self_test:
        _self_test(as_json)
        return
    if url is None:
        raise DeployKitError("which server?", key="URL", allowed="http://HOST:PORT", exit_code=ExitCode.USAGE)
    if interface not in ("openai", "sglang"):
        raise DeployKitError(
            "no such interface",
            key="--interface",
            found=interface,
            allowed=["openai", "sglang"],
            exit_code=ExitCode.USAGE,
        )
    from deploy_kit.bench.about import about_plan, read_key
    from deploy_kit.bench.prompts import built_in, from_file
    from deploy_kit.bench.run import About, Settings
    from deploy_kit.bench.stream import parse_endpoint
    from deploy_kit.receipts import write_receipt
    from deploy_kit.receipts.bench import was_interrupted

    endpoint = parse_endpoint(url)
    settings = Settings(
        concurrencies=tuple(int(n) for n in numbers(concurrency, "--concurrency", whole=True)),
        rates_per_second=numbers(rate, "--rate", whole=False) if rate else (),
        rounds=rounds,
        requests_per_stream=requests,
        open_requests=open_requests,
        output_tokens=output_tokens,
        temperature=temperature,
        ignore_eos=ignore_eos,
        seed=seed,
        retries=retries,
        timeout_seconds=timeout,
        unique=unique,
    )
    if plan is not None:
        about = about_plan(plan)
    elif profile is not None:
        about = About(profile=profile, levers=tuple(lever), host=host, rehearsal=rehearsal)
    else:
        raise DeployKitError(
            "what does the server run?",
            key="--plan",
            remedy="give --plan FILE (deploy-kit plan … --json), or at least --profile NAME",
            exit_code=ExitCode.USAGE,
        )
    about = _completed(about, server_start, rehearsal)
    chosen = from_file(prompts) if prompts is not None else built_in(prompt_tokens)
    key = read_key(api_key_file)
    receipt = _measure(
        settings,
        about,
        url=endpoint,
        prompts=chosen,
        interface=interface,
        model=model,
        key=key,
        metrics=metrics_url,
    )
    path = write_receipt(receipts, receipt)
    _show(receipt, path, as_json)
    if was_interrupted(receipt):
        raise typer.Exit(int(ExitCode.INTERRUPTED))
    if receipt.summary.get("errors"):
        raise typer.Exit(int(ExitCode.VERDICT_WARN))


def numbers(text: str, key: str, *, whole: bool) -> tuple[float, ...]:
    """Given "1,8,32", return the numbers; each must be above 0 (and whole, and at most 4096, if so asked)."""
    from deploy_kit.errors import DeployKitError
    from deploy_kit.exit_codes import ExitCode

    found: list[float] = []
    for part in text.split(","):
        try:
            value = float(int(part)) if whole else float(part)
        except ValueError:
            value = -1.0
        if not 0 < value <= (4096 if whole else 1e6):
            raise DeployKitError(
                f"{key} cannot be read",
                key=key,
                found=part.strip() or repr(text),
                allowed="numbers above 0, set apart by commas: 1,8,32",
                exit_code=ExitCode.USAGE,
            )
        found.append(value)
    return tuple(dict.fromkeys(found))


def _completed(about: About, server_start: str | None, rehearsal: bool) -> About:
    import sys
    from dataclasses import replace

    from deploy_kit.bench.about import without_folders

    return replace(
        about,
        server_start=server_start,
        rehearsal=about.rehearsal or rehearsal,
        arguments=without_folders(sys.argv[1:]),
    )


def _measure(
    settings: Settings,
    about: About,
    *,
    url: object,
    prompts: object,
    interface: str,
    model: str | None,
    key: str | None,
    metrics: str | None,
) -> Receipt:
    import asyncio
    import signal
    import threading

    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    from deploy_kit.bench.run import bench as run_bench
    from deploy_kit.output import stderr_console

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=stderr_console(), transient=True, refresh_per_second=2) as bars:
        task = bars.add_task("warm-up", total=None)

        def progress(what: str, done: int, total: int) -> None:
            bars.update(task, description=what, completed=done, total=total)

        show: Progress = progress

        async def until_told() -> Receipt:
            # Asked to end, it keeps what is finished, as Ctrl-C does.
            task = asyncio.current_task()
            if task is not None and threading.current_thread() is threading.main_thread():
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
            return await run_bench(
                url,  # type: ignore[arg-type]
                prompts,  # type: ignore[arg-type]
                settings,
                about,
                interface=interface,  # type: ignore[arg-type]
                model=model,
                api_key=key,
                metrics_url=metrics,
                progress=show,
                keep_finished=True,
            )

        try:
            return asyncio.run(until_told())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


def _show(receipt: Receipt, path: Path, as_json: bool) -> None:
    from deploy_kit.bench.describe import describe
    from deploy_kit.output import print_json

    if as_json:
        content = receipt.model_dump(mode="json", exclude={"samples"})
        print_json({"file": str(path), "sample_count": len(receipt.samples), **content})
    else:
        typer.echo(describe(receipt))
        typer.echo(f"written to {path}")


def _self_test(as_json: bool) -> None:
    from deploy_kit.bench.selftest import self_test
    from deploy_kit.exit_codes import ExitCode
    from deploy_kit.output import print_json

    result = self_test()
    if as_json:
        print_json(result.as_dict())
    else:
        typer.echo(
            f"{'fit' if result.passed else 'TOO SLOW'} to measure with: {result.streams} streams, "
            f"{result.tokens_per_second:.0f} tok/s from a stand-in server\n"
            f"  added to the median token gap {result.added_seconds * 1000:+.3f} ms (limit 1 ms)\n"
            f"  the stand-in's own median gap {result.server_gap_p50_seconds * 1000:.2f} of "
            f"{result.gap_seconds * 1000:.2f} ms{' (this machine is busy)' if result.machine_busy else ''}\n"
            f"  delay of an event p50 {result.delay_p50_seconds * 1000:.2f} ms, p99 "
            f"{result.delay_p99_seconds * 1000:.2f} ms; client's processor use "
            f"{result.client_cpu_ratio * 100:.0f} % of one"
        )
    if not result.passed:
        # When the stand-in could not keep its own pace, the machine is busy: that is no verdict.
        busy = result.machine_busy
        raise typer.Exit(int(ExitCode.VERDICT_UNKNOWN if busy else ExitCode.VERDICT_FAIL))
