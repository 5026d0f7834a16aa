"""`deploy-kit probe`: measure all-reduce, or accept the fusion lever, the way serving uses them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from deploy_kit.probe.setup import Request

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)

_HOST = typer.Option(None, "--host", help="A host's name in configs/hosts, or a host file.")
_MODEL = typer.Option("kimi-k2.5", "--model", help="A model's name in configs/models.")
_TOKENS = typer.Option("1,3,4,8,16,32,64", "--tokens", help="Sizes to measure, in tokens.")
_COUNT = typer.Option(None, "--count", help="All-reduces in one graph; default: the model's, a forward.")
_RANKS = typer.Option(
    None, "--ranks", help="Processes; default: the host's tensor parallel size, or all GPUs."
)
_BUDGET = typer.Option(120.0, "--budget-seconds", help="Time for the search; the best found so far is kept.")
_CANDIDATES = typer.Option("", "--candidates", help="Only these, by name, comma separated; no search.")
_BACKEND = typer.Option("auto", "--backend", help="auto, nccl, or gloo (a rehearsal on CPU).")
_JSON = typer.Option(False, "--json", help="Print the summary as JSON on stdout.")
_RECEIPTS = typer.Option(None, "--receipts", help="Folder that gets the receipt with every sample.")
_PYTHON = typer.Option(
    None,
    "--python",
    help="Interpreter with torch for the ranks; default: $DEPLOY_KIT_TORCH_PYTHON, or this one.",
)
_LIMIT = typer.Option(25.0, "--step-limit-seconds", help="A rank that needs longer for one step hangs.")
_SHARE = typer.Option(
    False, "--share-gpu", help="All ranks on one GPU: check results of what needs no NCCL, time nothing."
)
_CONFIGS = typer.Option(None, "--configs", help="The folder that holds the configurations.")


@app.callback()
def probe() -> None:
    """Find the fastest correct all-reduce, or accept a fused one, before any model is loaded. Changes no
    host setting. Exit code 0: found; 20: NCCL's default is not correct here, another is; 21: nothing
    correct, or rejected; 22: could not find out."""


@app.command(
    epilog="Example: deploy-kit probe allreduce --host rtx-pro-6000-x8 --plot allreduce --receipts receipts"
)
def allreduce(
    host: str | None = _HOST,
    model: str = _MODEL,
    tokens: str = _TOKENS,
    count: int | None = _COUNT,
    ranks: int | None = _RANKS,
    budget_seconds: float = _BUDGET,
    candidates: str = _CANDIDATES,
    axes: str = typer.Option(
        "", "--axes", help="Search only these axes: protocol, algorithm, channels, buffer, p2p."
    ),
    grid: str = typer.Option(
        "", "--grid", help='Measure every combination, e.g. "protocol=LL,Simple channels=2,4"; no search.'
    ),
    backend: str = _BACKEND,
    as_json: bool = _JSON,
    receipts: Path | None = _RECEIPTS,
    plot: Path | None = typer.Option(None, "--plot", help="Write the plot here as .png and .html."),
    write_host: Path | None = typer.Option(
        None, "--write-host", help="Put the chosen NCCL settings into this host file's [nccl] table."
    ),
    decode_step_ms: float | None = typer.Option(
        None,
        "--decode-step-ms",
        min=0.001,
        max=600_000,
        help="Measured step of plain decoding, for the break-even.",
    ),
    cycle_ms: float | None = typer.Option(
        None,
        "--cycle-ms",
        min=0.001,
        max=600_000,
        help="Measured draft-and-verify cycle, for the break-even.",
    ),
    python: str | None = _PYTHON,
    step_limit_seconds: float = _LIMIT,
    share_gpu: bool = _SHARE,
    configs: Path | None = _CONFIGS,
) -> None:
    """Measure candidates for the model's all-reduce: NCCL settings by coordinate search, and what else is
    installed. Each runs in processes of its own with a time limit a step; the result is a latency, or wrong,
    hang (which rank, where), crash (cause), unsupported (reason). Names: nccl-default, LL, ring, 8ch, 1mB,
    p2p=SYS and their combinations (LL+8ch), story-2ch-128k, symm-one-shot, flashinfer-pcie-ipc, …"""
    from deploy_kit.probe import setup
    from deploy_kit.probe.verdict import summarize

    request = _request(
        host,
        model,
        tokens,
        count,
        ranks,
        budget_seconds,
        candidates,
        backend,
        python,
        step_limit_seconds,
        configs,
        share_gpu,
    )
    prepared = setup.prepare(request)
    if write_host is not None:
        setup.refuse_early(write_host, prepared)
    run = _with_progress(lambda say: setup.run_allreduce(prepared, say, axes=axes, grid=grid))
    summary = summarize(run, decode_step_ms=decode_step_ms, cycle_ms=cycle_ms)
    files = setup.keep(
        prepared, run, summary, kind="allreduce", receipts=receipts, plot=plot, write_host=write_host
    )
    _finish(prepared, run, summary, files, as_json, fusion=False)


@app.command(epilog="Example: deploy-kit probe fusion --ranks 8 --receipts receipts")
def fusion(
    host: str | None = _HOST,
    model: str = _MODEL,
    tokens: str = _TOKENS,
    count: int | None = _COUNT,
    ranks: int | None = _RANKS,
    candidates: str = _CANDIDATES,
    backend: str = _BACKEND,
    as_json: bool = _JSON,
    receipts: Path | None = _RECEIPTS,
    python: str | None = _PYTHON,
    step_limit_seconds: float = _LIMIT,
    share_gpu: bool = _SHARE,
    configs: Path | None = _CONFIGS,
) -> None:
    """Accept or reject fused all-reduce + residual + RMSNorm: every rank's result against a float64
    reference, eager and in one CUDA graph, with changing inputs and late ranks, and equal bits on all ranks.
    Acceptance is about numbers only; whether the lever pays is for bench to say."""
    from deploy_kit.probe import setup
    from deploy_kit.probe.fusion import summarize_fusion

    request = _request(
        host,
        model,
        tokens,
        count,
        ranks,
        600.0,
        candidates,
        backend,
        python,
        step_limit_seconds,
        configs,
        share_gpu,
    )
    prepared = setup.prepare(request, task="fusion")
    run = _with_progress(lambda say: setup.run_fusion(prepared, say))
    summary = summarize_fusion(run)
    files = setup.keep(prepared, run, summary, kind="fusion", receipts=receipts)
    _finish(prepared, run, summary, files, as_json, fusion=True)


def _request(
    host: str | None,
    model: str,
    tokens: str,
    count: int | None,
    ranks: int | None,
    budget_seconds: float,
    candidates: str,
    backend: str,
    python: str | None,
    step_limit_seconds: float,
    configs: Path | None,
    share_gpu: bool,
) -> Request:
    from deploy_kit.probe.setup import Request

    return Request(
        host=host,
        model=model,
        tokens=tokens,
        count=count,
        ranks=ranks,
        budget_seconds=budget_seconds,
        candidates=candidates,
        backend=backend,
        python=python,
        step_limit_seconds=step_limit_seconds,
        configs=configs,
        shared_gpu=share_gpu,
    )


def _with_progress(run: Any) -> Any:
    """Run with a line of progress on stderr: what is being done, and for how long."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from deploy_kit.output import stderr_console

    console = stderr_console()
    if not console.is_terminal:
        # A log gets one line for what matters: starts and failures, not every step.
        def log(text: str) -> None:
            if not text.startswith("measuring "):
                console.print(text, markup=False, soft_wrap=True)

        return run(log)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def say(text: str) -> None:
            if " (after " in text:
                progress.console.print(text, markup=False)
            progress.update(task, description=text[: max(20, console.width - 14)])

        return run(say)


def _finish(
    prepared: Any, run: Any, summary: dict[str, Any], files: list[str], as_json: bool, *, fusion: bool
) -> None:
    from deploy_kit.exit_codes import ExitCode
    from deploy_kit.output import print_json, stdout_console
    from deploy_kit.probe.report import describe, describe_fusion

    if as_json:
        print_json({**summary, "rehearsal": prepared.settings.is_rehearsal, "files": files})
    else:
        console = stdout_console()
        console.print(describe_fusion(run, summary) if fusion else describe(run, summary))
        for file in files:
            console.print(f"written: {file}", markup=False, soft_wrap=True)
    codes = {
        "ok": ExitCode.OK,
        "warn": ExitCode.VERDICT_WARN,
        "fail": ExitCode.VERDICT_FAIL,
        "unknown": ExitCode.VERDICT_UNKNOWN,
    }
    raise typer.Exit(int(codes[summary["verdict"]]))
