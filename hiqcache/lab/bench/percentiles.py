"""The percentiles that every benchmark gives of its repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass(frozen=True)
class Percentiles:
    """Of the repeats, in milliseconds."""

    p20_ms: float
    p50_ms: float
    p80_ms: float

    @classmethod
    def of(cls, times_ms: Sequence[float]) -> Self:
        p20, p50, p80 = np.percentile(times_ms, (20, 50, 80))
        return cls(float(p20), float(p50), float(p80))
