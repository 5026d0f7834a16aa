"""What a bench receipt's summary holds: one entry for each round of each cell. Decisions read these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.receipts import Receipt

INTERRUPTED = "interrupted"  # the beginning of the remark of a receipt that was cut short

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

# Upper limits of the context bands in prompt tokens (median of a cell), and their names.
_BANDS = ((2048, "0-2k"), (8192, "2k-8k"), (32768, "8k-32k"), (131072, "32k-128k"))


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Spread(_Strict):
    """How a quantity is distributed over a cell's samples, all in seconds."""

    count: int = Field(ge=1)
    mean: Finite
    p50: Finite
    p90: Finite
    p99: Finite
    maximum: Finite


class EngineCell(_Strict):
    """What the engine's own counters say about exactly the cell's interval. A value that could not be had is
    null and `unknown` says why. Times are seconds for one verify round; `step_seconds` is one cycle from
    verify to verify or, for plain decoding, one decode forward (without host gaps)."""

    accept_length: Positive | None = None
    accept_length_source: str | None = None
    verify_count: int | None = None
    verify_seconds: Positive | None = None
    verify_p95_seconds: Positive | None = None  # from the histogram, straight within its bucket
    draft_seconds: Positive | None = None
    step_seconds: Positive | None = None
    prefill_seconds_total: Finite | None = None
    unknown: dict[str, str] = {}


class CellRound(_Strict):
    """One round of one cell: a load held on the server for one interval.

    `interval_seconds` runs from the first request's start to the last one's end, warm-up excluded.
    `tokens_per_second` is over that interval and all streams. `stream_tokens_per_second` is what one stream
    gets between its first and its last token (decoding only). `cycle_seconds` is the time between a stream's
    engine steps (accept length tokens come out of each when speculating).
    """

    load: Literal["closed", "open"]
    concurrency: int | None = Field(default=None, ge=1)
    rate_per_second: Positive | None = None
    context_band: str
    round: int = Field(ge=0)
    requests: int = Field(ge=0)
    errors: int = Field(ge=0)
    retries: int = Field(ge=0)
    interval_seconds: Positive
    prompt_tokens: int | None = None
    output_tokens: int = Field(ge=0)
    tokens_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    stream_tokens_per_second: Positive | None = None
    cycle_seconds: Positive | None = None
    client_accept_length: Positive | None = None
    ttft_seconds: Spread | None = None
    itl_seconds: Spread | None = None
    tpot_seconds: Spread | None = None
    e2e_seconds: Spread | None = None
    engine: EngineCell = EngineCell()

    @model_validator(mode="after")
    def _load_is_whole(self) -> CellRound:
        if (self.load == "closed") != (self.concurrency is not None):
            raise ValueError("concurrency: a closed loop has one, an open loop has none")
        if (self.load == "open") != (self.rate_per_second is not None):
            raise ValueError("rate_per_second: an open loop has one, a closed loop has none")
        return self


class BenchSummary(_Strict):
    """The summary of a bench receipt."""

    cells: list[CellRound]
    errors: dict[str, int] = {}  # what went wrong → how often
    unknown: dict[str, str] = {}  # what could not be measured → why
    remarks: list[str] = []


class Workload(_Strict):
    """What was sent. Speeds compare only when all of this is the same; `sha256` is over every prompt."""

    name: str
    sha256: str
    output_tokens: int = Field(ge=1)
    temperature: float = Field(ge=0)
    ignore_eos: bool
    seed: int


class BenchSubject(_Strict):
    """What a bench receipt is about."""

    profile: str
    levers: list[str] = []
    model: str
    interface: Literal["openai", "sglang"]
    workload: Workload
    speculative: dict[str, Any] | None = None
    server_start: str | None = None  # tells two starts of one plan apart
    arguments: list[str] = []  # how to reproduce; file names without their folders
    # Where each of the receipt's versions is from: "engine" (its own word), "stack" (what the plan pins).
    versions_from: dict[str, str] = {}
    engine: dict[str, str] = {}  # what else the running engine says of itself
    stand_in: str | None = None  # what stood in for a real engine, if anything did


def was_interrupted(receipt: Receipt) -> bool:
    """Whether a bench receipt holds only the rounds that were finished when it was interrupted."""
    remarks = receipt.summary.get("remarks")
    return isinstance(remarks, list) and any(str(remark).startswith(INTERRUPTED) for remark in remarks)


def context_band(prompt_tokens: float) -> str:
    """Given a cell's median number of prompt tokens, return the name of its context band."""
    for limit, name in _BANDS:
        if prompt_tokens <= limit:
            return name
    return "128k+"


def parse_bench(receipt: Receipt, file: object = None) -> tuple[BenchSubject, BenchSummary]:
    """Given a receipt of kind `bench`, return its subject and summary, checked; the error names the key."""
    part = "subject"
    try:
        subject = BenchSubject.model_validate(receipt.subject)
        part = "summary"
        summary = BenchSummary.model_validate(receipt.summary)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise DeployKitError(
            f"bench receipt {receipt.short_id}: {first['msg']}",
            file=None if file is None else str(file),
            key=".".join(str(step) for step in (part, *first["loc"])),
            found=None if first["type"] == "missing" else repr(first.get("input"))[:80],
            exit_code=ExitCode.INPUT,
        ) from error
    return subject, summary
