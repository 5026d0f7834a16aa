"""Accept length and break-even from acceptance figures: pure arithmetic, no measurement.

accept length = 1 (the bonus token) + the sum over draft positions of P(drafts are accepted up to there).
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode

STEPS_LIMIT = 64
_SOLVE_ROUNDS = 60


@dataclass(frozen=True)
class Prediction:
    """What figures lead to. `break_even` etc. are None where cycle time or baseline was not given."""

    accept_length: float
    reached: tuple[float, ...]
    draft_tokens: int
    tokens_per_second: float | None = None
    break_even: float | None = None
    # Conditional acceptance each position would need, the others staying; None: not even 1.0 would do.
    needed: tuple[float | None, ...] = ()
    # The one acceptance that would do at every position; None: not even 1.0.
    needed_everywhere: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the prediction for `--json`, rounded to what such figures carry."""

        def short(number: float | None) -> float | None:
            return None if number is None else round(number, 4)

        pays = None if self.break_even is None else self.accept_length > self.break_even
        return {
            "accept_length": short(self.accept_length),
            "reached": [short(number) for number in self.reached],
            "draft_tokens": self.draft_tokens,
            "tokens_per_second": short(self.tokens_per_second),
            "break_even_accept_length": short(self.break_even),
            "pays": "unknown: give --cycle-ms and --baseline-tok-s" if pays is None else pays,
            "needed_conditional": [short(number) for number in self.needed],
            "needed_everywhere": short(self.needed_everywhere),
        }


def predict_chain(
    conditional: Sequence[float], *, draft_tokens: int | None = None
) -> tuple[float, tuple[float, ...]]:
    """Given P(position i accepted | those before it were), return the accept length and P(accepted up to i).

    `draft_tokens` counts the token a verify starts with, as the engine's flag does: at most draft_tokens
    - 1 drafts.
    """
    reached = []
    probability = 1.0
    for rate in conditional[: _drafts(draft_tokens, len(conditional))]:
        probability *= rate
        reached.append(probability)
    return 1.0 + sum(reached), tuple(reached)


def predict_tree(
    ranks: Sequence[Sequence[float]], *, topk: int, draft_tokens: int
) -> tuple[float, tuple[float, ...]]:
    """Given, for each depth, P(the target's token is the drafter's r-th choice | the path so far is
    right), return the
    accept length of the tree that the engine builds and P(accepted up to depth i).

    As SGLang does: at each depth the `topk` likeliest nodes are extended by their `topk` likeliest
    tokens; of all nodes the
    draft_tokens - 1 likeliest are verified. The drafter's own confidence is taken to be these probabilities.
    """
    parents = [1.0]
    pool: list[tuple[float, int]] = []
    for depth, choices in enumerate(ranks):
        likeliest = sorted(choices, reverse=True)[:topk]
        nodes = [parent * choice for parent in parents for choice in likeliest]
        pool += [(node, depth) for node in nodes]
        parents = heapq.nlargest(topk, nodes)
    # A parent is never less likely than its children and comes first, so the chosen nodes form a tree.
    chosen = sorted(pool, key=lambda node: (-node[0], node[1]))[: max(0, draft_tokens - 1)]
    reached = tuple(sum(p for p, depth in chosen if depth == level) for level in range(len(ranks)))
    return 1.0 + sum(reached), reached


def from_cumulative(reached: Sequence[float]) -> tuple[float, ...]:
    """Given P(accepted up to i), as dashboards show it per position, return the conditional rates."""
    conditional = []
    before = 1.0
    for index, rate in enumerate(reached):
        if rate > before + 1e-9:
            raise DeployKitError(
                "per-position acceptance cannot rise",
                key=f"position {index + 1}",
                found=f"{rate} after {before}",
                remedy="leave out --cumulative if the figures are conditional",
                exit_code=ExitCode.INPUT,
            )
        conditional.append(rate / before if before > 0 else 0.0)
        before = rate
    return tuple(conditional)


def from_histogram(counts: Sequence[float]) -> tuple[float, ...]:
    """Given how many verifies accepted 0, 1, 2 … drafts, return the conditional rates."""
    if not counts or sum(counts) <= 0:
        raise DeployKitError("the histogram is empty", found=list(counts), exit_code=ExitCode.INPUT)
    tails = [sum(counts[index:]) for index in range(len(counts))]
    return tuple(after / before if before else 0.0 for before, after in pairwise(tails))


def predict(
    conditional: Sequence[float],
    *,
    draft_tokens: int | None = None,
    cycle_seconds: float | None = None,
    baseline_tokens_per_second: float | None = None,
) -> Prediction:
    """Given conditional acceptance of a chain and, if known, cycle time and plain decoding's speed,
    return what follows."""
    checked_rates(conditional)
    drafts = _drafts(draft_tokens, len(conditional))
    length, reached = predict_chain(conditional, draft_tokens=draft_tokens)
    return with_break_even(
        Prediction(length, reached, drafts + 1),
        conditional[:drafts],
        cycle_seconds,
        baseline_tokens_per_second,
    )


def with_break_even(
    prediction: Prediction, conditional: Sequence[float], cycle_seconds: float | None, baseline: float | None
) -> Prediction:
    """Return the prediction with speed and break-even added, as far as cycle time and baseline are known."""
    from dataclasses import replace

    for key, number in (("cycle", cycle_seconds), ("baseline", baseline)):
        if number is not None and not 0 < number < 1e9:
            raise DeployKitError(f"the {key} must be above 0", found=number, exit_code=ExitCode.USAGE)
    speed = prediction.accept_length / cycle_seconds if cycle_seconds else None
    if cycle_seconds is None or baseline is None:
        return replace(prediction, tokens_per_second=speed)
    even = cycle_seconds * baseline
    return replace(
        prediction,
        tokens_per_second=speed,
        break_even=even,
        needed=tuple(_needed_at(conditional, index, even) for index in range(len(conditional))),
        needed_everywhere=needed_everywhere(even, prediction.draft_tokens - 1),
    )


def _needed_at(conditional: Sequence[float], index: int, even: float) -> float | None:
    """Return the rate position `index` needs for the accept length `even`, the others staying."""
    before = predict_chain(conditional[:index])[0]
    reach = predict_chain(conditional[:index])[1][-1] if index else 1.0
    # length = before + reach * rate * (accept length of the rest of the chain)
    rest = predict_chain(conditional[index + 1 :])[0]
    if even <= before:
        return 0.0
    rate = (even - before) / (reach * rest) if reach else float("inf")
    return rate if rate <= 1.0 else None


def needed_everywhere(even: float, drafts: int) -> float | None:
    """Return the one conditional acceptance for which 1 + a + a² … (`drafts` terms) is `even`; None
    above 1 + drafts."""
    if even <= 1:
        return 0.0
    if even > 1 + drafts:
        return None
    low, high = 0.0, 1.0
    for _ in range(_SOLVE_ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if predict_chain([middle] * drafts)[0] < even else (low, middle)
    return high


def checked_rates(rates: Sequence[float]) -> None:
    """Raise `DeployKitError` unless these are probabilities, at least one and not absurdly many."""
    if not rates or len(rates) > STEPS_LIMIT:
        raise DeployKitError(
            f"{len(rates)} acceptance figures",
            allowed=f"1 to {STEPS_LIMIT}, one a draft position",
            exit_code=ExitCode.USAGE,
        )
    for index, rate in enumerate(rates):
        if not 0.0 <= rate <= 1.0:
            raise DeployKitError(
                "an acceptance rate lies between 0 and 1 (or 0 % and 100 %)",
                key=f"position {index + 1}",
                found=rate,
                exit_code=ExitCode.USAGE,
            )


def parse_rate(text: str) -> float:
    """Return a rate written as 0.747, 74.7% or 74.7 %."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:[eE]-?[0-9]+)?)\s*(%?)\s*", text)
    if match is None:
        raise DeployKitError(
            "this is not a rate", found=text, allowed="0.747 or 74.7%", exit_code=ExitCode.USAGE
        )
    return float(match.group(1)) / (100.0 if match.group(2) else 1.0)


def parse_figures(text: str) -> tuple[tuple[float, ...], str]:
    """Given a training log's or dashboard's text, return conditional rates and how they were read.

    Read are, the last ones winning: `acc_0: 0.7` … (training logs, conditional), `Per-position acceptance
    rate: 0.7, 0.4` (cumulative), `spec_accept_histogram: [..]` (counts of accepted drafts). Raises
    `DeployKitError` when none is there.
    """
    histogram = re.findall(r"accept[a-z_ ]*histogram\W{1,4}\[([\d.,\s]+)\]", text)
    if histogram:
        return from_histogram(
            [float(n) for n in re.findall(r"[\d.]+", histogram[-1])]
        ), "histogram of accepted drafts"
    rows = re.findall(r"(?i)per[- ]position acceptance(?: rates?)?\W{1,4}((?:[\d.]+\s*%?\s*,?\s*)+)", text)
    if rows:
        rates = [parse_rate(part) for part in re.findall(r"[\d.]+\s*%?", rows[-1])]
        return from_cumulative(rates), "per-position acceptance (cumulative)"
    found: dict[int, float] = {}
    for position, rate in re.findall(
        r"(?i)\bacc(?:uracy|eptance)?[_/ ]?(?:pos(?:ition)?[_ ]?)?(\d{1,2})\W{1,5}([\d.]+\s*%?)", text
    ):
        found[int(position)] = parse_rate(rate.rstrip("."))
    if found:
        positions = sorted(found)
        if positions != list(range(positions[0], positions[0] + len(positions))) or positions[0] > 1:
            raise DeployKitError(
                "acceptance of some positions is missing", found=positions, exit_code=ExitCode.INPUT
            )
        return tuple(
            found[position] for position in positions
        ), "per-position accuracy of a log (taken as conditional)"
    raise DeployKitError(
        "no acceptance figures in this text",
        allowed="acc_0: 0.7 …, Per-position acceptance rate: …, spec_accept_histogram: [...]",
        exit_code=ExitCode.INPUT,
    )


def _drafts(draft_tokens: int | None, positions: int) -> int:
    if draft_tokens is None:
        return positions
    if draft_tokens < 1:
        raise DeployKitError("draft tokens are at least 1", found=draft_tokens, exit_code=ExitCode.USAGE)
    return min(positions, draft_tokens - 1)
