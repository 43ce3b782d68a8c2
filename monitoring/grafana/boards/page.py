"""Turns the boards into docs/dashboard.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from boards.panel import Board, Panel

INTRODUCTION = Path(__file__).with_name("introduction.md")


def page_of(boards: Sequence[Board]) -> str:
    """The whole page; ends with a newline."""
    parts = [INTRODUCTION.read_text(encoding="utf-8")]
    for board in boards:
        parts.append(f"## {board.title}\n\n{board.purpose} `/d/{board.uid}`\n")
        for row in board.rows:
            parts.append(f"### {row.title}\n")
            parts.extend(_section(panel) for panel in row.panels)
    return "\n".join(parts)


def _section(panel: Panel) -> str:
    queries = "\n".join(query.expr for query in panel.queries)
    return (
        f"#### {panel.title}\n\n"
        f"```promql\n{queries}\n```\n\n"
        f"- **How to read it.** {panel.reading}\n"
        f"- **What to do.** {panel.action}\n"
    )
