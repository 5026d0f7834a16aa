"""`deploy-kit decide`: choose a profile from receipts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(add_completion=False)


@app.command(
    epilog='Example: deploy-kit decide receipts/ --host rtx-pro-6000-x8 --traffic "1:70,32:30" --json'
)
def decide(
    receipts: list[Path] = typer.Argument(help="Receipt files, or folders of them."),
    traffic: str | None = typer.Option(
        None,
        "--traffic",
        help='Shares of the time by load: "1:70,32:30", or a TOML file. Default: all alike.',
    ),
    host: str | None = typer.Option(None, "--host", help="Only receipts of this host."),
    model: str | None = typer.Option(None, "--model", help="Only receipts of this model."),
    min_rounds: int | None = typer.Option(None, "--min-rounds", min=1, help="Rounds a cell needs (2)."),
    min_requests: int | None = typer.Option(None, "--min-requests", min=1, help="Requests it needs (8)."),
    configs: Path | None = typer.Option(
        None, "--configs", help="The configurations: profiles not measured are named, and ranked by estimate."
    ),
    min_gain: float | None = typer.Option(
        None, "--min-gain", min=0, max=0.99, help="A smaller gain is a tie, as a ratio (0.03)."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the decision as JSON."),
) -> None:
    """Choose baseline or a speculation profile from RECEIPTS, and show the sum.

    Ties and thin evidence go to the baseline. Receipts of several hosts, stacks, models or plans, and
    rehearsal with real ones, are refused. Exit code 0: decided; 22: the baseline itself is not measured,
    so there is nothing to compare; 5: a receipt is damaged, or they do not compare.
    """
    from deploy_kit.decision.choose import EvidenceRules
    from deploy_kit.decision.describe import as_dict, describe
    from deploy_kit.decision.from_receipts import choose_profile
    from deploy_kit.decision.traffic import parse_traffic
    from deploy_kit.exit_codes import ExitCode
    from deploy_kit.output import print_json

    shares = parse_traffic(traffic) if traffic else None
    base = shares.evidence if shares else EvidenceRules()
    given = {"min_rounds": min_rounds, "min_requests": min_requests, "min_gain_ratio": min_gain}
    rules = base.model_copy(update={key: value for key, value in given.items() if value is not None})
    known = _known(configs, receipts, model)
    decision = choose_profile(receipts, host=host, model=model, traffic=shares, rules=rules, **known)
    if as_json:
        print_json(as_dict(decision))
    else:
        typer.echo(describe(decision))
    if decision.ratio is None:
        raise typer.Exit(int(ExitCode.VERDICT_UNKNOWN))


def _known(configs: Path | None, receipts: Sequence[Path], model: str | None) -> dict[str, Any]:
    """Return what the configurations know that estimates need: the profiles there are, the model's layers and
    all-reduces. Without configurations here, nothing: the decision itself rests on receipts alone."""
    from deploy_kit.configs.catalog import Catalog
    from deploy_kit.configs.schema import Model, Profile
    from deploy_kit.decision.estimate import Candidate
    from deploy_kit.decision.from_receipts import load_receipts
    from deploy_kit.errors import DeployKitError

    try:
        catalog = Catalog.find(configs)
    except DeployKitError:
        if configs is not None:
            raise
        return {}
    profiles = [catalog.load(Profile, name) for name in catalog.names(Profile)]
    measured = {model} if model else {
        str(receipt.subject.get("model")) for receipt in load_receipts(receipts) if receipt.kind == "bench"
    }  # fmt: skip
    models = [catalog.load(Model, name) for name in catalog.names(Model)]
    shapes = [(one.layers, one.allreduces_per_forward) for one in models if {one.served_name} == measured]
    layers, allreduces = shapes[0] if shapes else (None, None)
    return {
        "candidates": [Candidate(one.name, one.steps or 0, one.draft_tokens or 1) for one in profiles],
        "layers": layers,
        "allreduces_per_forward": allreduces,
    }
