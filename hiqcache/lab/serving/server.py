"""One SGLang server as a child process, for `fleet` and the tests: started, waited for, stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from hiqcache.errors import HiQCacheError
from hiqcache.lab.serving.client import Client
from hiqcache.lifeline import tied

TERM_SECONDS, KILL_SECONDS = 2, 30
"""The ranks end within the first; the launcher alone would go on for 5 s, to look into a crash."""
LAST_WORDS = 12


class ServerFailed(HiQCacheError):
    """A server ended or did not get ready; the message carries its own last words."""


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class AnyServer(Protocol):
    """A server that can be started, asked, waited for and stopped: a process or a container."""

    client: Client

    def start(self) -> None: ...

    def wait_ready(
        self, timeout: float, progress: Callable[[float], None] | None = None
    ) -> float: ...

    def exit_code(self) -> int | None: ...

    def last_words(self) -> str: ...

    def stop(self) -> None: ...


def wait_ready(
    server: AnyServer, timeout: float, progress: Callable[[float], None] | None = None
) -> float:
    """Seconds until `/health` answers 200.

    Raises
    ------
    ServerFailed
        The server ended, or `timeout` seconds went by.
    """
    begin = time.monotonic()
    while not server.client.healthy():
        waited = time.monotonic() - begin
        if (code := server.exit_code()) is not None:
            raise ServerFailed(f"SGLang ended with code {code}: {server.last_words()}")
        if waited > timeout:
            raise ServerFailed(f"SGLang was not ready in {timeout:.0f} s: {server.last_words()}")
        if progress is not None:
            progress(waited)
        time.sleep(0.5)
    return time.monotonic() - begin


def last_words(output: str) -> str:
    """HiQCache's own sentence if there is one, else the output's last lines."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    own = [line for line in lines if "HiQCache stops the " in line]
    return own[0] if own else " | ".join(lines[-LAST_WORDS:])


class Server:
    """`python -m sglang.launch_server` in a process group of its own, which ends with this process.

    Parameters
    ----------
    model
        A Hugging Face id or a folder.
    arguments
        Further arguments of SGLang.
    environment
        Variables on top of this process's own; `HIQCACHE_*` among them.
    log
        The file that takes the server's output.
    """

    def __init__(
        self,
        model: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        self.port = free_port()
        self.log = log
        self.client = Client(f"http://127.0.0.1:{self.port}")
        self.command = [
            *(sys.executable, "-m", "sglang.launch_server"),
            *("--model-path", model),
            *("--host", "127.0.0.1"),
            *("--port", str(self.port)),
            "--enable-metrics",
            *arguments,
        ]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("HIQCACHE_")}
        self.environment = {**inherited, "PYTHONUNBUFFERED": "1", **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; `wait_ready` waits for it."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                tied(self.command),
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def wait_ready(self, timeout: float, progress: Callable[[float], None] | None = None) -> float:
        """As the function of that name."""
        return wait_ready(self, timeout, progress)

    @property
    def pid(self) -> int:
        """The first process's id; everything the server starts is below it."""
        assert self._process is not None, "start() comes first"
        return self._process.pid

    def exit_code(self) -> int | None:
        """The process's exit code, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    def wait_exit(self, timeout: float) -> int:
        """Wait for the process to end by itself.

        Raises
        ------
        ServerFailed
            It still runs after `timeout` seconds.
        """
        assert self._process is not None, "start() comes first"
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"SGLang still runs after {timeout:.0f} s") from None

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def last_words(self) -> str:
        return last_words(self.output())

    def stop(self) -> None:
        """End the whole process group: SIGTERM first, SIGKILL for what is left."""
        process, self._process = self._process, None
        if process is None:
            return
        for sign, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            try:
                os.killpg(process.pid, sign)
                process.wait(seconds)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        process.wait()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
