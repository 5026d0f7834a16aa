"""Accept length and break-even from acceptance figures: pure arithmetic, no measurement.

accept length = 1 (the bonus token) + the sum over draft positions of P(drafts are accepted up to there).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    # The one acceptance that would do at every position; None: not even 1.0, or a tree.
    needed_everywhere: float | None = None
    # Of a tree: what every chance would have to be multiplied by; None: a chain, or out of reach. `needed`
    # then holds, for each depth, the chance that one of its choices is right.
    tree: bool = False
    needed_factor: float | None = None

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
            **({"needed_factor": short(self.needed_factor)} if self.tree else {}),
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
    """Return a chain's prediction with speed and break-even added, as far as cycle time and baseline are
    known."""
    prediction = _with_speed(prediction, cycle_seconds, baseline)
    even = prediction.break_even
    if even is None:
        return prediction
    return replace(
        prediction,
        needed=tuple(_needed_at(conditional, index, even) for index in range(len(conditional))),
        needed_everywhere=needed_everywhere(even, prediction.draft_tokens - 1),
    )


def predict_whole_tree(
    ranks: Sequence[Sequence[float]],
    *,
    topk: int,
    draft_tokens: int,
    cycle_seconds: float | None = None,
    baseline_tokens_per_second: float | None = None,
) -> Prediction:
    """Given a tree's chances (as `predict_tree` takes them) and, if known, cycle time and plain decoding's
    speed, return what follows."""
    for index, choices in enumerate(ranks):
        checked_rates(choices)
        if sum(choices) > 1 + 1e-9:
            raise DeployKitError(
                "the choices of one position add up to more than 1",
                key=f"position {index + 1}",
                found=round(sum(choices), 6),
                exit_code=ExitCode.USAGE,
            )
    checked_rates([sum(choices) for choices in ranks])
    length, reached = predict_tree(ranks, topk=topk, draft_tokens=draft_tokens)
    made = _with_speed(
        Prediction(length, reached, draft_tokens, tree=True), cycle_seconds, baseline_tokens_per_second
    )
    if made.break_even is None:
        return made
    even, depths = made.break_even, range(len(ranks))

    def factor(changed: Sequence[int]) -> float | None:
        return _needed_factor(ranks, changed, even, topk=topk, draft_tokens=draft_tokens)

    factors = [factor([depth]) for depth in depths]
    needed = tuple(
        None if times is None else times * sum(choices) for times, choices in zip(factors, ranks, strict=True)
    )
    return replace(made, needed=needed, needed_factor=factor(depths))


def _needed_factor(
    ranks: Sequence[Sequence[float]], changed: Sequence[int], even: float, *, topk: int, draft_tokens: int
) -> float | None:
    """Return what the chances of the `changed` depths must be multiplied by for the accept length `even`."""

    def length(factor: float) -> float:
        scaled = [
            [factor * choice if depth in changed else choice for choice in choices]
            for depth, choices in enumerate(ranks)
        ]
        return predict_tree(scaled, topk=topk, draft_tokens=draft_tokens)[0]

    if length(0.0) >= even:
        return 0.0
    # No depth's choices can add up to more than 1.
    high = min((1 / total for depth in changed if (total := sum(ranks[depth])) > 0), default=0.0)
    if length(high) < even:
        return None
    low = 0.0
    for _ in range(_SOLVE_ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if length(middle) < even else (low, middle)
    return high


def _with_speed(prediction: Prediction, cycle_seconds: float | None, baseline: float | None) -> Prediction:
    for key, number in (("cycle", cycle_seconds), ("baseline", baseline)):
        if number is not None and not 0 < number < 1e9:
            raise DeployKitError(f"the {key} must be above 0", found=number, exit_code=ExitCode.USAGE)
    return replace(
        prediction,
        tokens_per_second=None if cycle_seconds is None else prediction.accept_length / cycle_seconds,
        break_even=None if cycle_seconds is None or baseline is None else cycle_seconds * baseline,
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


def _drafts(draft_tokens: int | None, positions: int) -> int:
    if draft_tokens is None:
        return positions
    if draft_tokens < 1:
        raise DeployKitError("draft tokens are at least 1", found=draft_tokens, exit_code=ExitCode.USAGE)
    return min(positions, draft_tokens - 1)
