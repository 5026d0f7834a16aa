"""From a stream of forwards (what, how long, begun when) to phases and cycles. Pure: no SGLang, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# SGLang's category names (its forward modes in lower case, and the drafters' own graphs) → our phase.
PHASE_OF_CATEGORY = {
    "target_verify": "verify",
    "eagle_draft": "draft",
    "frozen_kv_draft": "draft",
    "eagle_draft_extend": "draft_extend",
    "draft_extend_v2": "draft_extend",
    "decode": "decode",
    "extend": "prefill",
    "mixed": "prefill",
    "split_prefill": "prefill",
    "dllm_extend": "prefill",
}
PHASES = ("verify", "draft", "draft_extend", "decode", "prefill")
# A pause between two verifies longer than this is a queue that ran dry, not a cycle.
LONGEST_CYCLE_SECONDS = 5.0


def phase_of(category: str, *, drafter: bool) -> str | None:
    """Given SGLang's category and whose forward it was, return the phase; None for idle and unknown ones.

    A drafter that runs outside its CUDA graph reports its steps as plain `decode`: they are `draft`.
    """
    phase = PHASE_OF_CATEGORY.get(category)
    if drafter and phase == "decode":
        return "draft"
    return phase


class Observed(NamedTuple):
    """One value for one histogram: `phase` is a forward's phase, or None for a cycle."""

    phase: str | None
    seconds: float


class ForwardStream:
    """Joins what belongs together, in the order the forwards ran.

    A drafter outside its graph runs one forward a step: neighbouring steps are one `draft`. A cycle is the
    time from the start of a verify to the start of the next, with no prefill, plain decode or idle
    step between them (then another batch is running).
    """

    def __init__(self) -> None:
        self._draft_seconds = 0.0
        self._draft_steps = 0
        self._verify_began: float | None = None

    def add(self, phase: str | None, seconds: float, began_seconds: float | None) -> tuple[Observed, ...]:
        """Given one forward, return what is now known. `began_seconds` is on any steady clock; None: unknown.

        Only cycles need the clock.
        """
        if phase == "draft":
            self._draft_seconds += seconds
            self._draft_steps += 1
            return ()
        known = self.flush()
        if phase is None:
            self._verify_began = None
            return known
        known += (Observed(phase, seconds),)
        if phase == "verify":
            if began_seconds is not None and self._verify_began is not None:
                cycle = began_seconds - self._verify_began
                if 0.0 < cycle < LONGEST_CYCLE_SECONDS:
                    known += (Observed(None, cycle),)
            self._verify_began = began_seconds
        elif phase in ("prefill", "decode"):
            self._verify_began = None
        return known

    def flush(self) -> tuple[Observed, ...]:
        """Return the draft that was being summed, if any."""
        if not self._draft_steps:
            return ()
        draft = Observed("draft", self._draft_seconds)
        self._draft_seconds, self._draft_steps = 0.0, 0
        return (draft,)


def accepted_positions(requests_by_drafts: Mapping[int, int]) -> list[int]:
    """Given how many requests of a verify accepted so many drafts, return how often position 1, 2, … was.

    >>> accepted_positions({3: 1, 1: 1, 0: 5})
    [2, 1, 1]
    """
    counts = [0] * max(requests_by_drafts, default=0)
    reached = 0
    for position in range(len(counts), 0, -1):
        reached += requests_by_drafts.get(position, 0)
        counts[position - 1] = reached
    return counts
