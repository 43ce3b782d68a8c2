"""Seconds that copies take on their device, learnt without waiting for it."""

from __future__ import annotations

import time
from collections import deque

import torch


class Stopwatch:
    """Times one direction's copies: by events on a GPU's current stream, by the clock on a CPU.

    A CPU has done the work when the call returns. A GPU has not, so a copy's time is there only
    once it is finished: `finished_seconds` gives what has become known since it was last asked.
    """

    def __init__(self, device: torch.device) -> None:
        self._gpu = device.type == "cuda"
        self._seconds = 0.0
        self._began = 0.0
        self._start: torch.cuda.Event | None = None
        self._running: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._spare: list[torch.cuda.Event] = []

    def start(self) -> None:
        if not self._gpu:
            self._began = time.perf_counter()
            return
        self._start = self._start or self._event()
        self._start.record()

    def stop(self) -> None:
        if not self._gpu:
            self._seconds += time.perf_counter() - self._began
        elif self._start is not None:
            end = self._event()
            end.record()
            self._running.append((self._start, end))
            self._start = None

    def finished_seconds(self) -> float:
        """Seconds of the copies that have finished since the last call."""
        while self._running and self._running[0][1].query():  # type: ignore[no-untyped-call]
            start, end = self._running.popleft()
            self._seconds += start.elapsed_time(end) / 1000
            self._spare += (start, end)
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _event(self) -> torch.cuda.Event:
        # Used again: making an event costs more than recording one.
        if self._spare:
            return self._spare.pop()
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
