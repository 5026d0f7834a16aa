"""What a receipt holds, and its content hash."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, model_validator

SCHEMA_VERSION = 1


class Host(BaseModel):
    """The machine a measurement was made on: its configured name, and facts read from it (GPUs, links, …)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    facts: dict[str, JsonValue] = {}


class Receipt(BaseModel):
    """One measurement. `subject` says what was measured, `samples` holds every raw sample, `summary` what
    was computed from them. `receipt_id` is the SHA-256 of everything else, so a changed receipt is noticed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    kind: str = Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")
    receipt_id: str = Field(pattern=r"^[0-9a-f]{64}$")
    created_at: AwareDatetime
    rehearsal: bool  # made with the rehearsal engine or another stand-in: never decides for real hardware
    plan_id: str | None
    host: Host
    versions: dict[str, str]
    subject: dict[str, JsonValue]
    samples: list[JsonValue]
    summary: dict[str, JsonValue]

    @model_validator(mode="after")
    def _hash_fits(self) -> Receipt:
        found = content_hash(self.model_dump(mode="json"))
        if found != self.receipt_id:
            raise ValueError(
                f"receipt_id does not fit the content (content hashes to {found[:12]}…): it was changed"
            )
        return self

    @property
    def short_id(self) -> str:
        """The first twelve characters of the id: what is shown to people and used in file names."""
        return self.receipt_id[:12]

    @property
    def file_name(self) -> str:
        """The receipt's file name: kind, time (UTC) and short id, so that a listing sorts by time."""
        return f"{self.kind}-{self.created_at.astimezone(UTC):%Y%m%dT%H%M%SZ}-{self.short_id}.json"


def new_receipt(
    *,
    kind: str,
    host: Host,
    rehearsal: bool,
    subject: Mapping[str, Any],
    samples: Sequence[Any],
    summary: Mapping[str, Any],
    plan_id: str | None = None,
    versions: Mapping[str, str] | None = None,
    created_at: datetime | None = None,
) -> Receipt:
    """Given a measurement's parts, return its receipt with the content hash filled in.

    All values must be JSON values; NaN and infinity are refused with `ValueError` (store null and say why
    in the summary). `created_at` defaults to now and must carry a time zone.
    """
    moment = (created_at or datetime.now(UTC)).astimezone(UTC).replace(microsecond=0)
    content: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "created_at": moment,
        "rehearsal": rehearsal,
        "plan_id": plan_id,
        "host": host,
        "versions": dict(versions or {}),
        "subject": dict(subject),
        "samples": list(samples),
        "summary": dict(summary),
    }
    refuse_not_a_number(content["subject"], "subject")
    refuse_not_a_number(content["samples"], "samples")
    refuse_not_a_number(content["summary"], "summary")
    draft = Receipt.model_construct(receipt_id="", **content)
    return Receipt(receipt_id=content_hash(draft.model_dump(mode="json")), **content)


def content_hash(dumped: Mapping[str, Any]) -> str:
    """Given a receipt as plain JSON values, return the SHA-256 over all of it but `receipt_id`."""
    content = {key: value for key, value in dumped.items() if key != "receipt_id"}
    canonical = json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def refuse_not_a_number(value: Any, where: str) -> None:
    """Raise `ValueError` naming the place when `value` holds NaN or an infinity anywhere inside."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}: a receipt holds only finite numbers")
    if isinstance(value, Mapping):
        for key, item in value.items():
            refuse_not_a_number(item, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            refuse_not_a_number(item, f"{where}[{index}]")
