"""The campaign file, and the state file that a campaign keeps and leaves as its result.

Units are in the names. What is not known is None, and a text beside it says why.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from deploy_kit.configs.refusal import ContradictionError
from deploy_kit.configs.schema import Name, Strict

STATE_FILE = "campaign.json"  # in the campaign's state folder
RECEIPTS_FOLDER = "receipts"  # beside it: one bench receipt for each measured cell
COMBINED = "combined"  # the name of the step that runs all winners together
LEVER_OFF = "lever-off"  # the cause's id when the engine serves without the lever that its plan asks for

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Side = Literal["base", "lever"]
SIDES: tuple[Side, Side] = ("base", "lever")
Metric = Literal[
    "tokens_per_second",  # of all streams; decides
    "stream_tokens_per_second",  # of one stream while decoding
    "cycle_seconds",
    "verify_seconds",
    "draft_seconds",
    "accept_length",
]
Verdict = Literal["helps", "hurts", "no measurable effect", "not accepted", "unknown"]
Outcome = Literal["pending", "done", "failed", "refused-by-probe"]


# ---------------------------------------------------------------- the campaign file


class Base(Strict):
    """The plan every lever is held against. What is not named follows the host, as in `deploy-kit plan`."""

    profile: Name
    host: str | None = None
    model: Name | None = None
    stack: Name | None = None
    drafter: Name | None = None
    levers: list[Name] = Field(default=[])  # on both sides of every comparison


class BenchPart(Strict):
    """The load of every cell; the words are those of `deploy-kit bench`."""

    concurrencies: list[Annotated[int, Field(ge=1, le=4096)]] = Field(default=[1], min_length=1)
    rounds: int = Field(default=2, ge=1)
    requests: int = Field(default=4, ge=1)  # of each stream in a round
    output_tokens: int = Field(default=256, ge=2)
    prompt_tokens: int | None = Field(default=None, ge=16)
    interface: Literal["openai", "sglang"] = "openai"
    seed: int = 1


class Schedule(Strict):
    """How often, how long, and what counts as an effect."""

    repeats: int = Field(default=3, ge=1, le=1000)  # A/B pairs of each lever; an interval needs two
    start_limit_seconds: int = Field(default=3600, ge=1)  # a start that takes longer counts as hung
    stalled_seconds: int = Field(default=900, ge=1)  # so does one in which nothing advances for so long
    expected_start_seconds: int | None = Field(default=None, ge=1)  # until a start of this campaign tells
    expected_bench_seconds: int | None = Field(default=None, ge=1)
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    min_effect_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.02  # less is no effect worth a lever
    max_accept_length_loss_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.05
    ask_above_seconds: int = Field(default=3600, ge=0)


class LeverStep(Strict):
    """One lever to try: a name in configs/levers, what is claimed of it, and the cheap look first."""

    name: Name
    claimed: str | None = None  # in words
    claimed_by: str | None = None  # who says so
    claimed_cycle_saving_ms: list[Finite] | None = None  # [least, most] a cycle
    probe: Literal["plan", "allreduce", "fusion"] = "plan"  # the plan is always checked
    candidate: str | None = None  # the probe's name for it, for example "flashinfer-pcie-ipc"

    @model_validator(mode="after")
    def _whole(self) -> LeverStep:
        if (self.probe == "plan") != (self.candidate is None):
            raise ContradictionError(
                "candidate",
                "goes with probe = allreduce or fusion, and only with these",
                found="nothing" if self.candidate is None else self.candidate,
                allowed=f"no candidate with probe = {self.probe}"
                if self.probe == "plan"
                else "the probe's name for the lever",
            )
        saving = self.claimed_cycle_saving_ms
        if saving is not None and (len(saving) != 2 or saving[0] > saving[1]):
            raise ContradictionError(
                "claimed_cycle_saving_ms", "no range", found=saving, allowed="two numbers, [least, most]"
            )
        return self


class Campaign(Strict):
    """A campaign file: a question, a base plan, and levers in the order in which they are tried."""

    name: Name
    description: str
    question: str
    base: Base
    bench: BenchPart = BenchPart()
    schedule: Schedule = Schedule()
    lever: list[LeverStep] = Field(min_length=1)

    @model_validator(mode="after")
    def _names(self) -> Campaign:
        names = [step.name for step in self.lever]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ContradictionError(
                "lever", "each lever once", found=f"{', '.join(twice)} again", allowed="names that differ"
            )
        both = sorted(set(names) & set(self.base.levers))
        if both:
            raise ContradictionError(
                "lever",
                "in the base already",
                found=", ".join(both),
                allowed="levers that base.levers does not name",
            )
        if COMBINED in names:
            raise ContradictionError(
                "lever", f"no lever may be called {COMBINED}", found=COMBINED, allowed="any other name"
            )
        return self


# ---------------------------------------------------------------- the state file


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Measure(_Record):
    """What one cell gave at one concurrency: means over its rounds. The receipt holds every sample."""

    concurrency: int
    tokens_per_second: Positive
    stream_tokens_per_second: Positive | None = None
    cycle_seconds: Positive | None = None
    verify_seconds: Positive | None = None
    draft_seconds: Positive | None = None
    accept_length: Positive | None = None
    requests: int = 0
    errors: int = 0


class Cell(_Record):
    """One start of the engine with one plan, and what was measured on it. `key` is "LEVER/SIDE/REPEAT"; a
    cell is in the list exactly once, and only when it is over."""

    key: str
    step: str  # the lever's name, or "combined"
    side: Side
    repeat: int = Field(ge=0)
    plan_id: str
    levers: list[str]  # all levers of its plan
    outcome: Literal["measured", "failed"]
    receipt_id: str | None = None  # of its bench receipt, in the folder `receipts`
    measures: list[Measure] = []
    start_seconds: Positive | None = None  # until a real completion came back
    bench_seconds: Positive | None = None
    ended_at: AwareDatetime
    attempts: int = Field(default=1, ge=1)
    # Of a failed cell: what the start-up watcher says (docs/startup.md), and `serve`'s exit code.
    cause: str | None = None
    cause_id: str | None = None
    remedy: str | None = None
    exit_code: int | None = None
    evidence: list[str] = []


class Effect(_Record):
    """A lever's effect on one quantity: the geometric mean of lever / base over the pairs. Above 1 is more of
    the quantity: good for tokens/s and accept length, bad for times. `concurrency` None: over all of them."""

    metric: Metric
    concurrency: int | None
    ratio: Positive
    interval: tuple[Positive, Positive] | None = None  # two-sided, at the schedule's confidence
    pairs: int = Field(ge=1)
    pair_ratios: list[Positive]  # one for each pair, in order
    base_mean: Positive
    lever_mean: Positive


class ProbeResult(_Record):
    """What a cheap look before the load said. `passed` None: it could not say; the lever is then tried."""

    probe: Literal["plan", "allreduce", "fusion"]
    candidate: str | None = None
    passed: bool | None
    cause: str | None = None
    remedy: str | None = None
    receipt_id: str | None = None
    seconds: float = 0.0


class LeverResult(_Record):
    """All that is known of one lever (or of the winners together)."""

    name: str
    levers: list[str]  # what its side adds to the base: one lever, or the winners
    plan_id: str | None = None
    outcome: Outcome = "pending"
    verdict: Verdict = "unknown"
    reason: str = ""  # of the verdict, in words
    cause: str | None = None  # why it failed or was refused
    cause_id: str | None = None
    remedy: str | None = None
    probe: ProbeResult | None = None
    effects: list[Effect] = []
    claimed: str | None = None
    claimed_by: str | None = None
    claimed_cycle_saving_ms: list[Finite] | None = None
    measured_cycle_saving_ms: Finite | None = None  # base minus lever, mean; None: not measured
    measured_cycle_saving_interval_ms: tuple[Finite, Finite] | None = None
    measured_at_concurrency: int | None = None  # where the saving was taken: the lightest load
    expected_effect: str | None = None  # from the lever's own file
    status_on_sm120: str | None = None

    def effect(self, metric: Metric, concurrency: int | None = None) -> Effect | None:
        """Return the effect on a quantity, over all loads or at one; None when it is not measured."""
        found = (e for e in self.effects if e.metric == metric and e.concurrency == concurrency)
        return next(found, None)


class Running(_Record):
    """The cell that is under way; what a resume finds of one that was cut off."""

    key: str
    began_at: AwareDatetime
    attempt: int = Field(default=1, ge=1)


class CampaignState(_Record):
    """All that is found out so far. `finished`: nothing is left to do. `levers`: in the campaign's order."""

    schema_version: Literal[1] = 1
    campaign: Campaign
    campaign_id: str  # a hash of the campaign and its plans: a changed one is another campaign
    rehearsal: bool
    host: str
    model: str
    stack: str
    base_plan_id: str
    versions: dict[str, str] = {}
    runner: str  # what starts the engines: "serve", "compose", or a stand-in's name
    stand_in: str | None = None  # what stood in for a real engine, if anything did
    created_at: AwareDatetime
    updated_at: AwareDatetime
    finished: bool = False
    resumed: int = 0  # how often it was taken up again
    cells: list[Cell] = []
    levers: list[LeverResult]
    combined: LeverResult | None = None  # None: not decided yet, or fewer than two winners
    winners: list[str] = []  # levers that help, strongest first
    conclusion: str = ""  # one sentence, once finished
    running: Running | None = None

    def cell(self, key: str) -> Cell | None:
        """Return the finished cell with this key, or None."""
        return next((cell for cell in self.cells if cell.key == key), None)


def cell_key(step: str, side: Side, repeat: int) -> str:
    """Given a step, a side and the number of the pair, return the cell's key.

    >>> cell_key("nccl-ll", "base", 0)
    'nccl-ll/base/0'
    """
    return f"{step}/{side}/{repeat}"
