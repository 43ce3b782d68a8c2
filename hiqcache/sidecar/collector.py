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

from hiqcache.sidecar.engine import Engine, Reading
from hiqcache.sidecar.failure import Reason
from hiqcache.sidecar.figure import Kind
from hiqcache.sidecar.figure import Metric as Description
from hiqcache.sidecar.figures import Figures
from hiqcache.sidecar.source import Histogram

Value = float | Mapping[str, float] | Mapping[str, str] | Histogram | None
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
FAMILIES: Mapping[Kind, type[Family]] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.INFO: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}

UP = Description(
    "hiqcache_up",
    Kind.GAUGE,
    "bool",
    "1 if the engine's `/metrics` came in time and could be read, else 0. Always there.",
    "the read",
)
DURATION = Description(
    "hiqcache_scrape_duration_seconds",
    Kind.GAUGE,
    "seconds",
    "How long this read of the engines took, which are read at the same time.",
    "the read",
)
ERRORS = Description(
    "hiqcache_scrape_errors_total",
    Kind.COUNTER,
    "reads",
    "Failed reads since the sidecar started, whoever asked (a scraper, the page, `/readyz`). "
    "`timeout`: not in time. `connect`: no connection, one that broke off, or no HTTP. `status`: "
    "not 200. `parse`: not SGLang's metrics, cut short, or more than 8 MiB.",
    "the read",
    ("reason",),
)
UNREADABLE = Description(
    "hiqcache_sidecar_unreadable_figures_total",
    Kind.COUNTER,
    "reads",
    "Reads since the sidecar started in which the engine gave a figure that is none: a NaN, a "
    "negative size, a broken line. Such a figure is absent from that read, and no other is.",
    "the read",
    ("figure",),
)
OWN = (UP, DURATION, ERRORS, UNREADABLE)


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
        self._errors = sum((engine.errors for engine in engines), Counter[Reason]())
        self._unreadable = {engine.name: engine.unreadable for engine in engines}
        self._own = own

    def collect(self) -> Iterator[Metric]:
        names = [reading.name for reading in self._readings]
        figures = list(Figures.declared())
        yield _family(UP, names, (float(r.figures is not None) for r in self._readings))
        yield _family(DURATION, [None], [max(reading.seconds for reading in self._readings)])
        yield _family(ERRORS, [None], [{why.value: self._errors[why] for why in Reason}])
        counts = (self._unreadable.get(name, Counter[str]()) for name in names)
        read = [figure.name for figure in figures if figure.names]
        yield _family(UNREADABLE, names, ({name: count[name] for name in read} for count in counts))
        for figure in figures:
            if figure.metric.name:
                values = (
                    r.figures.values[figure.name] if r.figures else None for r in self._readings
                )
                family = _family(figure.metric, names, values)
                if family.samples:
                    yield family
        yield from self._own.collect()


def _family(metric: Description, engines: Sequence[str | None], values: Iterable[Value]) -> Family:
    """The family with the value of each engine, whose name is a label unless it is None."""
    labels = ["engine"] if engines[0] is not None else []
    text = metric.sentences("Absent").replace("`", "")
    family = FAMILIES[metric.kind](metric.name, text, labels=[*labels, *metric.labels])
    for engine, value in zip(engines, values, strict=True):
        _add(family, [] if engine is None else [engine], value)
    return family


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
