"""A straight line through samples: whether memory grows, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression


@dataclass(frozen=True)
class Trend:
    """An ordinary least-squares line.

    Parameters
    ----------
    slope
        Units of y per unit of x.
    error
        The slope's standard error, as if the samples were independent. Memory comes in steps, so
        neighbouring samples are not, and the true error is larger.
    samples
        How many points the line goes through.
    """

    slope: float
    error: float
    samples: int


def trend(x: Sequence[float], y: Sequence[float]) -> Trend:
    """Fit a line; at least three points, not all at one x."""
    line = linear_regression(x, y)
    residual = sum((b - line.intercept - line.slope * a) ** 2 for a, b in zip(x, y, strict=True))
    mean = sum(x) / len(x)
    spread = sum((a - mean) ** 2 for a in x)
    return Trend(line.slope, math.sqrt(residual / (len(x) - 2) / spread), len(x))
