"""The engine's memory against what kills it, on SGLang's own `/metrics`.

Only the scheduler runs HiQCache's code, so the figures are brought up to date when it copies
something to or from L2, at most once a second: that is when they can change.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import psutil  # type: ignore[import-untyped]  # comes with SGLang

from hiqcache.cgroup import memory_in_use, memory_limit
from hiqcache.engine import families

REFRESH_SECONDS = 1.0


class MemoryMetrics:
    """Memory in use and its limit: the control group's, or the machine's where none limits it.

    Parameters
    ----------
    labels
        The rank's.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._used = families.gauge(
            "hiqcache_engine_memory_bytes",
            "Memory in use where the engine runs, without the files that the kernel can drop",
            labels,
        )
        self._limit = families.gauge(
            "hiqcache_engine_memory_limit_bytes",
            "The limit at which the kernel kills: the container's, else the machine's memory",
            labels,
        )
        self._due = 0.0
        self.refresh()

    def refresh(self) -> None:
        """Read again, unless it was done within the last second."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + REFRESH_SECONDS
        machine = psutil.virtual_memory()
        limit, used = memory_limit(), memory_in_use()
        if limit is None or used is None:
            limit, used = machine.total, machine.total - machine.available
        self._limit.set(limit)
        self._used.set(used)
