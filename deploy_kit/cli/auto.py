"""The profile `auto`: what this host's receipts say, and the baseline when they do not say anything.

Composed here, since plans know nothing of decisions, and decisions nothing of plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deploy_kit.configs.catalog import Catalog

AUTO = "auto"
DEFAULT_RECEIPTS = Path("receipts")


@dataclass(frozen=True)
class Choice:
    """What `auto` stands for. `from_evidence` False: there was none to decide from, so it is the baseline,
    and `reason` says what is missing."""

    profile: str
    levers: tuple[str, ...]
    reason: str
    from_evidence: bool
    sum: str | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it for `--json`."""
        return asdict(self)

    @property
    def line(self) -> str:
        """The choice in one line."""
        label = "+".join((self.profile, *self.levers))
        return f"auto: {label}: {self.reason}"


def choose(
    catalog: Catalog,
    *,
    host: str | None = None,
    stack: str | None = None,
    model: str | None = None,
    levers: Sequence[str] = (),
    among: Sequence[str] = (),
    receipts: Path | None = None,
    traffic: str | None = None,
) -> Choice:
    """Given names as `deploy-kit plan` takes them, return the profile and levers that the receipts of this
    host, stack and model speak for.

    `among` are the profiles that can be served (all, when empty); with `levers`, only measurements with
    exactly these count. Names that do not exist raise; receipts that are missing, damaged or not comparable
    give the baseline with the reason: it needs no evidence.
    """
    from deploy_kit.configs.schema import Model, Profile, Stack
    from deploy_kit.decision.choose import EvidenceRules
    from deploy_kit.decision.from_receipts import choose_profile
    from deploy_kit.decision.traffic import parse_traffic
    from deploy_kit.errors import DeployKitError
    from deploy_kit.plan.resolve import DEFAULTS
    from deploy_kit.runtime.settings import read_settings

    the_host = catalog.host(host if host is not None else DEFAULTS[False]["host"])
    defaults = DEFAULTS[the_host.rehearsal]
    the_model = catalog.load(Model, model or defaults["model"])
    the_stack = catalog.load(Stack, stack or defaults["stack"])
    profiles = [catalog.load(Profile, name).name for name in among] or catalog.names(Profile)
    shares = parse_traffic(traffic) if traffic else None
    folder = receipts or read_settings().receipts or DEFAULT_RECEIPTS
    if not folder.exists():
        return _baseline(levers, f"no receipts: {folder} is not there")
    try:
        decision = choose_profile(
            [folder],
            host=the_host.name,
            model=the_model.served_name,
            rehearsal=the_host.rehearsal,
            stack=the_stack.name,
            profiles=profiles,
            levers=tuple(levers) if levers else None,
            traffic=shares,
            rules=shares.evidence if shares else EvidenceRules(),
        )
    except DeployKitError as error:
        found = f" ({error.found})" if error.found else ""
        return _baseline(levers, f"{error.summary}{found}")
    if decision.ratio is None:
        return _baseline(levers, decision.reason)
    return Choice(
        profile=decision.choice.profile,
        levers=tuple(levers) or decision.choice.levers,
        reason=decision.reason,
        from_evidence=True,
        sum=decision.sum_line,
        ratio=decision.ratio,
        interval=decision.interval,
    )


def _baseline(levers: Sequence[str], why: str) -> Choice:
    return Choice("baseline", tuple(levers), f"the baseline, since {why}", from_evidence=False)
