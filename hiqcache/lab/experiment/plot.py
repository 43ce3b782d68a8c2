"""The same as pictures: PNG files, medians with the least and the most as bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from hiqcache.errors import UsageError
from hiqcache.lab.experiment.crossing import crossing
from hiqcache.lab.experiment.report import with_b
from hiqcache.lab.experiment.store import load_rows
from hiqcache.lab.experiment.table import Row, by_arm

COLOURS = {
    "none": "#555555",
    "bf16": "#1b6ca8",
    "int8": "#d1495b",
    "int8-compact": "#66a182",
    "int8-rotated": "#edae49",
}
PANELS = (
    ("hit_rate", "hit rate, %", 100.0),
    ("l2_hit_tokens", "tokens from L2, thousands", 1e-3),
    ("ttft_mean_ms", "mean TTFT, ms", 1.0),
    ("output_tokens_per_s", "output, tokens/s", 1.0),
)


def write_plots(folder: Path, out: Path) -> list[Path]:
    """Write `b.png`, `curve.png` and `crossover.png`, those that the folder has rows for.

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
    matplotlib.use("Agg")
    rows = load_rows(folder)
    written = []
    for experiment, draw in (("b", _bars), ("curve", _curve), ("crossover", _crossover)):
        chosen = [row for row in rows if row["experiment"] == experiment]
        if chosen:
            figure = draw(with_b(rows, chosen, experiment))
            path = out / f"{experiment}.png"
            figure.savefig(path, dpi=110)
            written.append(path)
    return written


def _figure(panels: int, height: float) -> tuple[Any, Sequence[Any]]:
    from matplotlib.figure import Figure

    columns = min(2, panels)
    figure = Figure(figsize=(6.2 * columns, height), layout="constrained")
    axes = figure.subplots(-(-panels // columns), columns, squeeze=False)
    return figure, [axis for line in axes for axis in line]


def _style(row: Row) -> dict[str, Any]:
    record = {None: "none", "off": "bf16"}.get(row["codec"]) or str(row["codec"])
    return {"color": COLOURS[record], "alpha": 0.55 if row["policy"] == "write_through" else 1.0}


def _bars(rows: Sequence[Row]) -> Any:
    figure, axes = _figure(len(PANELS), 7.5)
    arms = by_arm(rows)
    for axis, (key, title, scale) in zip(axes, PANELS, strict=True):
        for place, chosen in enumerate(arms.values()):
            values = [scale * row[key] for row in chosen]
            middle = median(values)
            ends = [[middle - min(values)], [max(values) - middle]]
            axis.barh(place, middle, xerr=ends, capsize=3, **_style(chosen[0]))
        axis.set_yticks(range(len(arms)), list(arms))
        axis.invert_yaxis()
        axis.set_title(title)
    figure.suptitle(f"Experiment B, {len({row['repeat'] for row in rows})} repeats")
    return figure


def _curve(rows: Sequence[Row]) -> Any:
    figure, axes = _figure(len(PANELS), 8.5)
    arms = by_arm(rows)
    shape = rows[0]["workload"]
    group = shape["prefix"] + shape["prompts"] * (shape["question"] + shape["output"])
    ends = [("L1", rows[0]["l1_tokens"], "#555555")]
    ends += [
        (f"L2 of {name}", chosen[0]["capacity_tokens"], _style(chosen[0])["color"])
        for name, chosen in arms.items()
    ]
    # Nothing is gained where BF16 holds everything.
    plain = [row["capacity_tokens"] for row in rows if row["codec"] in ("off", "bf16")] or [
        rows[0]["l1_tokens"]
    ]
    for axis, (key, title, scale) in zip(axes, PANELS, strict=True):
        for name, chosen in arms.items():
            points: dict[int, list[float]] = {}
            for row in chosen:
                working_set = row["workload"]["groups"] * group
                points.setdefault(working_set, []).append(scale * row[key])
            at = sorted(points)
            middles = [median(points[x]) for x in at]
            spans = [
                [m - min(points[x]) for x, m in zip(at, middles, strict=True)],
                [max(points[x]) - m for x, m in zip(at, middles, strict=True)],
            ]
            axis.errorbar(
                [x / 1e3 for x in at],
                middles,
                spans,
                marker="o",
                capsize=3,
                label=name,
                **_style(chosen[0]),
            )
        for name, tokens, colour in ends:
            axis.axvline(tokens / 1e3, color=colour, linestyle=":", linewidth=1)
            axis.annotate(
                name,
                (tokens / 1e3, 0.02),
                xycoords=("data", "axes fraction"),
                rotation=90,
                fontsize=7,
                color=colour,
                ha="right",
            )
        axis.axvspan(0, plain[0] / 1e3, color="#000000", alpha=0.05)
        axis.set_xlabel("working set, thousands of tokens")
        axis.set_title(title)
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
    axes[0].legend(fontsize=8)
    figure.suptitle("Shaded: BF16's L2 holds the working set. Dotted: where a tier ends.")
    return figure


def _crossover(rows: Sequence[Row]) -> Any:
    figure, axes = _figure(1, 4.8)
    axis = axes[0]
    speeds = [10 ** (step / 10) for step in range(-10, 31)]
    for name, chosen in by_arm(rows).items():
        found = crossing(chosen)
        style = _style(chosen[0])
        limit = [speed * found.bytes_per_token / 1e6 for speed in speeds]
        axis.plot(limit, speeds, label=f"{name}: restoring loses above", **style)
        axis.plot(found.link_gb_per_s, found.prefill_tokens_per_ms, "o", **style)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("link, GB/s of records")
    axis.set_ylabel("prefill, tokens/ms")
    axis.set_title("Where restoring loses to recomputing; dots are measured")
    axis.legend(fontsize=8)
    return figure
