"""Acceptance figures as people have them: typed rates, training logs, dashboards, scraped metrics."""

from __future__ import annotations

import re

from deploy_kit.drafter.predict import from_cumulative, from_histogram
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

_NUMBER = r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_ACCEPT_BUCKET = re.compile(
    rf'^deploy_kit_spec_accept_length_bucket\{{[^}}\n]*\ble="([^"\n]+)"[^}}\n]*\}}\s+({_NUMBER})',
    re.MULTILINE,
)
_ACCEPTED_AT = re.compile(
    r"^vllm:spec_decode_num_accepted_tokens_per_pos(?:_total)?\{[^}\n]*\bposition=\"(\d{1,2})\"[^}\n]*\}"
    rf"\s+({_NUMBER})",
    re.MULTILINE,
)
_DRAFTS = re.compile(
    rf"^vllm:spec_decode_num_drafts(?:_total)?(?:\{{[^}}\n]*\}})?\s+({_NUMBER})", re.MULTILINE
)
_HISTOGRAM = re.compile(r"(?i)accept[a-z_ ]*histogram\W{1,4}\[([^\]\n]*)\]")
_ROW = re.compile(r"(?i)per[- ]position acceptance(?: rates?)?\W{1,4}((?:[\d.]+\s*%?\s*,?\s*)+)")
_POSITION = re.compile(
    r"(?i)\b(?:acc(?:uracy|ept(?:ance|ed))?(?:[_ ]rate)?[_/ ]?(?:at[_ ])?(?:pos(?:ition)?[_ ]?)?|"
    # As little as can be between the two: a sign or a point belongs to the figure.
    r"pos(?:ition)?[_ ]?)(\d{1,2})\W{1,5}?([-+]?(?:(?:nan|inf(?:inity)?)\b|[\d.]+(?:e[-+]?\d+)?)\s*%?)"
)


def parse_rate(text: str) -> float:
    """Return a rate written as 0.747, 74.7% or 74.7 %."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:[eE]-?[0-9]+)?)\s*(%?)\s*", text)
    if match is None:
        raise DeployKitError(
            "this is not a rate", found=text, allowed="0.747 or 74.7%", exit_code=ExitCode.USAGE
        )
    return float(match.group(1)) / (100.0 if match.group(2) else 1.0)


def parse_figures(text: str, *, cumulative: bool = False) -> tuple[tuple[float, ...], str]:
    """Given a log's, dashboard's or `/metrics` page's text, return conditional rates and how they were read.

    Of the first of these kinds that is there, the last values are read: the histogram of accept lengths that
    our plug-in exports, vLLM's counters by position (`…_per_pos_total`), `spec_accept_histogram: [..]`
    (verifies with 0, 1 … accepted drafts), `Per-position acceptance rate: 0.7, 0.4` (cumulative), `acc_0:
    0.7` … or `position 1: 70 %` … (conditional, unless `cumulative` says otherwise). Raises `DeployKitError`
    when none is there.
    """
    try:
        for read in (_of_buckets, _of_counters, _of_histogram, _of_row):
            rates = read(text)
            if rates is not None:
                return rates, _HOW[read.__name__]
        return _of_positions(text, cumulative)
    except DeployKitError as error:
        error.exit_code = ExitCode.INPUT  # the same figures typed as arguments are a matter of usage
        raise


_HOW = {
    "_of_buckets": "histogram of accept lengths (deploy_kit_spec_accept_length)",
    "_of_counters": "counters by position (vllm:spec_decode_num_accepted_tokens_per_pos)",
    "_of_histogram": "histogram of accepted drafts",
    "_of_row": "per-position acceptance (cumulative)",
}


def _of_buckets(text: str) -> tuple[float, ...] | None:
    below: dict[float, float] = {}
    for edge, count in _ACCEPT_BUCKET.findall(text):
        number = float("inf") if edge == "+Inf" else parse_rate(edge)
        below[number] = below.get(number, 0.0) + float(count)
    edges = sorted(edge for edge in below if edge != float("inf"))
    if not edges:
        return None
    if edges != [float(length) for length in range(1, len(edges) + 1)]:
        raise DeployKitError(
            "buckets of the histogram are missing",
            key="le",
            found=", ".join(f"{edge:g}" for edge in edges),
            allowed="1, 2, 3 … without a gap",
            exit_code=ExitCode.INPUT,
        )
    upto = [below[edge] for edge in edges] + [below.get(float("inf"), below[edges[-1]])]
    lengths = [after - before for before, after in zip([0.0, *upto], upto, strict=False)]
    if min(lengths) < 0:
        raise DeployKitError("the histogram's buckets fall", found=upto, exit_code=ExitCode.INPUT)
    while len(lengths) > 1 and lengths[-1] == 0:  # lengths that no verify reached
        lengths.pop()
    return from_histogram(lengths)


def _of_counters(text: str) -> tuple[float, ...] | None:
    accepted: dict[int, float] = {}
    for position, count in _ACCEPTED_AT.findall(text):
        accepted[int(position)] = accepted.get(int(position), 0.0) + float(count)
    if not accepted:
        return None
    drafts = sum(float(count) for count in _DRAFTS.findall(text))
    if drafts <= 0:
        raise DeployKitError(
            "the number of drafts is missing: counts by position alone are no rates",
            allowed="vllm:spec_decode_num_drafts_total, above 0",
            exit_code=ExitCode.INPUT,
        )
    return from_cumulative([accepted[place] / drafts for place in _all_of(accepted)])


def _of_histogram(text: str) -> tuple[float, ...] | None:
    found = _HISTOGRAM.findall(text)
    if not found or not found[-1].strip():
        return None
    words = [word.strip() for word in found[-1].split(",")]
    odd = next((word for word in words if not re.fullmatch(_NUMBER, word)), None)
    if odd is not None:
        raise DeployKitError(
            "this is no histogram",
            found=found[-1][:80],
            allowed="counts of verifies: [10, 20, 30]",
            exit_code=ExitCode.INPUT,
        )
    return from_histogram([float(word) for word in words])


def _of_row(text: str) -> tuple[float, ...] | None:
    rows = _ROW.findall(text)
    return (
        from_cumulative([parse_rate(part) for part in re.findall(r"[\d.]+\s*%?", rows[-1])]) if rows else None
    )


def _of_positions(text: str, cumulative: bool) -> tuple[tuple[float, ...], str]:
    found = {int(place): parse_rate(rate.strip().rstrip(".")) for place, rate in _POSITION.findall(text)}
    if not found:
        raise DeployKitError(
            "no acceptance figures in this text",
            allowed="acc_0: 0.7 …, position 1: 70 % …, Per-position acceptance rate: …, "
            "spec_accept_histogram: [...], or metrics: deploy_kit_spec_accept_length_bucket, …_per_pos_total",
            exit_code=ExitCode.INPUT,
        )
    rates = tuple(found[place] for place in _all_of(found))
    if cumulative:
        return from_cumulative(rates), "per-position figures (cumulative, as told)"
    return rates, "per-position accuracy of a log (taken as conditional)"


def _all_of(found: dict[int, float]) -> list[int]:
    """Return the positions in order; raise where one between them is missing or the first ones are."""
    places = sorted(found)
    if places != list(range(places[0], places[0] + len(places))) or places[0] > 1:
        raise DeployKitError(
            "acceptance of some positions is missing", found=places, exit_code=ExitCode.INPUT
        )
    return places
