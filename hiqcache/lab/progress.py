"""Show what is running and for how long, on a terminal or in a log: every command that waits."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

TICK_SECONDS = 0.5
LOG_SECONDS = 20


class Clock:
    """What is running, with the seconds it has taken; `note` says how far it is."""

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

    def run(self) -> None:
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
def progress(name: str, stream: TextIO | None = None) -> Iterator[Clock]:
    """Run a block under a clock; its last line stays, with the seconds it took."""
    stream = stream or sys.stderr
    current = Clock(name, stream)
    redraw = threading.Thread(target=current.run, daemon=True)
    redraw.start()
    ending = " FAILED"
    try:
        yield current
        ending = ""
    except KeyboardInterrupt:
        ending = " (interrupted)"
        raise
    finally:
        current.finish()
        redraw.join()
        start = "\r\033[K" if stream.isatty() else ""
        stream.write(f"{start}{current.line()}{ending}\n")
        stream.flush()
