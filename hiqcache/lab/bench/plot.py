"""Transfer results as a picture, for `bench transfer --plot`: tokens/ms over tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hiqcache.lab.present import Panel, Series, plot


def transfer_plot(path: Path, rows: Sequence[dict[str, Any]], layout: str, page_size: int) -> Path:
    """Draw the rows with this layout and page size, one panel for each direction.

    Parameters
    ----------
    rows
        What `run_transfer_bench` gave.
    """
    chosen = [
        row for row in rows if row.get("layout") == layout and row.get("page_size") == page_size
    ]
    names = dict.fromkeys(map(_name, chosen))
    panels = []
    for direction in ("restore", "backup"):
        series = []
        for name in names:
            points = sorted(
                (row["tokens"], row["tokens_per_ms"])
                for row in chosen
                if _name(row) == name and row["direction"] == direction
            )
            x, y = zip(*points, strict=True) if points else ((), ())
            series.append(Series(name=name, x=x, y=y))
        panels.append(
            Panel(title=f"{direction}, tokens/ms", series=series, x_label="tokens", log="x")
        )
    gpu = f"{chosen[0]['gpu']}: " if chosen else ""
    return plot(path, panels, f"{gpu}{layout}, page {page_size}, random pages; all layers, K and V")


def _name(row: dict[str, Any]) -> str:
    return f"{row['transfer']}, {row['codec']}"
