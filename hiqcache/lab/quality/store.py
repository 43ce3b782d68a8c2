"""Result folders: rows as JSON lines, one summary, nothing overwritten."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hiqcache.errors import UsageError

SUMMARY, INVALID = "summary.json", "invalid.json"


def new_folder(path: Path) -> Path:
    """Make a result folder.

    Raises
    ------
    UsageError
        It is there and not empty.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"--out {path} is not empty: results are never overwritten, name another")
    path.mkdir(parents=True, exist_ok=True)
    return path


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """One JSON object a line."""
    with path.open("w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """What `write_rows` wrote.

    Raises
    ------
    UsageError
        The file is missing or damaged.
    """
    try:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as result rows: {error}") from error


def write_summary(path: Path, summary: dict[str, Any]) -> None:
    """Indented JSON, numbers to seven digits."""
    path.write_text(json.dumps(_short(summary), indent=1, ensure_ascii=False) + "\n", "utf-8")


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a result folder.

    Raises
    ------
    UsageError
        There is none, or the run is marked invalid.
    """
    if (folder / INVALID).exists():
        reason = json.loads((folder / INVALID).read_text("utf-8"))["reason"]
        raise UsageError(f"{folder} holds an invalid run, which has no figures: {reason}")
    try:
        summary: dict[str, Any] = json.loads((folder / SUMMARY).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} holds no quality results: {error}") from error
    return summary


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_short(item) for item in value]
    return value
