"""The figures of a folder of results as pictures: PNG files beside `hiqcache report`'s tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from hiqcache.codec.catalog import codec_names
from hiqcache.lab.experiment.crossing import crossing
from hiqcache.lab.experiment.report import CURVE, Shown, with_b
from hiqcache.lab.experiment.row import BF16, Measurement, by_arm, load_rows
from hiqcache.lab.present import COLOURS as PALETTE
from hiqcache.lab.present import Panel, Series, plot

COLOURS = {"none": "#555555"} | dict(zip(codec_names(), cycle(PALETTE), strict=False))


def write_plots(folder: Path, out: Path) -> list[Path]:
    """Write `b.png`, `curve.png` and `crossover.png`, those that the folder has rows for.

    Raises
    ------
    UsageError
        matplotlib is not installed.
    """
    rows = load_rows(folder)
    written = []
    for experiment, panels, title in (
        ("b", _bars, "Experiment B: medians, with the least and the most"),
        ("curve", _curve, "Shaded: BF16's L2 holds the working set. Dotted: where a tier ends."),
        ("crossover", _crossover, ""),
    ):
        chosen = [row for row in rows if row.experiment == experiment]
        if chosen:
            drawn = panels(with_b(rows, chosen, experiment))
            written.append(plot(out / f"{experiment}.png", drawn, title))
    return written


def _style(row: Measurement) -> dict[str, Any]:
    record = {None: "none", "off": "bf16"}.get(row.codec) or str(row.codec)
    return {"colour": COLOURS.get(record), "faint": row.policy == "write_through"}


def _points(rows: Sequence[Measurement], shown: Shown) -> dict[float, list[float]]:
    """A figure's values by the size of the working set in thousands of tokens."""
    points: dict[float, list[float]] = {}
    for row in rows:
        if (value := row.get(shown.name)) is not None:
            points.setdefault(row.workload.working_set / 1e3, []).append(shown.scale * value)
    return points


def _bars(rows: Sequence[Measurement]) -> list[Panel]:
    return [
        Panel(
            title=shown.title,
            across="bars",
            series=[
                Series.over_repeats(arm, _points(of, shown), **_style(of[0]))
                for arm, of in by_arm(rows).items()
            ],
        )
        for shown in CURVE
    ]


def _curve(rows: Sequence[Measurement]) -> list[Panel]:
    arms = by_arm(rows)
    l1 = rows[0].l1_tokens
    marks = [("L1", l1 / 1e3, "#555555")]
    marks += [
        (f"L2 of {arm}", of[0].capacity_tokens / 1e3, _style(of[0])["colour"] or "#555555")
        for arm, of in arms.items()
    ]
    # Nothing is gained where BF16 holds everything.
    plain = next((row.capacity_tokens for row in rows if row.codec in BF16), l1)
    return [
        Panel(
            title=shown.title,
            x_label="working set, thousands of tokens",
            marks=marks,
            shaded_to=plain / 1e3,
            series=[
                Series.over_repeats(arm, _points(of, shown), **_style(of[0]))
                for arm, of in arms.items()
            ],
        )
        for shown in CURVE
    ]


def _crossover(rows: Sequence[Measurement]) -> list[Panel]:
    speeds = [10 ** (step / 10) for step in range(-10, 31)]
    series = []
    for arm, of in by_arm(rows).items():
        found, style = crossing(of), _style(of[0])
        limit = [speed * found.bytes_per_token / 1e6 for speed in speeds]
        name = f"{arm}: restoring loses above"
        series.append(Series(name=name, x=limit, y=speeds, style="-", **style))
        measured = ([found.link_gb_per_s], [found.prefill_tokens_per_ms])
        series.append(Series(name=arm, x=measured[0], y=measured[1], style="o", **style))
    return [
        Panel(
            title="Where restoring loses to recomputing; dots are measured",
            series=series,
            x_label="link, GB/s of records",
            y_label="prefill, tokens/ms",
            log="xy",
        )
    ]
