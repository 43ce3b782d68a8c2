"""Transfer results as a picture: tokens/ms over tokens, one panel a direction. Plain SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log2
from typing import Any

WIDTH, HEIGHT, LEFT, TOP, GAP = 460, 300, 60, 50, 90
COLOURS = ("#1b6ca8", "#d1495b", "#66a182", "#8d6cab", "#edae49", "#555555", "#00798c")

Points = list[tuple[int, float]]


def transfer_plot(rows: Sequence[dict[str, Any]], layout: str, page_size: int) -> str:
    """An SVG document of the rows with this layout and page size.

    Parameters
    ----------
    rows
        What `run_transfer_bench` gave.
    """
    chosen = [
        row for row in rows if row.get("layout") == layout and row.get("page_size") == page_size
    ]
    names = list(dict.fromkeys(map(_name, chosen)))
    tokens = sorted({row["tokens"] for row in chosen})
    top = max((row["tokens_per_ms"] for row in chosen), default=1.0) * 1.05
    height = TOP + HEIGHT + 50 + 18 * len(names)
    gpu = chosen[0]["gpu"] if chosen else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * (LEFT + WIDTH) + GAP}" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{escape(gpu)}: {escape(layout)}, '
        f"page {page_size}, random pages; all layers, K and V</text>",
    ]
    for panel, direction in enumerate(("restore", "backup")):
        left = LEFT + panel * (WIDTH + GAP)
        parts += _axes(left, direction, tokens, top)
        for name, colour in zip(names, COLOURS * len(names), strict=False):
            points = [
                (row["tokens"], row["tokens_per_ms"])
                for row in chosen
                if _name(row) == name and row["direction"] == direction
            ]
            parts.append(_line(left, sorted(points), tokens, top, colour))
    for index, (name, colour) in enumerate(zip(names, COLOURS * len(names), strict=False)):
        y = TOP + HEIGHT + 50 + 18 * index
        parts.append(f'<rect x="{LEFT}" y="{y - 9}" width="14" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 20}" y="{y - 3}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _name(row: dict[str, Any]) -> str:
    return f"{row['transfer']}, {row['codec']}"


def _x(left: int, tokens: int, every: Sequence[int]) -> float:
    low, high = log2(every[0]), log2(every[-1])
    return left + WIDTH * (log2(tokens) - low) / (high - low or 1)


def _y(value: float, top: float) -> float:
    return TOP + HEIGHT * (1 - value / top)


def _axes(left: int, direction: str, tokens: Sequence[int], top: float) -> list[str]:
    parts = [
        f'<text x="{left}" y="{TOP - 10}">{direction}, tokens/ms</text>',
        f'<path d="M{left} {TOP}V{TOP + HEIGHT}H{left + WIDTH}" stroke="black" fill="none"/>',
    ]
    for step in range(5):
        value = top * step / 4
        y = _y(value, top)
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.0f}</text>')
        parts.append(f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="#ddd"/>')
    for count in tokens:
        x = _x(left, count, tokens)
        parts.append(
            f'<text x="{x:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{count}</text>'
        )
    return parts


def _line(left: int, points: Points, tokens: Sequence[int], top: float, colour: str) -> str:
    path = " ".join(
        f"{_x(left, count, tokens):.1f},{_y(value, top):.1f}" for count, value in points
    )
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
