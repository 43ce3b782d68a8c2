"""Figures over repeats: medians with their spread, as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

Row = dict[str, Any]
Cell = Callable[[Sequence[Row]], str]


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column to the left, figures to the right."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))


def spread(key: str, form: str, scale: float = 1.0) -> Cell:
    """The median of a figure, with the least and the most where there are several.

    `form` is a format such as `,.0f`.
    """

    def cell(rows: Sequence[Row]) -> str:
        values = [scale * row[key] for row in rows if row.get(key) is not None]
        if not values:
            return "-"
        middle = format(median(values), form)
        ends = format(min(values), form), format(max(values), form)
        return middle if ends[0] == ends[1] else f"{middle} ({ends[0]} to {ends[1]})"

    return cell


def by_arm(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of each arm, in the order in which the arms first ran."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["arm"], []).append(row)
    return groups


def transposed(rows: Sequence[Row], figures: Sequence[tuple[str, Cell]]) -> str:
    """A figure a line, an arm a column."""
    arms = by_arm(rows)
    return markdown(
        ["", *arms], [[name, *(cell(chosen) for chosen in arms.values())] for name, cell in figures]
    )
