"""Show what is running and for how long, on a terminal or in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

TICK_SECONDS = 0.5
LOG_SECONDS = 20


class Stage:
    """A named stage with a running clock; `note` says how far it is."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self.name = name
        self.stream = stream
        self.detail = ""
        self._begin = time.monotonic()
        self._done = threading.Event()

    def note(self, detail: str) -> None:
        self.detail = detail

    def elapsed(self) -> float:
        return time.monotonic() - self._begin

    def line(self) -> str:
        return f"[{self.elapsed():5.0f} s] {self.name}{f': {self.detail}' if self.detail else ''}"

    def run_clock(self) -> None:
        """Redraw the line on a terminal; in a log, print it now and then."""
        terminal = self.stream.isatty()
        while not self._done.wait(TICK_SECONDS if terminal else LOG_SECONDS):
            if terminal:
                self.stream.write(f"\r\033[K{self.line()}")
            else:
                self.stream.write(f"{self.line()} ...\n")
            self.stream.flush()

    def finish(self) -> None:
        self._done.set()


@contextmanager
def stage(name: str, stream: TextIO | None = None) -> Iterator[Stage]:
    """Run a block under a clock; its last line stays, with the seconds it took."""
    stream = stream or sys.stderr
    current = Stage(name, stream)
    clock = threading.Thread(target=current.run_clock, daemon=True)
    clock.start()
    failed = True
    try:
        yield current
        failed = False
    finally:
        current.finish()
        clock.join()
        start = "\r\033[K" if stream.isatty() else ""
        stream.write(f"{start}{current.line()}{' FAILED' if failed else ''}\n")
        stream.flush()
