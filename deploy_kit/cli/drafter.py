"""`deploy-kit drafter`: check, compare, remap and predict drafters, before any load."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from deploy_kit.drafter.description import Description

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)

_VERDICT_CODES = {"ok": ExitCode.OK, "warn": ExitCode.VERDICT_WARN, "reject": ExitCode.VERDICT_FAIL}


@app.callback()
def drafter() -> None:
    """Check, compare, remap and predict EAGLE-3 drafters. Only `remap` writes, and only its output."""


@app.command(
    epilog="Example: deploy-kit drafter check /models/drafters/kimi-k2.5-eagle3-mla --target "
    "/models/kimi-k2.5 --json. "
    "Exit codes: 0 ok, 20 warn, 21 reject, 5 unreadable input."
)
def check(
    draft: Path | None = typer.Argument(None, help="The drafter's folder, or one safetensors file."),
    target: Path | None = typer.Option(None, "--target", help="The target's folder or its config.json."),
    description: Path | None = typer.Option(
        None,
        "--from",
        help="A pasted description instead of files (config.json, target's fields, listing); - is stdin.",
    ),
    stack: str | None = typer.Option(
        None, "--stack", help="The stack that will serve it; default for folders: current."
    ),
    sglang_version: str | None = typer.Option(
        None, "--sglang-version", help="An SGLang version instead of a stack."
    ),
    flags: str = typer.Option(
        "", "--server-flags", help="The server's flags, in one string: they can change the verdict."
    ),
    tensor_parallel: int | None = typer.Option(
        None, "--tp", min=1, help="GPUs the drafter is divided among."
    ),
    every_value: bool = typer.Option(False, "--every-value", help="Read all weights for NaN, not samples."),
    configs: Path | None = typer.Option(None, "--configs", help="The folder that holds the configurations."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Tell whether this drafter will load and be accepted with this target: ok, warn or reject, and why.

    Only config.json, safetensors headers, the small maps and samples of the values are read.
    """
    from deploy_kit.drafter.check import check_drafter
    from deploy_kit.drafter.render import render_report
    from deploy_kit.output import print_json, stdout_console

    version = _version(stack, sglang_version, configs, default=description is None)
    known = _described(draft, target, description, version, flags, tensor_parallel, every_value)
    report = check_drafter(known)
    if as_json:
        print_json(report.as_dict())
    else:
        stdout_console().print(render_report(report))
    raise typer.Exit(int(_VERDICT_CODES[report.verdict]))


def _described(
    draft: Path | None,
    target: Path | None,
    description: Path | None,
    version: str | None,
    flags: str,
    tensor_parallel: int | None,
    every_value: bool,
) -> Description:
    from dataclasses import replace

    from deploy_kit.drafter.local import describe_folder, read_target_config
    from deploy_kit.drafter.paste import PASTE_LIMIT_BYTES, parse_flags, parse_paste
    from deploy_kit.files import read_stdin, read_text

    if (draft is None) == (description is None):
        raise DeployKitError(
            "give either a drafter or --from",
            remedy="deploy-kit drafter check FOLDER --target FOLDER, or --from FILE",
            exit_code=ExitCode.USAGE,
        )
    given = parse_flags(flags)
    if description is None:
        assert draft is not None  # noqa: S101  (checked above)
        return describe_folder(
            draft,
            target,
            sglang_version=version,
            flags=given,
            tensor_parallel=tensor_parallel,
            every_value=every_value,
        )
    if str(description) == "-":
        text = read_stdin(PASTE_LIMIT_BYTES)
    else:
        text = read_text(description, what="description", limit_bytes=PASTE_LIMIT_BYTES)
    known = parse_paste(text, source=str(description))
    return replace(
        known,
        target=read_target_config(target) or known.target,
        sglang_version=version or known.sglang_version,
        flags={**known.flags, **given},
        tensor_parallel=tensor_parallel,
    )


def _version(
    stack: str | None, sglang_version: str | None, configs: Path | None, *, default: bool
) -> str | None:
    from deploy_kit.configs.catalog import Catalog
    from deploy_kit.configs.schema import Stack

    if sglang_version is not None:
        if not any(letter.isdigit() for letter in sglang_version):
            raise DeployKitError(
                "this is not a version",
                key="--sglang-version",
                found=sglang_version,
                exit_code=ExitCode.USAGE,
            )
        return sglang_version
    if stack is not None:
        return Catalog.find(configs).load(Stack, stack).versions.sglang
    if not default:
        return None
    try:
        return Catalog.find(configs).load(Stack, "current").versions.sglang
    except DeployKitError:
        return None  # no configurations here: the version is then unknown, and findings say so


@app.command(
    epilog="Example: deploy-kit drafter compare drafters/k2 drafters/k2.5 --target /models/kimi-k2.5 "
    "--text sample.txt"
)
def compare(
    a: Path = typer.Argument(help="A drafter's folder or safetensors file."),
    b: Path = typer.Argument(help="Another one."),
    target: Path | None = typer.Option(
        None, "--target", help="The target's folder (its tokenizer reads --text)."
    ),
    frequencies: Path | None = typer.Option(
        None, "--frequencies", help="Token counts: JSON or lines of `id count`."
    ),
    text: Path | None = typer.Option(None, "--text", help="A sample of what the target says."),
    steps: int = typer.Option(
        3, "--steps", min=1, max=64, help="Draft steps, for the ceiling of the accept length."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Compare two drafters: weights, vocabulary positions that agree, tokens covered, ceiling of
    acceptance."""
    from deploy_kit.drafter.compare import Comparison, compare_vocabulary, compare_weights, draft_targets
    from deploy_kit.drafter.coverage import (
        Ceiling,
        ceiling_from_counts,
        ceiling_from_tokens,
        read_frequencies,
        tokens_of_text,
    )
    from deploy_kit.drafter.render import render_comparison
    from deploy_kit.drafter.weights_file import read_weights
    from deploy_kit.output import print_json, stdout_console

    if text is not None and frequencies is not None:
        raise DeployKitError("give either --text or --frequencies", exit_code=ExitCode.USAGE)
    if text is not None and target is None:
        raise DeployKitError("--text needs --target for its tokenizer", exit_code=ExitCode.USAGE)
    weights_a, weights_b = read_weights(a), read_weights(b)
    (targets_a, size_a), (targets_b, size_b) = draft_targets(a, weights_a), draft_targets(b, weights_b)
    size = max(size_a or 0, size_b or 0, int(targets_a.max()) + 1, int(targets_b.max()) + 1)

    def ceiling(draft: NDArray[np.int64]) -> Ceiling | None:
        if counts is not None:
            return ceiling_from_counts(counts, draft, steps)
        return None if tokens is None else ceiling_from_tokens(tokens, draft, steps)

    counts = read_frequencies(frequencies, size) if frequencies is not None else None
    tokens = tokens_of_text(text, target) if text is not None and target is not None else None
    result = Comparison(
        compare_weights(weights_a, weights_b),
        compare_vocabulary(targets_a, targets_b),
        ceiling(targets_a),
        ceiling(targets_b),
    )
    if as_json:
        print_json(result.as_dict())
    else:
        stdout_console().print(render_comparison(result))


@app.command(
    epilog="Example: deploy-kit drafter remap drafters/k2 --to-vocab-of drafters/k2.5 -o drafters/k2-remapped"
)
def remap(
    source: Path = typer.Argument(help="The drafter to remap: its folder, or one safetensors file."),
    out: Path = typer.Option(..., "-o", "--out", help="Where to write it; must not exist."),
    to_vocab_of: Path | None = typer.Option(
        None, "--to-vocab-of", help="Take the draft vocabulary of this drafter."
    ),
    head_order_of: Path | None = typer.Option(
        None,
        "--head-order-of",
        help="The drafter whose vocabulary the rows follow, if SRC's d2t was overwritten.",
    ),
    frequencies: Path | None = typer.Option(
        None, "--from-frequencies", help="Take the most frequent tokens of this file."
    ),
    size: int | None = typer.Option(
        None, "--size", min=1, help="Draft tokens, with --from-frequencies; default: as now."
    ),
    initial: Literal["mean", "zero", "target"] = typer.Option(
        "mean", "--init", help="Rows with no source: mean, zero or target."
    ),
    target: Path | None = typer.Option(None, "--target", help="The target's folder, for --init target."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would be done; write nothing."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Re-order lm_head, d2t and t2d to another draft vocabulary; everything else is copied byte for byte."""
    from deploy_kit.drafter.coverage import most_frequent, read_frequencies
    from deploy_kit.drafter.remap import plan_remap, vocabulary_of, write_remap
    from deploy_kit.output import print_json, stderr_console, stdout_console

    if (to_vocab_of is None) == (frequencies is None):
        raise DeployKitError("give either --to-vocab-of or --from-frequencies", exit_code=ExitCode.USAGE)
    if to_vocab_of is not None:
        targets, vocabulary = vocabulary_of(to_vocab_of)
    else:
        assert frequencies is not None  # noqa: S101  (checked above)
        now, vocabulary = vocabulary_of(source)
        if vocabulary is None:
            raise DeployKitError(
                "the target vocabulary's size is not known",
                file=source,
                remedy="keep the drafter's config.json beside its weights",
                exit_code=ExitCode.INPUT,
            )
        targets = most_frequent(read_frequencies(frequencies, vocabulary), size or int(now.size))
    order = None if head_order_of is None else vocabulary_of(head_order_of)[0]
    plan = plan_remap(source, targets, vocabulary, head_order=order)
    if not dry_run:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = (TextColumn("remap"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(
            *columns, console=stderr_console(), transient=True, disable=not sys.stderr.isatty()
        ) as bar:
            task = bar.add_task("remap", total=plan.size_bytes)
            write_remap(
                plan,
                out,
                initial=initial,
                target=target,
                progress=lambda count: bar.update(task, advance=count),
            )
    result = {**plan.as_dict(), "initialised_as": initial, "out": str(out), "written": not dry_run}
    if as_json:
        print_json(result)
    else:
        stdout_console().print(
            f"{'would write' if dry_run else 'wrote'} {out}: {plan.rows.size:,} rows, {plan.kept:,} kept, "
            f"{plan.initialised:,} initialised ({initial}), {plan.dropped:,} of the old ones dropped",
            markup=False,
        )


@app.command(
    epilog="Example: deploy-kit drafter predict 0.747,0.6,0.5 --draft-tokens 4 --cycle-ms 30 "
    "--baseline-tok-s 82"
)
def predict(
    acceptance: str | None = typer.Argument(
        None,
        help="Conditional acceptance per position: 0.747,0.6,0.5 or 38.3%,3.5%; for a tree "
        "0.6/0.2/0.1,0.5/0.2.",
    ),
    figures: Path | None = typer.Option(
        None, "--from", help="A training log or dashboard text to read figures from."
    ),
    cumulative: bool = typer.Option(False, "--cumulative", help="The figures are P(accepted up to here)."),
    draft_tokens: int | None = typer.Option(
        None, "--draft-tokens", min=1, help="The engine's flag: drafts + 1."
    ),
    topk: int = typer.Option(1, "--topk", min=1, max=64, help="Above 1 a tree; needs --draft-tokens."),
    cycle_ms: float | None = typer.Option(
        None, "--cycle-ms", min=0.001, max=600_000, help="Measured draft-and-verify cycle, milliseconds."
    ),
    baseline: float | None = typer.Option(
        None, "--baseline-tok-s", min=0.001, max=1e6, help="Measured plain decoding of one stream."
    ),
    profile: str | None = typer.Option(
        None, "--profile", help="Take top-k and draft tokens of this profile."
    ),
    configs: Path | None = typer.Option(None, "--configs", help="The folder that holds the configurations."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Predict the accept length from acceptance figures, and whether it pays. A prediction, no
    measurement."""
    from deploy_kit.drafter import predict as arithmetic
    from deploy_kit.drafter.figures import parse_figures, parse_rate
    from deploy_kit.drafter.render import render_prediction
    from deploy_kit.files import read_text
    from deploy_kit.output import print_json, stdout_console

    if (acceptance is None) == (figures is None):
        raise DeployKitError("give either figures or --from", exit_code=ExitCode.USAGE)
    if profile is not None:
        from deploy_kit.configs.catalog import Catalog
        from deploy_kit.configs.schema import Profile

        chosen = Catalog.find(configs).load(Profile, profile)
        if chosen.speculative_algorithm is None:
            raise DeployKitError(
                f"the profile {profile} drafts nothing: there is no acceptance to predict",
                key="--profile",
                exit_code=ExitCode.USAGE,
            )
        draft_tokens, topk = draft_tokens or chosen.draft_tokens, chosen.topk or topk
    how = "cumulative figures" if cumulative else "conditional figures"
    if figures is not None:
        rates, how = parse_figures(
            read_text(figures, what="figures", limit_bytes=64 * 2**20), cumulative=cumulative
        )
        ranks = [[rate] for rate in rates]
    else:
        ranks = [[parse_rate(part) for part in place.split("/")] for place in (acceptance or "").split(",")]
    tree = topk > 1 or any(len(place) > 1 for place in ranks)
    if cumulative and tree:
        raise DeployKitError("--cumulative is for a chain's figures", exit_code=ExitCode.USAGE)
    cycle = None if cycle_ms is None else cycle_ms / 1000
    if tree:
        if topk < 2 or draft_tokens is None:
            raise DeployKitError("a tree needs --topk above 1 and --draft-tokens", exit_code=ExitCode.USAGE)
        result = arithmetic.predict_whole_tree(
            ranks,
            topk=topk,
            draft_tokens=draft_tokens,
            cycle_seconds=cycle,
            baseline_tokens_per_second=baseline,
        )
    else:
        chain = [place[0] for place in ranks]
        if cumulative and figures is None:
            chain = list(arithmetic.from_cumulative(chain))
        result = arithmetic.predict(
            chain, draft_tokens=draft_tokens, cycle_seconds=cycle, baseline_tokens_per_second=baseline
        )
    if as_json:
        print_json({**result.as_dict(), "figures": how})
    else:
        stdout_console().print(render_prediction(result, how))
