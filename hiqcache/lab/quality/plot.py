"""Figures as pictures: KL beside the noise floor, and KL layer by layer. Plain SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from math import ceil, floor, log10
from typing import Any

WIDTH, LABELS, BAR, TOP = 560, 250, 26, 40
HEIGHT, LEFT = 260, 70
LINEAR_SPAN = 50
COLOURS = {"codec": "#1b6ca8", "noise": "#edae49", "control": "#888888"}
SIDE_COLOURS = {"k": "#1b6ca8", "v": "#d1495b"}


def kl_plot(summary: Mapping[str, Any]) -> str:
    """Mean KL of every comparison with its interval.

    The axis begins at 0 unless the values are too far apart to share one; then it has decades.
    """
    served = summary["kind"] == "served"
    items = [
        (name, item["role"], item["figures"]["mean_kl"])
        for name, item in summary["comparisons" if served else "variants"].items()
        if "mean_kl" in item["figures"] and item["figures"]["mean_kl"]["value"] > 0
    ]
    place, ticks = _axis([figure[key] for _, _, figure in items for key in ("value", "high")])
    height = TOP + BAR * len(items) + 40
    parts = _open(LABELS + WIDTH + 40, height, "mean KL of next-token distributions, nats")
    for tick in ticks:
        x = place(tick)
        parts.append(f'<path d="M{x:.1f} {TOP}V{height - 30}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 12}" text-anchor="middle">{tick:.3g}</text>')
    for index, (name, role, figure) in enumerate(items):
        y = TOP + BAR * index + BAR / 2
        start, middle, end = (place(figure[key]) for key in ("low", "value", "high"))
        parts.append(
            f'<text x="{LABELS - 8}" y="{y + 4}" text-anchor="end">{escape(name)}</text>'
            f'<path d="M{start:.1f} {y}H{end:.1f}" stroke="{COLOURS[role]}" stroke-width="4"/>'
            f'<circle cx="{middle:.1f}" cy="{y}" r="6" fill="{COLOURS[role]}"/>'
        )
    return "\n".join([*parts, "</svg>\n"])


def profile_plot(summary: Mapping[str, Any]) -> str:
    """Mean KL with one layer's K or V alone through the codec, layer by layer."""
    points = [entry for entry in summary["profile"] if entry["head"] is None]
    layers = 1 + max(entry["layer"] for entry in points)
    top = max(entry["mean_kl"]["value"] for entry in points) * 1.05 or 1.0
    title = f"mean KL, nats, with one layer alone through {summary['profile_codec']}"
    parts = _open(LEFT + WIDTH + 40, TOP + HEIGHT + 50, title)
    parts.append(
        f'<path d="M{LEFT} {TOP}V{TOP + HEIGHT}H{LEFT + WIDTH}" stroke="black" fill="none"/>'
    )
    for step in range(5):
        y = TOP + HEIGHT * (1 - step / 4)
        parts.append(f'<path d="M{LEFT} {y:.1f}h{WIDTH}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * step / 4:.1e}</text>'
        )
    for layer in range(0, layers, 5):
        x = LEFT + WIDTH * layer / max(layers - 1, 1)
        parts.append(
            f'<text x="{x:.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{layer}</text>'
        )
    parts.append(f'<text x="{LEFT + WIDTH}" y="{TOP + HEIGHT + 40}" text-anchor="end">layer</text>')
    for index, (side, colour) in enumerate(SIDE_COLOURS.items()):
        path = " ".join(
            f"{LEFT + WIDTH * entry['layer'] / max(layers - 1, 1):.1f},"
            f"{TOP + HEIGHT * (1 - entry['mean_kl']['value'] / top):.1f}"
            for entry in points
            if entry["side"] == side
        )
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(
            f'<text x="{LEFT + 60 * index}" y="{TOP + HEIGHT + 40}" fill="{colour}">'
            f"{side.upper()}</text>"
        )
    return "\n".join([*parts, "</svg>\n"])


def _open(width: int, height: int, title: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="20" font-size="14">{escape(title)}</text>',
    ]


def _axis(values: list[float]) -> tuple[Callable[[float], float], list[float]]:
    """Where a value stands, and what is written below the axis."""
    most, least = max(values, default=1.0), min(values, default=1.0)
    if most < LINEAR_SPAN * least:
        top = most * 1.05
        return lambda value: LABELS + WIDTH * value / top, [top * step / 4 for step in range(5)]
    low, high = floor(log10(least)), ceil(log10(most))

    def place(value: float) -> float:
        return LABELS + WIDTH * (log10(max(value, 10.0**low)) - low) / (high - low)

    return place, [10.0**exponent for exponent in range(low, high + 1)]
