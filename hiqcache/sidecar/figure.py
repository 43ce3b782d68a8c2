"""What a figure is: one declaration from which all that the sidecar says about it follows.

The whitelist, the parsing, the Prometheus family, the JSON field with its schema and the row in
docs/metrics.md are made from `Figure`. The declarations are in `figures`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Self, TypeVar, overload

from hiqcache.sidecar.samples import Samples, Unreadable
from hiqcache.sidecar.source import Source

T = TypeVar("T")


class Kind(StrEnum):
    """The type on the TYPE line; `info` is a gauge of 1 whose labels carry the information."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True)
class Metric:
    """A Prometheus metric, as its family and its documentation need it.

    Parameters
    ----------
    name
        As sampled, with `_total`; empty for what is in the JSON alone.
    help
        A sentence or more, in Markdown.
    origin
        Where it comes from, in Markdown.
    labels
        What the keys of its value mean; all labels of an `info`.
    absent
        When there is none: goes on after "Absent ".
    """

    name: str
    kind: Kind
    unit: str
    help: str
    origin: str
    labels: tuple[str, ...] = ()
    absent: str = ""

    def sentences(self, word: str) -> str:
        """The help, and when there is no value, which is called `word`."""
        return f"{self.help} {word} {self.absent}." if self.absent else self.help


def _kind(name: str, unit: str) -> Kind:
    if unit == "none":
        return Kind.INFO
    if name.endswith("_total"):
        return Kind.COUNTER
    return Kind.HISTOGRAM if name.endswith("_seconds") else Kind.GAUGE


class Section:
    """Begins a part of the documentation's list."""

    def __init__(self, title: str) -> None:
        self.title = title


class Figure(Generic[T]):
    """A declared figure, as an attribute of a `Reader`.

    Parameters
    ----------
    read
        A source, or a function of the other figures: such a figure is never unreadable itself,
        and None where one that it needs is.
    name, unit, help, labels, absent
        As in `Metric`; name and unit tell the kind.
    json
        The path of its JSON field; the attribute's name if None, empty for metrics alone.
    origin
        Where it comes from, if that is not the source's metric.
    """

    def __init__(
        self,
        read: Source[T] | Callable[[Any], T | None],
        name: str,
        unit: str,
        help: str,
        *,
        json: str | None = None,
        origin: str = "",
        labels: tuple[str, ...] = (),
        absent: str = "",
    ) -> None:
        self.read = read
        self._json = json
        self.names = () if callable(read) else tuple(read.names)
        if self.names and not origin:
            origin = f"`{self.names[0].removesuffix('_bucket')}`"
        self.metric = Metric(name, _kind(name, unit), unit, help, origin, labels, absent)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.json = name if self._json is None else self._json

    @overload
    def __get__(self, reader: None, owner: type) -> Figure[T]: ...
    @overload
    def __get__(self, reader: Reader, owner: type) -> T | None: ...
    def __get__(self, reader: Reader | None, owner: type) -> Figure[T] | T | None:
        return self if reader is None else reader.values[self.name]


class Reader:
    """The values of the figures that its class declares, all of one read.

    Parameters
    ----------
    values
        By the name of the attribute.
    unreadable
        The names of those whose lines are there and do not make a figure.
    """

    def __init__(self, values: Mapping[str, Any], unreadable: tuple[str, ...] = ()) -> None:
        self.values, self.unreadable = dict(values), unreadable
        for figure in self.declared():
            if callable(figure.read):
                self.values.setdefault(figure.name, figure.read(self))

    def known(self, name: str, otherwise: float | None) -> float | None:
        """A figure, or another where the engine has it not; None where it is unreadable."""
        value: float | None = self.values[name]
        return otherwise if value is None and name not in self.unreadable else value

    def lost(self, *names: str) -> bool:
        """Whether one of these figures is unreadable."""
        return not set(names).isdisjoint(self.unreadable)

    @classmethod
    def of(cls, samples: Samples) -> Self:
        """Read every figure; one whose lines are broken is None."""
        values, unreadable = {}, []
        for figure in cls.declared():
            if not callable(figure.read):
                try:
                    values[figure.name] = figure.read.read(samples)
                except Unreadable:
                    values[figure.name] = None
                    unreadable.append(figure.name)
        return cls(values, tuple(unreadable))

    @classmethod
    def declared(cls) -> Iterator[Figure[Any]]:
        """All figures, in the order of their declaration."""
        return (value for value in vars(cls).values() if isinstance(value, Figure))
