"""The percentiles of the repeats that every benchmark gives: `bench codec`, `tpot` and the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Literal, Self

KIND: Literal["inclusive"] = "inclusive"
"""The repeats are all there is: the least and the most are the ends."""


@dataclass(frozen=True)
class Percentiles:
    """Of the repeats, in milliseconds."""

    p20_ms: float
    p50_ms: float
    p80_ms: float
    repeats: int

    @classmethod
    def of(cls, times_ms: Sequence[float]) -> Self:
        tenths = quantiles(times_ms if len(times_ms) > 1 else [*times_ms] * 2, n=10, method=KIND)
        return cls(tenths[1], tenths[4], tenths[7], len(times_ms))
