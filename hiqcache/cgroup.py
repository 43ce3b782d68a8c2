"""The memory limit that this process's control groups set, versions 1 and 2.

A limit of any group above the process's own holds too, so the tightest one counts. Inside a
container the mounted hierarchy usually begins at the container's own group, while
`/proc/self/cgroup` may still name it as the host does; then the mount itself is the group.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as a number of pages near 2^63 bytes."""


@dataclass(frozen=True)
class _Version:
    """How one version of the interface names its files."""

    mounts: tuple[str, ...]
    limits: tuple[str, ...]
    usage: str
    file_pages: tuple[str, ...]


# memory.high does not kill, but throttles a process to a halt; SGLang counts it as a limit too.
_V2 = _Version(
    ("sys/fs/cgroup", "sys/fs/cgroup/unified"),
    ("memory.max", "memory.high"),
    "memory.current",
    ("active_file", "inactive_file"),
)
# Version 1's counters without the prefix leave out the groups below, which its usage counts.
_V1 = _Version(
    ("sys/fs/cgroup/memory",),
    ("memory.limit_in_bytes",),
    "memory.usage_in_bytes",
    ("total_active_file", "total_inactive_file"),
)


def memory_limit(root: Path = Path("/")) -> int | None:
    """The tightest memory limit over this process, in bytes; None if there is none.

    Parameters
    ----------
    root
        The folder that holds `proc` and `sys`.
    """
    return _tightest(_groups(root))


def memory_in_use(root: Path = Path("/")) -> int | None:
    """Bytes in use in the group with the tightest limit, without a limit in the process's own.

    File pages are left out: the kernel drops them before it kills anything. None where no
    memory group can be read.
    """
    groups = _groups(root)
    tightest = _tightest(groups)
    return next((used for limit, used in groups if limit == tightest or tightest is None), None)


def memory_headroom(root: Path = Path("/")) -> int | None:
    """Bytes that may still be taken before any limit is reached; None without a limit."""
    rooms = [max(0, limit - used) for limit, used in _groups(root) if limit is not None]
    return min(rooms, default=None)


def _tightest(groups: list[tuple[int | None, int]]) -> int | None:
    return min((limit for limit, _ in groups if limit is not None), default=None)


def _groups(root: Path) -> list[tuple[int | None, int]]:
    """Limit and use of each group from the process's own up to the mount."""
    found: list[tuple[int | None, int]] = []
    for version, membership in _memberships(root):
        for mount in (root / name for name in version.mounts):
            own = mount / membership.lstrip("/")
            group = own if own.is_dir() else mount
            while group.is_relative_to(mount):
                if (used := _used(group, version)) is not None:
                    found.append((_limit(group, version), used))
                group = group.parent
    return found


def _memberships(root: Path) -> list[tuple[_Version, str]]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found.append((_V2, path))
        elif "memory" in controllers.split(","):
            found.append((_V1, path))
    return found


def _limit(group: Path, version: _Version) -> int | None:
    limits = (_number(group / name) for name in version.limits)
    return min((n for n in limits if n is not None and n < UNLIMITED), default=None)


def _used(group: Path, version: _Version) -> int | None:
    used = _number(group / version.usage)
    if used is None:
        return None
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return used
    pages = (line.split() for line in lines)
    return max(0, used - sum(int(value) for name, value in pages if name in version.file_pages))


def _number(file: Path) -> int | None:
    """The number in a file; None for "max", a missing file or one that holds no number."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
