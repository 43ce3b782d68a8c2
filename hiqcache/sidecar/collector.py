"""Turns readings into metric families at the moment of a scrape; keeps nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from hiqcache.sidecar.engine import Engine, Reading, Reason
from hiqcache.sidecar.metrics import METRICS, POOL_LABELS, Kind, Value
from hiqcache.sidecar.metrics import Metric as Description
from hiqcache.sidecar.ranks import Histogram

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
FAMILIES: Mapping[Kind, type[Family]] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.INFO: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


class ReadingCollector(Collector):
    """One scrape: what the engines said, followed by the sidecar's own metrics.

    Parameters
    ----------
    readings
        One for each engine, in the same order.
    engines
        For their error counts.
    own
        The registry of the sidecar's own process.
    """

    def __init__(
        self, readings: Sequence[Reading], engines: Sequence[Engine], own: Collector
    ) -> None:
        self._readings = readings
        self._errors = sum((Counter(engine.errors) for engine in engines), Counter[Reason]())
        self._own = own

    def collect(self) -> Iterator[Metric]:
        yield self._up()
        yield GaugeMetricFamily(
            "hiqcache_scrape_duration_seconds",
            "Time of this read of the engines, which are read at the same time.",
            value=max(reading.seconds for reading in self._readings),
        )
        errors = CounterMetricFamily(
            "hiqcache_scrape_errors_total",
            "Reads of an engine that failed, since the sidecar started.",
            labels=["reason"],
        )
        for reason in Reason:
            errors.add_metric([reason.value], self._errors[reason])
        yield errors
        for description in METRICS:
            if (family := self._family(description)).samples:
                yield family
        yield from self._own.collect()

    def _up(self) -> Metric:
        family = GaugeMetricFamily(
            "hiqcache_up", "Whether the engine answered this read.", labels=self._engine_labels
        )
        for reading in self._readings:
            family.add_metric(_engine(reading), float(reading.figures is not None))
        return family

    def _family(self, metric: Description) -> Family:
        labels = [*self._engine_labels, *_own_labels(metric)]
        family = FAMILIES[metric.kind](metric.name, metric.help, labels=labels)
        for reading in self._readings:
            if reading.figures is not None:
                _add(family, _engine(reading), metric.value(reading.figures))
        return family

    @property
    def _engine_labels(self) -> list[str]:
        return [] if self._readings[0].name is None else ["engine"]


def _engine(reading: Reading) -> list[str]:
    return [] if reading.name is None else [reading.name]


def _own_labels(metric: Description) -> Iterable[str]:
    if metric.kind is Kind.INFO:
        return POOL_LABELS
    return () if metric.label is None else (metric.label,)


def _add(family: Family, engine: list[str], value: Value) -> None:
    if value is None:
        return
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(value, Histogram)
        buckets = [(_bound(bound), count) for bound, count in value.buckets]
        family.add_metric(engine, buckets, value.total)
    elif isinstance(value, Mapping):
        if isinstance(next(iter(value.values())), str):
            family.add_metric([*engine, *map(str, value.values())], 1.0)
            return
        for key, number in value.items():
            family.add_metric([*engine, key], float(number))
    else:
        assert not isinstance(value, Histogram)
        family.add_metric(engine, value)


def _bound(bound: float) -> str:
    # The client library's own formatting, which is not annotated.
    return str(floatToGoString(bound))  # type: ignore[no-untyped-call]
