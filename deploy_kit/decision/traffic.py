"""What the traffic looks like: which share of the time each load has, and how much evidence is asked for."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deploy_kit.configs.refusal import first_refusal
from deploy_kit.decision.choose import EvidenceRules
from deploy_kit.decision.evidence import Band
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import read_text

_SHORT = re.compile(r"(?:C=)?(\d{1,6})(?:/([\w+-]+))?:(\d+(?:\.\d+)?)")


class Share(BaseModel):
    """One load's share. Without `context`, every context band that was measured at this concurrency."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    concurrency: int = Field(ge=1)
    context: str | None = None
    share: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Traffic(BaseModel):
    """Shares of the time by load (they need not sum to 1), and the rules of evidence."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    band: list[Share] = Field(min_length=1)
    evidence: EvidenceRules = EvidenceRules()

    def shares(self, measured: Sequence[Band]) -> dict[Band, float]:
        """Given the measured bands, return the share of each load; one that was not measured keeps its
        share, so that the decision says it is missing."""
        result: dict[Band, float] = {}
        for entry in self.band:
            bands = [
                band
                for band in measured
                if band.concurrency == entry.concurrency and entry.context in (None, band.context)
            ] or [Band(entry.concurrency, entry.context or "any context")]
            for band in bands:
                result[band] = result.get(band, 0.0) + entry.share / len(bands)
        return result


def parse_traffic(text: str) -> Traffic:
    """Given a TOML file's path, or shares such as "1:70,32:30" or "1/2k-8k:1", return the traffic."""
    if not Path(text).is_file() and ":" in text:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        matches = [_SHORT.fullmatch(part) for part in parts]
        bad = [part for part, match in zip(parts, matches, strict=True) if match is None]
        if bad or not parts:
            raise DeployKitError(
                "--traffic cannot be read",
                key="--traffic",
                found=", ".join(bad) or repr(text),
                allowed='CONCURRENCY[/CONTEXT]:SHARE,… such as "1:70,32:30", or a TOML file',
                exit_code=ExitCode.USAGE,
            )
        bands: list[Any] = [
            {"concurrency": int(match[1]), "context": match[2], "share": float(match[3])}
            for match in matches
            if match is not None
        ]
        return _checked({"band": bands}, None)
    try:
        return _checked(tomllib.loads(read_text(text, what="traffic file")), text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise DeployKitError(f"no valid TOML: {error}", file=text, exit_code=ExitCode.CONFIG) from error


def _checked(value: Any, file: str | None) -> Traffic:
    try:
        return Traffic.model_validate(value)
    except ValidationError as error:
        message, key, found, allowed, _more = first_refusal(Traffic, error)
        raise DeployKitError(
            f"traffic: {message}",
            file=file,
            key=key,
            found=found,
            allowed=allowed,
            exit_code=ExitCode.CONFIG,
        ) from error
