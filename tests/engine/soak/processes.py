"""What a server's processes hold and spend, read from /proc while it runs."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

SAMPLE_SECONDS = 2.0


def role(process: psutil.Process) -> str:
    """`scheduler`, `detokenizer` or the like from SGLang's process titles, else `launcher`."""
    title = " ".join(process.cmdline()[:1])
    _, marker, name = title.partition("sglang::")
    return name.strip() if marker else "launcher"


def tree(pid: int) -> list[psutil.Process]:
    """A server's first process and everything below it."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def cpu_seconds(pid: int) -> float:
    """Seconds of CPU that the living processes have spent."""
    total = 0.0
    for process in tree(pid):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


@dataclass(frozen=True)
class Sample:
    """Resident bytes by role at one moment, `minutes` after the sampler's start.

    `heap` is what the scheduler has allocated and not freed: the difference to its resident bytes
    is what glibc keeps for later.
    """

    minutes: float
    resident: dict[str, int]
    heap: int

    @property
    def total(self) -> int:
        return sum(self.resident.values())


class Sampler:
    """Takes a sample every `SAMPLE_SECONDS` in a thread, for as long as the block lasts."""

    def __init__(self, pid: int, report: Path) -> None:
        self._pid = pid
        self._report = report
        self._begin = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep_sampling, daemon=True)
        self.samples: list[Sample] = []

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _keep_sampling(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            resident: dict[str, int] = {}
            try:
                for process in tree(self._pid):
                    name = role(process)
                    resident[name] = resident.get(name, 0) + process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            heap: int = json.loads(self._report.read_text())["heap_bytes"]
            self.samples.append(Sample((time.monotonic() - self._begin) / 60, resident, heap))
