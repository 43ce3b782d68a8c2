"""Result rows and where they lie: frozen records, one line of JSON each, never overwritten.

Experiments, quality runs and benchmarks keep what they measure, and its provenance, through here.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from hiqcache.errors import UsageError
from hiqcache.provenance import cpu_model, provenance

RESULTS = Path("results/experiments")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of results; subclasses name its fields.

    In a file a row is flat: the fields of a row within it stand beside its own, and what is None
    is left out.
    """

    def entry(self) -> dict[str, Any]:
        """The row as it stands in a file."""
        found: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Row):
                found |= value.entry()
            elif is_dataclass(value) and not isinstance(value, type):
                found[field.name] = asdict(value)
            elif value is not None:
                found[field.name] = value
        return found

    @classmethod
    def parse(cls, entry: Mapping[str, Any]) -> Self:
        """A row from its line; fields that it does not know are those of another kind."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in entry.items() if name in names})


class Store:
    """A folder of results, each file of which is added to line by line.

    Parameters
    ----------
    folder
        Made when it is not there.
    resume
        Whether the folder may hold results already.

    Raises
    ------
    UsageError
        The folder has results and `resume` is not set, or has none and it is.
    """

    def __init__(self, folder: Path, *, resume: bool = False) -> None:
        self.folder = folder
        there = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        if there and not resume:
            raise UsageError(f"{folder} holds results, which are never overwritten: name another")
        if resume and not there:
            raise UsageError(f"--resume {folder}: there are no results to add to")
        folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def new(cls, label: str) -> Store:
        """Under a name that nobody has used: date, time and label."""
        return cls(RESULTS / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{label}")

    def add(self, name: str, *entries: Row | Mapping[str, Any]) -> None:
        """Append lines to `<name>.jsonl`."""
        append(self.folder / f"{name}.jsonl", entries)

    def read(self, name: str) -> list[dict[str, Any]]:
        """The lines of `<name>.jsonl`."""
        return read(self.folder / f"{name}.jsonl")

    def write(self, name: str, document: Mapping[str, Any]) -> Path:
        """Write `<name>.json`, its numbers to seven digits."""
        path = self.folder / f"{name}.json"
        text = json.dumps(_short(document), indent=1, ensure_ascii=False)
        path.write_text(text + "\n", "utf-8")
        return path


def append(path: Path, entries: Iterable[Row | Mapping[str, Any]]) -> None:
    """Append lines to a file, which is on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as out:
        for entry in entries:
            line = entry.entry() if isinstance(entry, Row) else entry
            out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of results; none where there is no file.

    Raises
    ------
    UsageError
        A line is not JSON.
    """
    if not path.exists():
        return []
    entries = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            entries.append(json.loads(line))
        except ValueError:
            raise UsageError(f"{path} line {number} is not JSON; was it cut off?") from None
    return entries


def origin(given_commit: str | None = None) -> dict[str, Any]:
    """What every result carries: machine, versions, commit and date.

    Parameters
    ----------
    given_commit
        Where the code runs from no checkout; a checkout speaks for itself.
    """
    import torch

    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        found: dict[str, Any] = provenance("cuda", name) | {
            "gpu": name,
            "capability": ".".join(map(str, torch.cuda.get_device_capability())),
            "driver": _driver(),
            "cuda": torch.version.cuda,
        }
    else:
        found = dict(provenance("cpu", cpu_model()))
    if given_commit and found["commit"] == "unknown":
        found |= {"commit": given_commit, "commit_given": True}
    return found


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.splitlines()[0].strip()


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, Mapping):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_short(item) for item in value]
    return value
