"""What a folder of results says, as Markdown: `hiqcache report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hiqcache.errors import UsageError
from hiqcache.lab.experiment.crossing import crossing_section
from hiqcache.lab.experiment.predict import predict_row
from hiqcache.lab.experiment.row import (
    BF16,
    OUTPUT,
    Figures,
    Measurement,
    best_arm,
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
MATRIX = (SPEED[-1], *SPEED[:-1], CAPACITY[-1], CAPACITY[-2])
RATIOS = (*MATRIX[:4], MATRIX[5])
TTFT = "ttft_mean_ms"
BF16_NAME = "bf16"


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
    for experiment, title in (
        ("a", "Experiment A: the same tokens in L2"),
        ("b", "Experiment B: the same host memory"),
        ("curve", "The curve"),
        ("crossover", "Restoring beside recomputing"),
    ):
        if any(row.experiment == experiment for row in rows):
            parts.append(f"## {title}\n\n{section(rows, experiment)}")
    measured = [row for row in rows if isinstance(row.figures, Figures)]
    if measured:
        parts.append(f"## Predicted by the simulator\n\n{_predictions(measured)}")
    return "\n\n".join(parts)


def section(rows: Rows, experiment: str) -> str:
    """The tables of one experiment."""
    tables = {"a": _a, "b": _b, "curve": _curve, "crossover": crossing_section}[experiment]
    chosen = [row for row in rows if row.experiment == experiment]
    return tables(with_b(rows, chosen, experiment))


def with_b(rows: Rows, chosen: Rows, experiment: str) -> list[Measurement]:
    """The curve's arms have a point in B, too, under whatever name: same servers, same shape."""
    if experiment != "curve":
        return list(chosen)
    arms = {_server(row): row.arm for row in chosen}
    shape = replace(chosen[0].workload, groups=1)
    return list(chosen) + [
        replace(row, arm=arms[_server(row)])
        for row in rows
        if row.experiment == "b"
        and _server(row) in arms
        and replace(row.workload, groups=1) == shape
    ]


def _server(row: Measurement) -> tuple[object, ...]:
    return row.codec, row.policy, row.layout, row.page_size


def made_by(origin: Mapping[str, Any]) -> str:
    """Machine, versions and commit of a result in one line."""
    driver = f", driver {origin['driver']}" if "driver" in origin else ""
    cuda = f", CUDA {origin['cuda']}" if origin.get("cuda") else ""
    image = "" if origin.get("image", "none") == "none" else f", image {origin['image']}"
    machine = origin.get("gpu") or origin["device_name"]
    versions = f"SGLang {origin['sglang']}, torch {origin['torch']}"
    at = f"HiQCache at {origin['commit'][:12]}{image}"
    return f"{origin['date'][:10]}: {machine}{driver}{cuda}; {versions}, {at}"


def _header(folder: Path, every: Rows, rows: Rows) -> str:
    lines = [f"- {made_by(origin)}" for origin in load_provenance(folder)]
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
    return f"{_shape(rows)}\n\n{_by_arm(rows, CAPACITY)}"


def _b(rows: Rows) -> str:
    arms = by_arm(rows)
    lines = [[arm, *(shown.cell(of) for shown in MATRIX)] for arm, of in arms.items()]
    parts = [_shape(rows), markdown(["arm", *(shown.title for shown in MATRIX)], lines)]
    bests = _bests(rows)
    if BF16_NAME in bests and len(bests) > 1:
        parts.append(_comparison(arms, bests))
    parts.append(_by_arm([row for row in rows if row.arm in _named(bests)], CAPACITY))
    return "\n\n".join(parts)


def front(rows: Rows) -> str:
    """The best of BF16 by output beside the best of each codec in B, and the conditions."""
    arms, bests = by_arm([row for row in rows if row.experiment == "b"]), _bests(rows)
    plain = arms[bests[BF16_NAME][OUTPUT]]
    lines = []
    for best in bests.values():
        of = arms[best[OUTPUT]]
        over = [
            "1" if of is plain else spread(ratios(of, plain, shown.name), ".2f")
            for shown in RATIOS[:2]
        ]
        lines.append([best[OUTPUT], *(shown.cell(of) for shown in MATRIX), *over])
    head = ["best arm", *(shown.title for shown in MATRIX), "output, times", "mean TTFT, times"]
    return f"{markdown(head, lines)}\n\n{_shape(rows)}"


def _bests(rows: Rows) -> dict[str, dict[str, str]]:
    """By record format, the arm that is best by output and that with the least mean TTFT."""
    groups: dict[str, list[Measurement]] = {}
    for row in rows:
        if row.codec is not None:
            groups.setdefault(BF16_NAME if row.codec in BF16 else row.codec, []).append(row)
    return {
        name: {
            figure: found.arm
            for figure in (OUTPUT, TTFT)
            if (found := best_arm(of, figure)) is not None
        }
        for name, of in groups.items()
    }


def _named(bests: Mapping[str, Mapping[str, str]]) -> set[str]:
    return {arm for best in bests.values() for arm in best.values()}


def _by_arm(rows: Rows, figures: Sequence[Shown]) -> str:
    """One line for each figure, one column for each arm."""
    arms = by_arm(rows)
    lines = [[shown.title, *map(shown.cell, arms.values())] for shown in figures]
    return markdown(["", *arms], lines)


def _shape(rows: Rows) -> str:
    shape, pages = rows[0].workload, sorted({row.page_size for row in rows})
    repeats = len({row.repeat for row in rows})
    return (
        f"{shape.groups} groups x {shape.prompts} prompts, prefixes of {shape.prefix}, "
        f"questions of {shape.question}, answers of {shape.output} tokens, concurrency "
        f"{shape.concurrency}, L1 {rows[0].l1_tokens:,} tokens, page size "
        f"{', '.join(map(str, pages))}. Medians of {repeats} repeats, with the least and the most."
    )


def _comparison(arms: Mapping[str, Rows], bests: Mapping[str, Mapping[str, str]]) -> str:
    """Each codec's best over BF16's best, and each of its arms over BF16 run alike."""
    plain = {_server(of[0])[1:]: arm for arm, of in arms.items() if of[0].codec in BF16}
    pairs: dict[tuple[str, str], list[str]] = {}
    for name, best in bests.items():
        if name != BF16_NAME:
            for figure, why in ((OUTPUT, "best by output"), (TTFT, "best by TTFT")):
                pairs.setdefault((best[figure], bests[BF16_NAME][figure]), []).append(why)
    for arm, of in arms.items():
        if of[0].codec not in (*BF16, None) and (same := plain.get(_server(of[0])[1:])):
            pairs.setdefault((arm, same), []).append("same policy, layout, page")
    lines = [
        [arm, other, ", ".join(why)]
        + [spread(ratios(arms[arm], arms[other], shown.name), ".2f") for shown in RATIOS]
        for (arm, other), why in pairs.items()
    ]
    head = ["codec", "over", "why", *(shown.title for shown in RATIOS)]
    return f"Ratios within each repeat, median (least to most):\n\n{markdown(head, lines)}"


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
