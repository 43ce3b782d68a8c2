"""Figures of a quality run as pictures: KL beside the noise floor, and KL layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hiqcache.lab.present import Panel, Series, plot
from hiqcache.lab.quality.row import CODEC, CONTROL, NOISE, PART, REFERENCE

DECADES_FROM = 50
"""Values further apart than this do not share a linear axis."""

COLOURS = {
    CODEC: "#1b6ca8",
    PART: "#1b6ca8",
    REFERENCE: "#d1495b",
    NOISE: "#edae49",
    CONTROL: "#888888",
}
SIDE_COLOURS = {"k": "#1b6ca8", "v": "#d1495b"}


def plot_kl(path: Path, summary: Mapping[str, Any]) -> Path:
    """Mean KL of every comparison that has any, with its interval."""
    found = {
        name: (item["role"], item["figures"]["mean_kl"])
        for name, item in summary["comparisons"].items()
        if "mean_kl" in item["figures"] and item["figures"]["mean_kl"]["value"] > 0
    }
    series = [
        Series(
            name=name,
            x=[0],
            y=[kl["value"]],
            low=[kl["low"]],
            high=[kl["high"]],
            colour=COLOURS[role],
        )
        for name, (role, kl) in found.items()
    ]
    values = [kl["value"] for _, kl in found.values()]
    apart = bool(values) and max(values) > DECADES_FROM * min(values)
    title = "mean KL of next-token distributions, nats"
    return plot(path, [Panel(title=title, series=series, across="dots", log="x" if apart else "")])


def plot_profile(path: Path, summary: Mapping[str, Any]) -> Path:
    """Mean KL with one layer's K or V alone through the codec."""
    points = [entry for entry in summary["profile"] if entry["head"] is None]
    series = [
        Series(
            name=side.upper(),
            x=[entry["layer"] for entry in points if entry["side"] == side],
            y=[entry["mean_kl"]["value"] for entry in points if entry["side"] == side],
            colour=colour,
        )
        for side, colour in SIDE_COLOURS.items()
    ]
    title = f"mean KL, nats, with one layer alone through {summary['profile_codec']}"
    return plot(path, [Panel(title=title, series=series, x_label="layer")])
