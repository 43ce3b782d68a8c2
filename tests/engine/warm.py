"""Servers that share one import of SGLang: a parent that has imported it forks them.

Importing SGLang takes a processor 11 seconds, three times for each server. `WarmServer` has it
done once for each test process. What follows (plugins, hooks, arguments, weights, pools) runs
anew in each server, as after `python -m sglang.launch_server`, which test_fail_closed.py
and the test of the demo start as users do.

Run as a program, this module is the parent: it reads a request per line and answers with a pid.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from hiqcache.cpu_server import CPU_ENVIRONMENT
from hiqcache.lab.serving.server import Server

ROOT = Path(__file__).parents[2]
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
POLL_SECONDS = 0.05


class Adopted:
    """A process that the parent forked and this process adopted: what `Server` asks of a Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("sglang", timeout or 0)
            time.sleep(POLL_SECONDS)
        return code


class WarmServer(Server):
    """A server of the reference CPU platform, forked from a parent that has imported SGLang."""

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        request = {
            "arguments": self.command[self.command.index("--model-path") :],
            "environment": self.environment,
            "log": str(self.log),
        }
        parent = _parent()
        assert parent.stdin is not None and parent.stdout is not None
        parent.stdin.write(json.dumps(request) + "\n")
        parent.stdin.flush()
        self._process = Adopted(int(parent.stdout.readline()))  # type: ignore[assignment]


@cache
def _parent() -> subprocess.Popen[str]:
    """The parent of this test process; it ends with it, when its standard input does."""
    # Servers become children of this process, which can then wait for their exit codes.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    paths = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    return subprocess.Popen(
        [sys.executable, "-m", "tests.engine.warm"],
        env=os.environ | CPU_ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _serve(request: dict[str, Any], middle: int) -> NoReturn:
    """Become the server of a request: its log, its variables, its import path, its arguments."""
    while os.getppid() == middle:
        time.sleep(POLL_SECONDS)
    # From here on the parent is the test process: whatever ends it ends this server.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(request["environment"])
    for path in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if path and path not in sys.path:
            sys.path.insert(0, path)
    # SGLang asks for `spawn`, whose children would import it again.
    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.set_start_method = lambda *_, **__: None  # type: ignore[assignment]
    sys.argv = ["sglang.launch_server", *request["arguments"]]

    from sglang.launch_server import kill_process_tree, run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    code = 0
    try:
        load_plugins()
        arguments = prepare_server_args(sys.argv[1:])
        try:
            run_server(arguments)
        finally:
            kill_process_tree(os.getpid(), include_parent=False)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    # All that a server imports by itself, and the models, which SGLang imports when asked for one.
    import sglang.launch_server
    import sglang.srt.entrypoints.http_server
    import sglang.srt.managers.tp_worker
    import sglang.srt.models.registry  # noqa: F401

    for line in sys.stdin:
        read, write = os.pipe()
        middle = os.fork()
        if middle == 0:
            middle, server = os.getpid(), os.fork()
            if server == 0:
                _serve(json.loads(line), middle)
            os.write(write, str(server).encode())
            os._exit(0)
        # Only once the one between has ended does the test process adopt the server.
        os.waitpid(middle, 0)
        print(os.read(read, 32).decode(), flush=True)
        os.close(read)
        os.close(write)


if __name__ == "__main__":
    main()
