"""How results are shown: one Markdown table, one table for terminals, one plot. Every report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from hiqcache.errors import UsageError

COLOURS = (
    *("#1b6ca8", "#d1495b", "#66a182", "#edae49", "#8d6cab", "#00798c", "#a05c2b", "#555555"),
)
"""Of series that name none of their own, in turn."""


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column to the left, figures to the right."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """A table for a terminal; the first column to the left, figures to the right."""
    columns = max(map(len, lines))
    every = [[*line, *[""] * (columns - len(line))] for line in lines]
    first, *widths = (max(map(len, column)) for column in zip(*every, strict=True))
    return "\n".join(
        (
            f"{line[0]:{first}}"
            + "".join(f"  {cell:>{n}}" for cell, n in zip(line[1:], widths, strict=True))
        ).rstrip()
        for line in every
    )


def spread(values: Iterable[float | None], form: str, scale: float = 1.0) -> str:
    """The median of a figure, with the least and the most where they differ; "-" for none.

    Parameters
    ----------
    form
        A format such as `,.0f`.
    """
    known = [scale * value for value in values if value is not None]
    if not known:
        return "-"
    middle, least, most = (format(f(known), form) for f in (median, min, max))
    return middle if least == most else f"{middle} ({least} to {most})"


def interval(figure: Mapping[str, float], form: str) -> str:
    """A figure with its interval: `value`, `low` and `high` in a format such as `.2%`."""
    value, low, high = (format(figure[key], form) for key in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


@dataclass(frozen=True, kw_only=True)
class Series:
    """What has one colour in a panel.

    Parameters
    ----------
    low, high
        The ends of each value's bar, in the values' own unit.
    style
        matplotlib's: `-` for a line, `o` for dots, `-o` for both.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    colour: str | None = None
    faint: bool = False
    style: str = "-o"

    @classmethod
    def over_repeats(
        cls, name: str, points: Mapping[float, Sequence[float]], **rest: Any
    ) -> Series:
        """Medians over the repeats of each point, with the least and the most as bars."""
        at = sorted(points)
        low, middle, high = ([f(points[x]) for x in at] for f in (min, median, max))
        return cls(name=name, x=at, y=middle, low=low, high=high, **rest)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes.

    Parameters
    ----------
    across
        `bars` or `dots`: a line for each series, whose only value runs from left to right.
        None: values over x.
    log
        Which axes have decades, such as `xy`.
    marks
        Dotted vertical lines: name, place and colour.
    shaded_to
        The end of the shaded part on the left.
    """

    title: str
    series: Sequence[Series]
    across: Literal["bars", "dots"] | None = None
    x_label: str = ""
    y_label: str = ""
    log: str = ""
    marks: Sequence[tuple[str, float, str]] = ()
    shaded_to: float | None = None


def plot(path: Path, panels: Sequence[Panel], title: str = "") -> Path:
    """Draw panels into a PNG or SVG file, the same bytes for the same figures.

    Raises
    ------
    UsageError
        matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise UsageError(
            "plots need matplotlib, which is not installed: pip install 'hiqcache[experiment]'"
        ) from error
    from matplotlib.figure import Figure

    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    most = max(len(panel.series) if panel.across else 0 for panel in panels)
    height = rows * max(3.8, 0.32 * most + 1.2)
    with matplotlib.rc_context({"svg.hashsalt": "hiqcache", "svg.fonttype": "none"}):
        figure = Figure(figsize=(6.2 * columns + 1.5, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        for axis, panel in zip((a for line in axes for a in line), panels, strict=False):
            _draw(axis, panel)
        figure.suptitle(title)
        path.parent.mkdir(parents=True, exist_ok=True)
        svg = path.suffix == ".svg"
        figure.savefig(path, dpi=110, metadata={"Date": None} if svg else {"Software": None})
    return path


def _draw(axis: Any, panel: Panel) -> None:
    for place, series in enumerate(panel.series):
        style = {
            "color": series.colour or COLOURS[place % len(COLOURS)],
            "alpha": 0.55 if series.faint else 1.0,
        }
        ends = None
        if series.low is not None and series.high is not None:
            ends = [
                [y - low for y, low in zip(series.y, series.low, strict=True)],
                [high - y for y, high in zip(series.y, series.high, strict=True)],
            ]
        if panel.across == "bars":
            axis.barh(place, series.y, xerr=ends, capsize=3, **style)
        elif panel.across == "dots":
            axis.errorbar(series.y, [place], xerr=ends, fmt="o", capsize=3, **style)
        else:
            axis.errorbar(
                series.x, series.y, ends, fmt=series.style, capsize=3, label=series.name, **style
            )
    if panel.across:
        axis.set_yticks(range(len(panel.series)), [series.name for series in panel.series])
        axis.invert_yaxis()
    elif panel.series:
        axis.legend(fontsize=8)
    if "x" in panel.log:
        axis.set_xscale("log")
    elif panel.series:
        axis.set_xlim(left=0)
        axis.locator_params(axis="x", nbins=6)
    if "y" in panel.log:
        axis.set_yscale("log")
    elif not panel.across and panel.series:
        axis.set_ylim(bottom=0)
    for name, at, colour in panel.marks:
        axis.axvline(at, color=colour, linestyle=":", linewidth=1)
        where = {"xy": (at, 0.02), "xycoords": ("data", "axes fraction"), "ha": "right"}
        axis.annotate(name, rotation=90, fontsize=7, color=colour, **where)
    if panel.shaded_to is not None:
        axis.axvspan(0, panel.shaded_to, color="#000000", alpha=0.05)
    axis.set_title(panel.title)
    axis.set_xlabel(panel.x_label)
    axis.set_ylabel(panel.y_label)
