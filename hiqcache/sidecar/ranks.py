"""From samples with SGLang's labels to one figure: one rank speaks, all else is summed.

Every tensor-parallel rank counts the same tokens, each under its own `tp_rank`, so summing over
ranks would multiply them: the lowest rank that reports stands for all, for bytes as well, so
that bytes divided by tokens stay one rank's record arithmetic. What differs in any other label
(streaming or not, data-parallel replicas, priorities) is different traffic and is summed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hiqcache.sidecar.samples import GarbledText, Sample

RANKS = ("pp_rank", "tp_rank", "moe_ep_rank")


@dataclass(frozen=True)
class Histogram:
    """Cumulative counts by upper bound; the last bound is infinite.

    Parameters
    ----------
    buckets
        `(upper bound in seconds, observations up to it)`, ascending.
    total
        The sum of the observations, in seconds.
    """

    buckets: tuple[tuple[float, float], ...]
    total: float

    @property
    def count(self) -> float:
        return self.buckets[-1][1]


class Samples:
    """The samples of one read, by name."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._by_name: defaultdict[str, list[Sample]] = defaultdict(list)
        for sample in samples:
            # L2 has a pool for each kind of state; HiQCache's and all token figures are KV.
            if sample.labels.get("pool", "kv") == "kv":
                self._by_name[sample.name].append(sample)

    def total(self, name: str) -> float | None:
        """The sum over everything but ranks; None if the engine has no such sample."""
        samples = self.one_rank(name)
        return sum(sample.value for sample in samples) if samples else None

    def count(self, name: str) -> float:
        """`total`, or the 0 at which a counter starts that SGLang creates at its first event."""
        return self.total(name) or 0.0

    def largest(self, name: str) -> float | None:
        """One replica's value, for what is not additive, such as bytes per token."""
        return max((sample.value for sample in self.one_rank(name)), default=None)

    def split(self, name: str, label: str) -> dict[str, float]:
        """`total` by the values of a label."""
        totals: defaultdict[str, float] = defaultdict(float)
        for sample in self.one_rank(name):
            totals[sample.labels.get(label, "")] += sample.value
        return dict(totals)

    def split_of_all_ranks(self, name: str, label: str) -> dict[str, float] | None:
        """As `split`, for what happens to one rank alone: damage to its part of a token."""
        samples = self._by_name.get(name)
        if not samples:
            return None
        totals: defaultdict[str, float] = defaultdict(float)
        for sample in samples:
            totals[sample.labels.get(label, "")] += sample.value
        return dict(totals)

    def labels(self, name: str) -> Mapping[str, str] | None:
        """The labels of an information sample."""
        samples = self.one_rank(name)
        return samples[0].labels if samples else None

    def histogram(self, name: str) -> Histogram | None:
        """A histogram, or None before the engine's first observation."""
        buckets: defaultdict[float, float] = defaultdict(float)
        for sample in self.one_rank(f"{name}_bucket"):
            buckets[_bound(sample.labels.get("le", ""))] += sample.value
        if not buckets:
            return None
        if math.inf not in buckets:
            raise GarbledText(f"{name} has no +Inf bucket")
        return Histogram(tuple(sorted(buckets.items())), self.count(f"{name}_sum"))

    def one_rank(self, name: str) -> list[Sample]:
        """The samples of the lowest rank, for each set of other labels."""
        lowest: dict[tuple[tuple[str, str], ...], tuple[tuple[int, ...], Sample]] = {}
        for sample in self._by_name.get(name, ()):
            others = tuple(sorted(kv for kv in sample.labels.items() if kv[0] not in RANKS))
            rank = tuple(_rank(sample.labels.get(label, "")) for label in RANKS)
            if others not in lowest or rank < lowest[others][0]:
                lowest[others] = rank, sample
        return [sample for _, sample in lowest.values()]


def _rank(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _bound(text: str) -> float:
    try:
        bound = float(text)
    except ValueError:
        raise GarbledText("a bucket without a bound") from None
    if math.isnan(bound):
        raise GarbledText("a bucket without a bound")
    return bound
