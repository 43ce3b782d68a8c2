"""Where an experiment's results lie: appended to after every run, never overwritten.

`rows.jsonl` holds the figures of each run, `raw.jsonl` what SGLang's client returned for it, and
`provenance.jsonl` one line an invocation. A run that may not be used stays, with `valid: false`
and the reason.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hiqcache.errors import UsageError

RESULTS = Path("results/experiments")
Row = dict[str, Any]
Key = tuple[str, str, int, int, int]


def run_key(row: Row) -> Key:
    """What makes two rows the same measurement: experiment, arm, groups, prefix, repeat."""
    shape = row["workload"]
    return row["experiment"], row["arm"], shape["groups"], shape["prefix"], row["repeat"]


class Store:
    """A folder of results.

    Parameters
    ----------
    folder
        Made when it is not there.
    resume
        Whether the folder may hold results already; new ones are appended.

    Raises
    ------
    UsageError
        The folder has results and `resume` is not set, or has none and it is.
    """

    def __init__(self, folder: Path, *, resume: bool) -> None:
        self.folder = folder
        there = (folder / "rows.jsonl").exists() or (folder / "provenance.jsonl").exists()
        if there and not resume:
            raise UsageError(
                f"{folder} already holds results, which are never overwritten: name another "
                f"folder, or add to it with --resume {folder}"
            )
        if resume and not there:
            raise UsageError(f"--resume {folder}: there are no results to add to")
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, row: Row, raw: Row | None) -> None:
        """Append one run's figures and its raw result, tied by `run`."""
        run = sum(1 for _ in load_rows(self.folder, valid_only=False))
        _append(self.folder / "rows.jsonl", {"run": run} | row)
        if raw is not None:
            _append(self.folder / "raw.jsonl", {"run": run} | raw)

    def add_provenance(self, origin: Row) -> None:
        _append(self.folder / "provenance.jsonl", origin)

    def done(self) -> set[Key]:
        """Keys of the valid runs that are there."""
        return {run_key(row) for row in load_rows(self.folder)}


def load_rows(folder: Path, *, valid_only: bool = True) -> list[Row]:
    """The rows of a results folder, in the order in which they were run."""
    rows = _load(folder / "rows.jsonl")
    return [row for row in rows if row["valid"]] if valid_only else rows


def load_provenance(folder: Path) -> list[Row]:
    """One entry an invocation."""
    return _load(folder / "provenance.jsonl")


def new_folder(label: str, root: Path = RESULTS) -> Path:
    """A name nobody has used: date, time and label."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return root / f"{stamp}-{label}"


def _append(path: Path, entry: Row) -> None:
    with path.open("a", encoding="utf-8") as out:
        out.write(json.dumps(entry, separators=(",", ":")) + "\n")


def _load(path: Path) -> list[Row]:
    if not path.exists():
        return []
    entries = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            entries.append(json.loads(line))
        except ValueError:
            raise UsageError(f"{path} line {number} is not JSON; was it cut off?") from None
    return entries
