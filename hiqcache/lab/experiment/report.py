"""What a folder of results says, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from hiqcache.errors import UsageError
from hiqcache.lab.experiment.crossing import crossing_section
from hiqcache.lab.experiment.predict import predict_row
from hiqcache.lab.experiment.store import load_provenance, load_rows
from hiqcache.lab.experiment.table import Row, by_arm, markdown, spread, transposed

CAPACITY = [
    ("L2 capacity, tokens", spread("capacity_tokens", ",.0f")),
    ("host memory of L2, GB", spread("capacity_bytes", ".3f", 1e-9)),
    ("L2 used at the end, tokens", spread("l2_used_tokens", ",.0f")),
    ("bytes per token, backed up", spread("backup_bytes_per_token", ",.0f")),
    ("bytes per token, restored", spread("restore_bytes_per_token", ",.0f")),
    ("backed up, tokens", spread("backup_tokens", ",.0f")),
    ("backed up, GiB", spread("backup_bytes", ".2f", 2**-30)),
    ("restored, GiB", spread("restore_bytes", ".2f", 2**-30)),
    ("tokens from L1", spread("l1_hit_tokens", ",.0f")),
    ("tokens from L2", spread("l2_hit_tokens", ",.0f")),
    ("hit rate, %", spread("hit_rate", ".1f", 100)),
]
SPEED = [
    ("mean TTFT, ms", spread("ttft_mean_ms", ",.0f")),
    ("p99 TTFT, ms", spread("ttft_p99_ms", ",.0f")),
    ("mean TPOT, ms", spread("tpot_mean_ms", ".1f")),
    ("output, tokens/s", spread("output_tokens_per_s", ",.1f")),
]
BF16 = ("off", "bf16")


def report(folder: Path) -> str:
    """All tables of a folder.

    Raises
    ------
    UsageError
        The folder holds no results that may be used.
    """
    every = load_rows(folder, valid_only=False)
    rows = [row for row in every if row["valid"]]
    if not rows:
        raise UsageError(f"{folder} holds no usable results, {len(every)} unusable ones")
    parts = [_header(folder, every, rows)]
    for experiment, title, section in (
        ("a", "Experiment A: the same tokens in L2", _a),
        ("b", "Experiment B: the same host memory", _b),
        ("curve", "The curve", _curve),
        ("crossover", "Restoring beside recomputing", crossing_section),
    ):
        chosen = [row for row in rows if row["experiment"] == experiment]
        if chosen:
            parts.append(f"## {title}\n\n{section(with_b(rows, chosen, experiment))}")
    measured = [row for row in rows if row["experiment"] != "crossover"]
    if measured:
        parts.append(f"## Predicted by the simulator\n\n{_predictions(measured)}")
    return "\n\n".join(parts)


def with_b(rows: Sequence[Row], chosen: Sequence[Row], experiment: str) -> list[Row]:
    """The curve's arms have a point in B, too: same servers, same shape."""
    if experiment != "curve":
        return list(chosen)
    arms = {row["arm"] for row in chosen}
    shape = {key: value for key, value in chosen[0]["workload"].items() if key != "groups"}
    return list(chosen) + [
        row
        for row in rows
        if row["experiment"] == "b"
        and row["arm"] in arms
        and {key: value for key, value in row["workload"].items() if key != "groups"} == shape
    ]


def _header(folder: Path, every: Sequence[Row], rows: Sequence[Row]) -> str:
    lines = []
    for origin in load_provenance(folder):
        where = origin.get("gpu") or origin["device_name"]
        cuda = f", driver {origin['driver']}, CUDA {origin['cuda']}" if "driver" in origin else ""
        lines.append(
            f"- {origin['date']}: {where}{cuda}; SGLang {origin['sglang']}, torch "
            f"{origin['torch']}, HiQCache {origin['hiqcache']} at {origin['commit']}, image "
            f"{origin['image']}"
        )
    unusable = [row for row in every if not row["valid"]]
    notes = [f"{rows[0]['geometry']}, {len(rows)} runs, {len(unusable)} unusable."]
    if rows[0]["load_format"] == "dummy":
        notes.append("Random weights: tokens, bytes, hits and times are real, answers are noise.")
    if "off" not in {row["codec"] for row in rows} and "bf16" in {row["codec"] for row in rows}:
        notes.append(
            "Run on the CPU platform, BF16 through HiQCache's identity codec: counts hold, times "
            "say nothing about a GPU."
        )
    notes += [f"Unusable: {row['experiment']} {row['arm']}: {row['reason']}" for row in unusable]
    return "\n".join([*lines, "", *notes])


def _a(rows: Sequence[Row]) -> str:
    return f"{_shape(rows[0])}\n\n{transposed(rows, CAPACITY)}"


def _b(rows: Sequence[Row]) -> str:
    parts = [_shape(rows[0]), transposed(rows, [*CAPACITY, *SPEED])]
    if comparison := _comparison(rows):
        parts.append(comparison)
    return "\n\n".join(parts)


def _shape(row: Row) -> str:
    shape = row["workload"]
    return (
        f"{shape['groups']} groups x {shape['prompts']} prompts, prefixes of {shape['prefix']}, "
        f"questions of {shape['question']}, answers of {shape['output']} tokens, concurrency "
        f"{shape['concurrency']}, L1 {row['l1_tokens']:,} tokens, page size {row['page_size']}. "
        f"Medians over the repeats, with the least and the most."
    )


def _comparison(rows: Sequence[Row]) -> str | None:
    """Each codec over BF16 under its own policy, and over the best BF16: repeat by repeat."""
    arms = by_arm(rows)
    plain = {name: chosen for name, chosen in arms.items() if chosen[0]["codec"] in BF16}
    if not plain:
        return None
    best = max(plain, key=lambda n: median(row["output_tokens_per_s"] for row in plain[n]))
    lines = []
    for name, chosen in arms.items():
        if chosen[0]["codec"] in (*BF16, None):
            continue
        same = [n for n in plain if plain[n][0]["policy"] == chosen[0]["policy"]]
        for other in dict.fromkeys([*same, best]):
            cells = [
                _ratio(chosen, plain[other], key)
                for key in ("output_tokens_per_s", "ttft_mean_ms", "l2_hit_tokens")
            ]
            lines.append([name, f"{other}{' (best)' if other == best else ''}", *cells])
    head = ["codec", "over", "output", "mean TTFT", "tokens from L2"]
    return f"Ratios within each repeat, median (least to most):\n\n{markdown(head, lines)}"


def _ratio(rows: Sequence[Row], others: Sequence[Row], key: str) -> str:
    base = {row["repeat"]: row[key] for row in others}
    ratios = [{"ratio": row[key] / base[row["repeat"]]} for row in rows if base.get(row["repeat"])]
    return spread("ratio", ".2f")(ratios)


def _curve(rows: Sequence[Row]) -> str:
    groups = sorted({row["workload"]["groups"] for row in rows})
    arms = by_arm(rows)
    head = ["groups", "prefixes, tokens", *arms]
    parts = []
    for title, key, form, scale in (
        ("Hit rate, %", "hit_rate", ".1f", 100.0),
        ("Tokens from L2", "l2_hit_tokens", ",.0f", 1.0),
        ("Mean TTFT, ms", "ttft_mean_ms", ",.0f", 1.0),
        ("Output, tokens/s", "output_tokens_per_s", ",.1f", 1.0),
    ):
        lines = []
        for count in groups:
            point = [row for row in rows if row["workload"]["groups"] == count]
            cells = [
                spread(key, form, scale)([row for row in point if row["arm"] == arm])
                for arm in arms
            ]
            lines.append([str(count), f"{count * point[0]['workload']['prefix']:,}", *cells])
        parts.append(f"{title}\n\n{markdown(head, lines)}")
    return "\n\n".join([_knees(rows), *parts])


def _knees(rows: Sequence[Row]) -> str:
    """Where the tiers end, in groups of this workload."""
    shape = rows[0]["workload"]
    group = shape["prefix"] + shape["prompts"] * (shape["question"] + shape["output"])
    ends = [f"L1 holds {rows[0]['l1_tokens'] / group:.1f} groups"]
    ends += [
        f"the L2 of {arm} {chosen[0]['capacity_tokens'] / group:.1f}"
        for arm, chosen in by_arm(rows).items()
    ]
    return (
        f"A group is {group:,} tokens with its questions and answers. {', '.join(ends)}. To the "
        f"left of L1's end nothing is restored; between it and BF16's end all arms hold "
        f"everything; far to the right of the last end none holds enough."
    )


def _predictions(rows: Sequence[Row]) -> str:
    lines = []
    worst = 0.0
    for arm, chosen in by_arm(rows).items():
        gaps = []
        for row in chosen:
            found = predict_row(row)
            gaps.append(100 * (found.hit_rate - row["hit_rate"]))
        worst = max(worst, *map(abs, gaps))
        cells = [{"gap": gap} for gap in gaps]
        lines.append([arm, str(len(gaps)), spread("gap", "+.1f")(cells)])
    table = markdown(["arm", "runs", "predicted less measured hit rate, points"], lines)
    return f"{table}\n\nFurthest apart: {worst:.1f} points."
