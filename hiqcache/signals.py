"""SIGTERM and SIGHUP as an exception, so that a command cleans up as it does after Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

WORDS = {signal.SIGTERM: "ended by SIGTERM", signal.SIGHUP: "the terminal is gone (SIGHUP)"}


class Ended(KeyboardInterrupt):
    """The process was asked to end; `exit_code` is what a shell would report."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def raised() -> Iterator[None]:
    """Raise `Ended` in the main thread at the first of the signals; a second one kills.

    What is ignored, as SIGHUP under nohup, stays ignored.
    """
    before = {number: signal.getsignal(number) for number in WORDS}

    def end(number: int, frame: FrameType | None) -> None:
        for each in WORDS:
            signal.signal(each, signal.SIG_DFL)
        say(f"hiqcache: {WORDS[signal.Signals(number)]}")
        raise Ended(number)

    for number, handler in before.items():
        if handler == signal.SIG_DFL:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say(line: str) -> None:
    """Print a line on stderr; where nobody reads any more, print nothing from here on."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
