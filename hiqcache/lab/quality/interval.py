"""Intervals of 95 %: by resampling prompts, and Wilson's for a share of prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
SEED = 0
Z = 1.959964
Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""From sums over prompts, `[..., columns]`, to a figure, `[...]`."""


def bootstrap(columns: Sequence[Sequence[float]], statistic: Statistic) -> dict[str, float]:
    """A figure of sums over prompts, with its percentile bootstrap interval.

    Prompts are resampled, not positions: positions of one prompt depend on each other.

    Parameters
    ----------
    columns
        One sequence a quantity, one value a prompt.
    statistic
        What the figure is, given each quantity's sum.

    Returns
    -------
    dict
        `value`, `low`, `high`.
    """
    table = np.array(columns, dtype=np.float64).T
    generator = np.random.default_rng(SEED)
    chosen = generator.integers(0, len(table), (RESAMPLES, len(table)))
    with np.errstate(divide="ignore", invalid="ignore"):
        samples = statistic(table[chosen].sum(axis=1))
        value = float(statistic(table.sum(axis=0)))
    low, high = np.nanpercentile(samples, (2.5, 97.5))
    return {"value": value, "low": float(low), "high": float(high)}


def wilson(successes: int, trials: int) -> dict[str, float]:
    """A share with Wilson's score interval (E. B. Wilson, JASA 22, 1927)."""
    share = successes / trials
    centre = share + Z**2 / (2 * trials)
    spread = Z * sqrt(share * (1 - share) / trials + Z**2 / (4 * trials**2))
    scale = 1 + Z**2 / trials
    return {
        "value": share,
        "low": max(0.0, (centre - spread) / scale),
        "high": min(1.0, (centre + spread) / scale),
    }


def ratio(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """The first column over the second."""
    return np.asarray(sums[..., 0] / sums[..., 1])


def relative_perplexity(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """exp((nll - reference nll) / positions) - 1, from columns in that order."""
    return np.asarray(np.expm1((sums[..., 0] - sums[..., 1]) / sums[..., 2]))
