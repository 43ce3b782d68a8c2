"""How a figure is made from the engine's lines: how ranks, replicas and labels combine.

Each source names its metrics, which are the whitelist of `samples`, and reads a value out of the
folded lines: None if the engine has none. Used by the declarations in `figures`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from hiqcache.sidecar.samples import OTHER, UNSPLIT, Cell, Samples, Unreadable

KV = "kv"
"""The pool of SGLang's that all its token figures mean; lines without the label are of it."""

MOST_BUCKETS = 100

T_co = TypeVar("T_co", covariant=True)


class Source(Protocol[T_co]):
    """Where a figure comes from."""

    @property
    def names(self) -> Sequence[str]:
        """The metrics that it reads."""

    def read(self, samples: Samples) -> T_co | None:
        """The figure; None if the engine has none. Raises `Unreadable`."""


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


@dataclass(frozen=True)
class _OneMetric:
    name: str

    @property
    def names(self) -> Sequence[str]:
        return (self.name,)


@dataclass(frozen=True)
class Total(_OneMetric):
    """The sum over replicas of one rank each.

    Parameters
    ----------
    start
        What it is before the engine has it: 0 for a counter that SGLang creates at its first event.
    pool
        The one pool that counts; all of them if None.
    beside_parts
        The total, whose priority is empty, stands beside its parts: it alone counts.
    """

    start: float | None = None
    pool: str | None = None
    beside_parts: bool = False

    def read(self, samples: Samples) -> float | None:
        cells = _of_pool(samples.cells(self.name), self.pool)
        wholes = [cell for cell in cells if cell.labels.get("priority", "") == ""]
        if self.beside_parts and wholes:
            cells = wholes
        return _number(sum(cell.one_rank for cell in cells)) if cells else self.start


@dataclass(frozen=True)
class Largest(_OneMetric):
    """One replica's value, for what is not additive, such as bytes per token."""

    pool: str | None = None

    def read(self, samples: Samples) -> float | None:
        cells = _of_pool(samples.cells(self.name), self.pool)
        return max((_number(cell.one_rank) for cell in cells), default=None)


@dataclass(frozen=True)
class AllRanks(_OneMetric):
    """The sum over every rank: damage happens to one rank's part of a token."""

    def read(self, samples: Samples) -> float | None:
        cells = samples.cells(self.name)
        return _number(sum(cell.all_ranks for cell in cells)) if cells else None


@dataclass(frozen=True)
class Split(_OneMetric):
    """A total by the values of a label.

    Parameters
    ----------
    keys
        Values that are there from the start; `other` joins them when it is not 0.
    all_ranks
        As in `AllRanks`; such a figure is None before the engine has it.
    """

    label: str
    keys: tuple[str, ...]
    all_ranks: bool = False

    def read(self, samples: Samples) -> Mapping[str, float] | None:
        cells = samples.cells(self.name)
        if self.all_ranks and not cells:
            return None
        totals: defaultdict[str, float] = defaultdict(float)
        for cell in cells:
            key = cell.labels.get(self.label, "")
            if key == UNSPLIT:
                key = self.keys[0]
            value = cell.all_ranks if self.all_ranks else cell.one_rank
            totals[key if key in self.keys else OTHER] += _number(value)
        others = {OTHER: totals[OTHER]} if totals.get(OTHER) else {}
        return {key: totals.get(key, 0.0) for key in self.keys} | others


@dataclass(frozen=True)
class ByPool(_OneMetric):
    """One rank each of all replicas, by pool; None if the engine has no such line.

    Parameters
    ----------
    largest
        One replica's value instead of the sum, as in `Largest`.
    """

    largest: bool = False

    def read(self, samples: Samples) -> Mapping[str, float] | None:
        pools: defaultdict[str, list[float]] = defaultdict(list)
        for cell in samples.cells(self.name):
            pools[cell.labels.get("pool", KV)].append(_number(cell.one_rank))
        combine = max if self.largest else sum
        return {pool: combine(values) for pool, values in pools.items()} or None


@dataclass(frozen=True)
class Labels(_OneMetric):
    """The labels of a line whose value says nothing; `without` if the engine has no such line."""

    without: Mapping[str, str]

    def read(self, samples: Samples) -> Mapping[str, str]:
        cells = _of_pool(samples.cells(self.name), KV)
        if not cells:
            return self.without
        found = min(cells, key=lambda cell: cell.rank).labels
        return {key: found.get(key, OTHER) for key in self.without}


@dataclass(frozen=True)
class Buckets:
    """A histogram; all zeros, with SGLang's own bounds, before its first observation."""

    name: str
    bounds: tuple[float, ...]

    @property
    def names(self) -> Sequence[str]:
        return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))

    def read(self, samples: Samples) -> Histogram:
        counts: defaultdict[float, float] = defaultdict(float)
        for cell in samples.cells(f"{self.name}_bucket"):
            counts[float(cell.labels.get("le", "nan"))] += _number(cell.one_rank)
        sums = samples.cells(f"{self.name}_sum")
        if not counts and not sums:
            return Histogram(tuple((bound, 0.0) for bound in (*self.bounds, math.inf)), 0.0)
        buckets = sorted(counts.items())
        whole = math.inf in counts and not any(map(math.isnan, counts)) and bool(sums)
        rising = all(a[1] <= b[1] for a, b in zip(buckets, buckets[1:], strict=False))
        if not (whole and rising and len(buckets) <= MOST_BUCKETS):
            raise Unreadable(self.name)
        return Histogram(tuple(buckets), _number(sum(cell.one_rank for cell in sums)))


def _of_pool(cells: list[Cell], pool: str | None) -> list[Cell]:
    return [cell for cell in cells if pool is None or cell.labels.get("pool", KV) == pool]


def _number(value: float) -> float:
    if not math.isfinite(value):
        raise Unreadable(str(value))
    return value
