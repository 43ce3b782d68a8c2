"""The ladder in one table and one plot, from the twins of several models: docs/codecs.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hiqcache.capacity import bytes_per_token
from hiqcache.codec.catalog import BASELINE, CATALOG
from hiqcache.geometry import Geometry
from hiqcache.lab.present import Panel, Series, markdown, plot
from hiqcache.lab.quality.bias import PAIRS, TOKENS, Biased
from hiqcache.lab.quality.row import CODEC, REFERENCE
from hiqcache.lab.quality.verdict import short

EIGHT_HEADS = Geometry("8 heads of 128", 1, 8, 128, 128, None, ())
SHOWN = (0.0, 100.0, 300.0)
REFERENCE_BYTES = {"fp8 e4m3, no scales": 2048, "NVFP4": 2 * (512 + 64)}
"""Of K and V of 8 heads of 128: one byte per value, and half a byte with one more for each 16."""

Summary = Mapping[str, Any]


def size(name: str) -> int:
    """Bytes of K and V of one layer of 8 heads of 128."""
    return REFERENCE_BYTES.get(name) or bytes_per_token(EIGHT_HEADS, name)


def ladder_table(summaries: Sequence[Summary]) -> str:
    """A line for each codec and reference: bytes, tokens, and every model's divergence."""
    names = dict.fromkeys(
        name
        for summary in summaries
        for name, item in summary["comparisons"].items()
        if item["role"] == REFERENCE or (item["role"] == CODEC and name in CATALOG)
    )
    head = ["", "bytes of K and V", "tokens over BF16"]
    for summary in summaries:
        head += [f"{summary['model']}: KL, nats", "top-1 the same"]
    rows = []
    for name in sorted(names, key=size, reverse=True):
        cells = [f"`{name}`" if name in CATALOG else name, f"{size(name):,}"]
        cells.append(f"{size(BASELINE) / size(name):.2f}")
        for summary in summaries:
            found = summary["comparisons"].get(name, {}).get("figures")
            if found is None:
                cells += ["-", "-"]
                continue
            kl = found["mean_kl"]
            ends = f" ({short(kl['low'])} to {short(kl['high'])})" if kl["value"] else ""
            cells += [f"{short(kl['value'])}{ends}", f"{found['top1_agreement']['value']:.2%}"]
        rows.append(cells)
    made = "; ".join(
        f"{summary['model']}: {summary['prompts']['count']} prompts, "
        f"{summary['provenance']['device_name']}, commit {summary['provenance']['commit'][:12]}"
        for summary in summaries
    )
    return f"{markdown(head, rows)}\n\nIn brackets: intervals of 95 %. {made}."


def plot_ladder(path: Path, summaries: Sequence[Summary]) -> Path:
    """Divergence over bytes, a panel for each model."""
    panels = []
    for summary in summaries:
        points = [
            (name, item["role"], item["figures"]["mean_kl"])
            for name, item in summary["comparisons"].items()
            if item["role"] in (CODEC, REFERENCE) and item["figures"]["mean_kl"]["value"] > 0
        ]
        series = [
            Series(
                name=name,
                x=[size(name)],
                y=[kl["value"]],
                low=[kl["low"]],
                high=[kl["high"]],
                style="o" if role == CODEC else "D",
            )
            for name, role, kl in points
        ]
        panels.append(
            Panel(
                title=f"{summary['model']}, {summary['prompts']['count']} prompts",
                series=series,
                x_label="bytes of K and V, 8 heads of 128 (BF16: 4,096)",
                y_label="mean KL, nats",
                log="y",
            )
        )
    return plot(path, panels, "How far a restore is from BF16, over its bytes")


def bias_table(rows: Sequence[Biased]) -> str:
    """A line for each codec: divergence of attention for every bias of K."""
    cells: dict[str, list[str]] = {}
    columns = [(pairs, sigma) for pairs in PAIRS for sigma in SHOWN if sigma or pairs == "slow"]
    for row in rows:
        if (row.pairs, row.sigma) in columns:
            text = short(row.divergence)
            if row.inexact_rows:
                text += f" ({row.inexact_rows} of {TOKENS} rows bounded)"
            cells.setdefault(row.codec, []).append(text)
    head = ["codec", "no bias"]
    head += [f"{sigma:.0f} sigma, {pairs}" for pairs, sigma in columns if sigma]
    return markdown(head, [[f"`{codec}`", *line] for codec, line in cells.items()])
