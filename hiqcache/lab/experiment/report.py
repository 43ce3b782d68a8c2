"""What a folder of results says, as Markdown: `hiqcache report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from hiqcache.errors import UsageError
from hiqcache.lab.experiment.crossing import crossing_section
from hiqcache.lab.experiment.predict import predict_row
from hiqcache.lab.experiment.row import (
    Figures,
    Measurement,
    by_arm,
    load_provenance,
    load_rows,
)
from hiqcache.lab.present import markdown, spread

Rows = Sequence[Measurement]


@dataclass(frozen=True)
class Shown:
    """A figure of a table: its title, its name in a row, its format and factor."""

    title: str
    name: str
    form: str = ",.0f"
    scale: float = 1.0

    def cell(self, rows: Rows) -> str:
        """The figure of an arm over its repeats."""
        return spread([row.get(self.name) for row in rows], self.form, self.scale)


CAPACITY = (
    Shown("L2 capacity, tokens", "capacity_tokens"),
    Shown("host memory of L2, GB", "capacity_bytes", ".3f", 1e-9),
    Shown("L2 used at the end, tokens", "l2_used_tokens"),
    Shown("bytes per token, backed up", "backup_bytes_per_token"),
    Shown("bytes per token, restored", "restore_bytes_per_token"),
    Shown("backed up, tokens", "backup_tokens"),
    Shown("backed up, GiB", "backup_bytes", ".2f", 2**-30),
    Shown("restored, GiB", "restore_bytes", ".2f", 2**-30),
    Shown("tokens from L1", "l1_hit_tokens"),
    Shown("tokens from L2", "l2_hit_tokens"),
    Shown("hit rate, %", "hit_rate", ".1f", 100.0),
)
SPEED = (
    Shown("mean TTFT, ms", "ttft_mean_ms"),
    Shown("p99 TTFT, ms", "ttft_p99_ms"),
    Shown("mean TPOT, ms", "tpot_mean_ms", ".1f"),
    Shown("output, tokens/s", "output_tokens_per_s", ",.1f"),
)
CURVE = (CAPACITY[-1], CAPACITY[-2], SPEED[0], SPEED[-1])
BF16 = ("off", "bf16")


def report(folder: Path) -> str:
    """All tables of a folder.

    Raises
    ------
    UsageError
        The folder holds no results that may be used.
    """
    every = load_rows(folder, valid_only=False)
    rows = [row for row in every if row.valid]
    if not rows:
        raise UsageError(f"{folder} holds no usable results, {len(every)} unusable ones")
    parts = [_header(folder, every, rows)]
    for experiment, title, section in (
        ("a", "Experiment A: the same tokens in L2", _a),
        ("b", "Experiment B: the same host memory", _b),
        ("curve", "The curve", _curve),
        ("crossover", "Restoring beside recomputing", crossing_section),
    ):
        chosen = [row for row in rows if row.experiment == experiment]
        if chosen:
            parts.append(f"## {title}\n\n{section(with_b(rows, chosen, experiment))}")
    measured = [row for row in rows if isinstance(row.figures, Figures)]
    if measured:
        parts.append(f"## Predicted by the simulator\n\n{_predictions(measured)}")
    return "\n\n".join(parts)


def with_b(rows: Rows, chosen: Rows, experiment: str) -> list[Measurement]:
    """The curve's arms have a point in B, too: same servers, same shape."""
    if experiment != "curve":
        return list(chosen)
    arms = {row.arm for row in chosen}
    shape = replace(chosen[0].workload, groups=1)
    return list(chosen) + [
        row
        for row in rows
        if row.experiment == "b" and row.arm in arms and replace(row.workload, groups=1) == shape
    ]


def _header(folder: Path, every: Rows, rows: Rows) -> str:
    lines = []
    for origin in load_provenance(folder):
        where = origin.get("gpu") or origin["device_name"]
        cuda = f", driver {origin['driver']}, CUDA {origin['cuda']}" if "driver" in origin else ""
        lines.append(
            f"- {origin['date']}: {where}{cuda}; SGLang {origin['sglang']}, torch "
            f"{origin['torch']}, HiQCache {origin['hiqcache']} at {origin['commit']}, image "
            f"{origin['image']}"
        )
    unusable = [row for row in every if not row.valid]
    notes = [f"{rows[0].geometry}, {len(rows)} runs, {len(unusable)} unusable."]
    if rows[0].load_format == "dummy":
        notes.append("Random weights: tokens, bytes, hits and times are real, answers are noise.")
    codecs = {row.codec for row in rows}
    if "off" not in codecs and "bf16" in codecs:
        notes.append(
            "Run on the CPU platform, BF16 through HiQCache's identity codec: counts hold, times "
            "say nothing about a GPU."
        )
    notes += [f"Unusable: {row.experiment} {row.arm}: {row.reason}" for row in unusable]
    return "\n".join([*lines, "", *notes])


def _a(rows: Rows) -> str:
    return f"{_shape(rows[0])}\n\n{_by_arm(rows, CAPACITY)}"


def _b(rows: Rows) -> str:
    parts = [_shape(rows[0]), _by_arm(rows, (*CAPACITY, *SPEED))]
    if comparison := _comparison(rows):
        parts.append(comparison)
    return "\n\n".join(parts)


def _by_arm(rows: Rows, figures: Sequence[Shown]) -> str:
    """One line for each figure, one column for each arm."""
    arms = by_arm(rows)
    lines = [[shown.title, *map(shown.cell, arms.values())] for shown in figures]
    return markdown(["", *arms], lines)


def _shape(row: Measurement) -> str:
    shape = row.workload
    return (
        f"{shape.groups} groups x {shape.prompts} prompts, prefixes of {shape.prefix}, "
        f"questions of {shape.question}, answers of {shape.output} tokens, concurrency "
        f"{shape.concurrency}, L1 {row.l1_tokens:,} tokens, page size {row.page_size}. "
        f"Medians over the repeats, with the least and the most."
    )


def _comparison(rows: Rows) -> str | None:
    """Each codec over BF16 under its own policy, and over the best BF16: repeat by repeat."""
    arms = by_arm(rows)
    plain = {name: chosen for name, chosen in arms.items() if chosen[0].codec in BF16}
    if not plain:
        return None
    best = max(plain, key=lambda name: median(_values(plain[name], "output_tokens_per_s")))
    lines = []
    for name, chosen in arms.items():
        if chosen[0].codec in (*BF16, None):
            continue
        same = [other for other in plain if plain[other][0].policy == chosen[0].policy]
        for other in dict.fromkeys([*same, best]):
            cells = [
                spread(ratios(chosen, plain[other], key), ".2f")
                for key in ("output_tokens_per_s", "ttft_mean_ms", "l2_hit_tokens")
            ]
            lines.append([name, f"{other}{' (best)' if other == best else ''}", *cells])
    head = ["codec", "over", "output", "mean TTFT", "tokens from L2"]
    return f"Ratios within each repeat, median (least to most):\n\n{markdown(head, lines)}"


def _values(rows: Rows, key: str) -> list[float]:
    return [value for row in rows if (value := row.get(key)) is not None]


def ratios(rows: Rows, others: Rows, key: str) -> list[float]:
    """A figure over that of the other arm in the same repeat."""
    base = {row.repeat: row.get(key) for row in others}
    return [
        value / below
        for row in rows
        if (value := row.get(key)) is not None and (below := base.get(row.repeat))
    ]


def _curve(rows: Rows) -> str:
    arms = by_arm(rows)
    head = ["groups", "prefixes, tokens", *arms]
    parts = []
    for shown in CURVE:
        lines = []
        for count in sorted({row.workload.groups for row in rows}):
            point = [row for row in rows if row.workload.groups == count]
            cells = [shown.cell([row for row in point if row.arm == arm]) for arm in arms]
            lines.append([str(count), f"{count * point[0].workload.prefix:,}", *cells])
        parts.append(f"{shown.title[0].upper()}{shown.title[1:]}\n\n{markdown(head, lines)}")
    return "\n\n".join([_ends(rows), *parts])


def _ends(rows: Rows) -> str:
    """Where the tiers end, in groups of this workload."""
    group = rows[0].workload.group_tokens
    ends = [f"L1 holds {rows[0].l1_tokens / group:.1f} groups"]
    ends += [
        f"the L2 of {arm} {chosen[0].capacity_tokens / group:.1f}"
        for arm, chosen in by_arm(rows).items()
    ]
    return (
        f"A group is {group:,} tokens with its questions and answers. {', '.join(ends)}. To the "
        f"left of L1's end nothing is restored; between it and BF16's end all arms hold "
        f"everything; far to the right of the last end none holds enough."
    )


def _predictions(rows: Rows) -> str:
    lines, worst = [], 0.0
    for arm, chosen in by_arm(rows).items():
        gaps = [100 * (predict_row(row).hit_rate - (row.get("hit_rate") or 0.0)) for row in chosen]
        worst = max(worst, *map(abs, gaps))
        lines.append([arm, str(len(gaps)), spread(gaps, "+.1f")])
    table = markdown(["arm", "runs", "predicted less measured hit rate, points"], lines)
    return f"{table}\n\nFurthest apart: {worst:.1f} points."
