"""What a panel is: a question with its query, how to read the answer and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["stat", "lines", "stack", "table"]

# Grafana renders these as "12.3 ktok" and "82944 B": a token count may be shortened, the bytes of
# one token may not, because the exact figure is the point.
TOKENS = "si:tok"
TOKENS_PER_SECOND = "si:tok/s"
BYTES_PER_TOKEN = "suffix: B"
BYTES = "decbytes"
BYTES_PER_SECOND = "Bps"
SECONDS = "s"
SHARE = "percentunit"
COUNT = "short"
PLAIN = "none"


@dataclass(frozen=True)
class Query:
    """One PromQL expression and the name of its series."""

    expr: str
    legend: str = "{{variant}}"


@dataclass(frozen=True)
class Step:
    """From `value` on the figure has this colour; None is the lowest step."""

    value: float | None
    color: str


@dataclass(frozen=True)
class Panel:
    """One panel of a board.

    `reading` and `action` end up both in Grafana, as the panel's description, and in
    docs/dashboard.md.
    """

    title: str
    kind: Kind
    unit: str
    queries: tuple[Query, ...]
    reading: str
    action: str
    width: int = 12
    height: int = 8
    no_value: str = "no data"
    decimals: int | None = None
    minimum: float | None = 0
    maximum: float | None = None
    steps: tuple[Step, ...] = ()
    words: tuple[tuple[str, str, str], ...] = ()
    """What to show instead of a value: (value, text, colour)."""
    repeat: bool = False
    """Draw one panel a variant, side by side."""

    @property
    def description(self) -> str:
        return f"{self.reading}\n\n**What to do:** {self.action}"


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Board:
    """A dashboard. `uid` names it in links and is the name of its JSON file."""

    uid: str
    title: str
    purpose: str
    rows: tuple[Row, ...]
    other: str
    """The uid of the board that this one links to."""
