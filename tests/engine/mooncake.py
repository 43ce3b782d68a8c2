"""A real Mooncake Store over TCP: its master, and a process that lends it memory."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

READY_SECONDS = 120
SEGMENT_BYTES = 256 << 20
HOST = "127.0.0.1"
LENDER = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
master, size = sys.argv[1], int(sys.argv[2])
assert store.setup("127.0.0.1", "P2PHANDSHAKE", size, 16 << 20, "tcp", "", master) == 0
print("ready", flush=True)
sys.stdin.read()
"""


class Mooncake:
    """A master and a process that lends it `SEGMENT_BYTES`; ends with its standard input."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.port, self.metrics_port = free_port(), free_port()
        self._master: subprocess.Popen[bytes] | None = None
        self._lender: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        master = Path(sys.executable).with_name("mooncake_master")
        ports = (f"--port={self.port}", f"--metrics_port={self.metrics_port}")
        with self.log.open("ab") as log:
            self._master = subprocess.Popen([master, *ports], stdout=log, stderr=log)
            wait_for(lambda: self.metrics() is not None)
            command = [sys.executable, "-c", LENDER, self.address, str(SEGMENT_BYTES)]
            self._lender = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._lender.stdout is not None
        assert self._lender.stdout.readline().strip() == "ready", self.log.read_text()

    def kill(self) -> None:
        for process in (self._master, self._lender):
            if process is not None:
                process.kill()
                process.wait()
        self._master = self._lender = None

    def metrics(self) -> dict[str, float] | None:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.metrics_port}/metrics") as answer:
                text = answer.read().decode()
        except OSError:
            return None
        return {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", text, re.M)}

    def client(self) -> Any:
        from mooncake.store import MooncakeDistributedStore

        store = MooncakeDistributedStore()
        assert store.setup(HOST, "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", self.address) == 0
        return store

    def options(self, **more: Any) -> dict[str, Any]:
        """For `--hicache-storage-backend-extra-config`: a client that lends nothing itself."""
        return {
            "master_server_address": self.address,
            "metadata_server": "P2PHANDSHAKE",
            "protocol": "tcp",
            "local_hostname": HOST,
            "global_segment_size": 0,
            **more,
        }

    def arguments(self, **more: Any) -> tuple[str, ...]:
        return (
            *("--hicache-storage-backend", "mooncake"),
            *("--hicache-storage-backend-extra-config", json.dumps(self.options(**more))),
            *("--hicache-mem-layout", "page_first"),
        )


@contextmanager
def mooncake(log: Path) -> Iterator[Mooncake]:
    store = Mooncake(log)
    try:
        store.start()
        yield store
    finally:
        store.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(state: Any) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not state():
        assert time.monotonic() < deadline, "Mooncake did not get there"
        time.sleep(0.1)
