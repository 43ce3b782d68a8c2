"""A server as a child that is never left behind, for `hiqcache serve`.

SGLang is several processes; a signal to one of them prints pages of tracebacks, ends with the code
of an out-of-memory kill, or leaves the others running. Here one process stands above them all:
it passes their output on, answers a signal with one line, ends whatever is left, and says a
refusal once more as the last line.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from hiqcache.lifeline import tied

REFUSAL_FILE = "_HIQCACHE_REFUSAL_FILE"
"""The variable with the path to which a process of the server writes its exit code and refusal."""

PR_SET_CHILD_SUBREAPER = 36
CHUNK = 65536
WORDS = {
    signal.SIGINT: "interrupted, the server is stopped",
    signal.SIGTERM: "SIGTERM, the server finishes what it has begun and is stopped",
    signal.SIGHUP: "the terminal is gone (SIGHUP), the server is stopped",
}
"""What is said to a signal. SGLang drains on SIGTERM alone."""


def write_refusal(exit_code: int, sentence: str) -> None:
    """Leave a refusal for the supervisor above this process, if there is one."""
    path = os.environ.get(REFUSAL_FILE)
    if path is None:
        return
    try:
        with open(path, "a") as file:
            file.write(f"{exit_code} {sentence}\n")
    except OSError:
        # The sentence is in the log; it only will not be its last line.
        return


def supervise(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a server until it ends or a signal ends it; its exit code, or 128 and the signal.

    A refusal's exit code is the refusal's own, whatever SGLang makes of it.
    """
    return _Supervisor().run(command, environment)


class _Supervisor:
    """One server's life."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._launcher: subprocess.Popen[bytes] | None = None
        self._code: int | None = None

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        if sys.platform == "linux":
            # What a dying launcher leaves becomes a child of this process, to be ended here.
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        for number in (*WORDS, signal.SIGCHLD):
            # A server under nohup outlives its terminal.
            if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGCHLD:
                signal.signal(number, self._signalled)
        signal.set_wakeup_fd(self._wake)
        with os.fdopen(os.memfd_create("refusal"), "r") as refusal:
            path = f"/proc/{os.getpid()}/fd/{refusal.fileno()}"
            self._launcher = subprocess.Popen(
                tied([*command]),
                env={"PYTHONUNBUFFERED": "1", **environment, REFUSAL_FILE: path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Ctrl-C is for this process, which knows what to do.
                start_new_session=True,
            )
            if self._first is not None:
                _kill_children()
            self._pass_on(self._launcher)
            return self._last_words(refusal.read())

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGCHLD:
            return
        again = self._first is not None
        if not again:
            self._first = number
            _say(WORDS[signal.Signals(number)])
        if self._launcher is None or self._code is not None:
            return
        if number == signal.SIGTERM and not again:
            self._launcher.send_signal(signal.SIGTERM)
        else:
            _kill_children()

    def _pass_on(self, launcher: subprocess.Popen[bytes]) -> None:
        """Pass the server's output on until the launcher has ended, then end what is left."""
        assert launcher.stdout is not None and launcher.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(launcher.stdout, selectors.EVENT_READ, sys.stdout)
            selector.register(launcher.stderr, selectors.EVENT_READ, sys.stderr)
            while len(selector.get_map()) > 1 or self._code is None:
                for key, _ in selector.select():
                    read = os.read(key.fd, CHUNK)
                    if key.fd == self._woken:
                        self._reap(launcher)
                    elif not read:
                        selector.unregister(key.fd)
                    elif self._first is None:
                        _write(key.data, read)

    def _reap(self, launcher: subprocess.Popen[bytes]) -> None:
        """Collect children that have ended; after the launcher nobody goes on."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == launcher.pid:
                self._code = launcher.returncode = os.waitstatus_to_exitcode(status)
            if self._code is not None:
                _kill_children()
            if not pid:
                return

    def _last_words(self, refusal: str) -> int:
        assert self._code is not None
        if self._first is not None:
            return 128 + self._first
        if refusal:
            code, _, sentence = refusal.splitlines()[0].partition(" ")
            _write(sys.stderr, f"{sentence}\n".encode())
            return int(code)
        return 128 - self._code if self._code < 0 else self._code


def _kill_children() -> None:
    """SIGKILL every child; theirs become ours as these end, and are ended in turn."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # Behind the name, which may hold anything: state and parent.
            parent = stat.read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                os.kill(int(stat.parent.name), signal.SIGKILL)
        except OSError:
            continue


def _say(words: str) -> None:
    _write(sys.stderr, f"hiqcache: {words}\n".encode())


def _write(stream: IO[str], data: bytes) -> None:
    """Write to a terminal, pipe or file that may be gone."""
    try:
        while data:
            data = data[os.write(stream.fileno(), data) :]
    except OSError:
        return
