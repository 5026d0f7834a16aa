"""The sum behind the decision: what speculation gives and costs one stream. Pure arithmetic.

One cycle drafts some tokens, verifies them in one forward of the target, and emits `accept_length` tokens
(accepted drafts plus the bonus token). So, for one stream:

    tokens/s = accept length / cycle time        cycle time = draft + verify + gaps
    break-even accept length = cycle time x baseline tokens/s
"""

from __future__ import annotations


def cycle_time(draft_seconds: float, verify_seconds: float, gap_seconds: float = 0.0) -> float:
    """Given one cycle's parts in seconds, return its length. Gaps (host work between kernels) are part of
    it: leaving them out is how a profile looks faster than it is."""
    return draft_seconds + verify_seconds + gap_seconds


def speed(accept_length: float, cycle_seconds: float) -> float:
    """Given an accept length and a cycle time, return the tokens/s of one stream.

    >>> round(speed(2.0, 0.015))
    133
    """
    return accept_length / cycle_seconds


def break_even_accept_length(cycle_seconds: float, baseline_tokens_per_second: float) -> float:
    """Return the accept length at which a profile with this cycle is exactly as fast as the baseline.

    >>> round(break_even_accept_length(0.030, 82), 2)
    2.46
    """
    return cycle_seconds * baseline_tokens_per_second


def break_even_cycle(accept_length: float, baseline_tokens_per_second: float) -> float:
    """Return the cycle time in seconds below which this accept length beats the baseline.

    >>> round(break_even_cycle(2.0, 82), 4)
    0.0244
    """
    return accept_length / baseline_tokens_per_second


def implied_accept_length(tokens_per_second: float, cycle_seconds: float) -> float:
    """Return the accept length that a measured speed and a measured cycle imply.

    >>> round(implied_accept_length(60, 0.030), 2)
    1.8
    """
    return tokens_per_second * cycle_seconds


def break_even_verify(
    accept_length: float, baseline_tokens_per_second: float, other_seconds: float
) -> float | None:
    """Return the verify time in seconds below which the profile beats the baseline, `other_seconds` being
    the rest of its cycle (draft and gaps); None when that rest alone is already too long."""
    verify = break_even_cycle(accept_length, baseline_tokens_per_second) - other_seconds
    return verify if verify > 0 else None
