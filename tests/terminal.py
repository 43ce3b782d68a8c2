"""A command in a terminal of its own, and the ways that people end it; used by first_hour.sh.

    python tests/terminal.py SCRIPT MARK HOW

runs the shell script SCRIPT in a new terminal until a line of its output holds MARK, then ends it:
`ctrl-c` types it, `close` closes the terminal, `TERM` and `HUP` send that signal to `hiqcache
serve`. Fails unless no process of it is left, and unless all that it says from then on is one line.
"""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

PATIENCE_SECONDS = 600
CODES = {"ctrl-c": 130, "TERM": 143, "HUP": 129}


def processes(session: int) -> dict[int, bytes]:
    """Command lines of what runs in the terminal's session and below it."""
    parents, found = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = stat.read_text().rpartition(")")[2].split()
            if state != "Z":
                parents[int(stat.parent.name)] = int(parent)
        except OSError:
            continue
    below = {session}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    for pid in below & parents.keys():
        try:
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
    return found


class Terminal:
    """The master's end of a terminal, and what has been said on it."""

    def __init__(self, script: str) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.execvp("bash", ["bash", script])
        self.said = b""

    def read(self) -> bool:
        """Read what is there; False once nobody is left to write."""
        if not select.select([self.master], [], [], 0.2)[0]:
            return True
        try:
            read = os.read(self.master, 65536)
        except OSError:
            return False
        self.said += read
        return bool(read)

    def until(self, mark: bytes) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while mark not in self.said:
            if not self.read() or time.monotonic() > deadline:
                sys.exit(f"{mark!r} was never said:\n{self.said.decode(errors='replace')[-3000:]}")

    def end(self, how: str) -> None:
        if how == "ctrl-c":
            os.write(self.master, b"\x03")
        elif how == "close":
            os.close(self.master)
        else:
            found = processes(self.pid)
            (serve,) = (pid for pid, words in found.items() if b"hiqcache\0serve\0" in words)
            os.kill(serve, getattr(signal, f"SIG{how}"))


def main(script: str, mark: str, how: str) -> None:
    terminal = Terminal(script)
    terminal.until(mark.encode())
    before = processes(terminal.pid)
    terminal.said = b""
    terminal.end(how)
    if how != "close":
        while terminal.read():
            continue
    code = os.waitstatus_to_exitcode(os.waitpid(terminal.pid, 0)[1])
    deadline = time.monotonic() + 60
    while left := [pid for pid in before if Path(f"/proc/{pid}/exe").exists()]:
        if time.monotonic() > deadline:
            sys.exit(f"{how} left {[before[pid] for pid in left]}")
        time.sleep(0.1)
    if how == "close":
        print(f"{how}: {len(before)} processes have ended")
        return
    lines = [line for line in terminal.said.decode(errors="replace").splitlines() if line.strip()]
    own = [line.removeprefix("^C") for line in lines]
    if code != CODES[how] or len(own) != 1 or not own[0].startswith("hiqcache: "):
        sys.exit(f"{how}: code {code} and {len(own)} lines:\n" + "\n".join(own))
    print(f"{how}: code {code}, {len(before)} processes have ended, {own[0]!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
