"""Whether processes of other sessions and groups have ended, for tests of how things end."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

PATIENCE_SECONDS = 60


def gone(pid: int) -> bool:
    """Whether nothing runs under this id; a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_gone(pids: Iterable[int]) -> None:
    pids = list(pids)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := [pid for pid in pids if not gone(pid)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.05)


def descendants(pid: int) -> set[int]:
    """Every process below this one."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, left = set(), [pid]
    while left:
        below = children.get(left.pop(), [])
        found.update(below)
        left += below
    return found
