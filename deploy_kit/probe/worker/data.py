"""Pseudo-random inputs that every rank can make for every rank, so that references need no communication."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_MASK = 0xFFFFFFFF
# Largest integer that bf16, and every sum on the way to it, represents exactly.
_EXACT_BF16 = 256


def mixed_bits(numel: int, seed: int, device: torch.device) -> torch.Tensor:
    """Given a count and a seed, return that many int64 values of 32 mixed bits; equal on every device."""
    return _mixed(torch.arange(numel, dtype=torch.int64, device=device) + (seed * 0x9E3779B9 & _MASK))


def _mixed(value: torch.Tensor) -> torch.Tensor:
    value &= _MASK
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        value ^= value >> shift
        value = value * factor & _MASK
    return value ^ (value >> 16)


def exact_rows(numel: int, seeds: list[int], world_size: int, device: torch.device) -> torch.Tensor:
    """Return `integers` of many seeds at once, [seeds, numel]: a hundred inputs in one go."""
    starts = torch.tensor([seed * 0x9E3779B9 & _MASK for seed in seeds], dtype=torch.int64, device=device)
    value = torch.arange(numel, dtype=torch.int64, device=device)[None, :] + starts[:, None]
    return _small(_mixed(value), world_size)


def integers(numel: int, seed: int, world_size: int, device: torch.device) -> torch.Tensor:
    """Return bf16 integers small enough that their sum over the ranks, and that sum added to itself
    `world_size` times, are exact in bf16 whatever the order: any deviation is an error, not rounding."""
    return _small(mixed_bits(numel, seed, device), world_size)


def _small(bits: torch.Tensor, world_size: int) -> torch.Tensor:
    bound = max(1, min(8, _EXACT_BF16 // (world_size * world_size)))
    return (bits % (2 * bound + 1) - bound).to(torch.bfloat16)


def reals(numel: int, seed: int, device: torch.device) -> torch.Tensor:
    """Return bf16 numbers, uniform in [-1, 1)."""
    return (mixed_bits(numel, seed, device).to(torch.float32) / 2**31 - 1).to(torch.bfloat16)


@dataclass(frozen=True)
class Difference:
    """How far a result is from its reference; `count` 0 means equal within the tolerance."""

    count: int
    total: int
    index: int
    found: float
    expected: float

    def text(self) -> str:
        """Return the difference in words."""
        return (
            f"{self.count} of {self.total} elements differ, the first at {self.index}: "
            f"{self.found:g} instead of {self.expected:g}"
        )


def compare(found: torch.Tensor, expected: torch.Tensor, tolerance: torch.Tensor | float) -> Difference:
    """Compare in float64; not-a-number never passes."""
    left, right = found.reshape(-1).double(), expected.reshape(-1).double()
    bad = ~((left - right).abs() <= tolerance)
    count = int(bad.sum())
    if not count:
        return Difference(0, left.numel(), -1, 0.0, 0.0)
    index = int(bad.nonzero()[0])
    value = float(left[index])
    return Difference(
        count, left.numel(), index, value if value == value else float("inf"), float(right[index])
    )


def sum_over_ranks(
    numel: int, seeds: list[int], device: torch.device, *, exact: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Given each rank's seed, return the float64 sum of all ranks' inputs and the sum of their magnitudes."""
    total = torch.zeros(numel, dtype=torch.float64, device=device)
    magnitude = torch.zeros_like(total)
    for seed in seeds:
        value = (integers(numel, seed, len(seeds), device) if exact else reals(numel, seed, device)).double()
        total += value
        magnitude += value.abs()
    return total, magnitude


def digest(tensor: torch.Tensor) -> int:
    """Return a checksum of the bits, for comparing ranks: equal results have equal digests."""
    bits = tensor.reshape(-1).view(torch.int16).to(torch.int64) & 0xFFFF
    weights = mixed_bits(bits.numel(), 1, bits.device) | 1
    return int((bits * weights).sum()) & 0x7FFFFFFFFFFFFFFF
