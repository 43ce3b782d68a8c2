"""Servers of the demo model with an L3, and what lies in it."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hiqcache.lab.serving.client import Answer
from tests.engine.conftest import READY_SECONDS, start_server

PAGE = 16
NEW_TOKENS = 4
WRITE_SECONDS = 60
ADMIN_KEY = "for-this-test"
# A busy machine is no fault: under `timeout` SGLang would take what came in a second and a bit.
PATIENCE = {"prefetch_timeout_base": 120}
FILE = (
    *("--hicache-storage-backend", "file"),
    *(
        "--hicache-storage-backend-extra-config",
        json.dumps({"prefetch_threshold": PAGE} | PATIENCE),
    ),
    *("--hicache-storage-prefetch-policy", "wait_complete"),
    *("--hicache-mem-layout", "page_first"),
    *("--page-size", str(PAGE)),
)


class L3Server:
    """A server with an L3, through SGLang's admin calls."""

    def __init__(self, server: Any) -> None:
        self.server = server

    def ask(self, text: str | list[int]) -> Answer:
        answer: Answer = self.server.client.ask(text, NEW_TOKENS, ignore_eos=True)
        return answer

    def forget(self) -> None:
        """Empty L1 and L2; L3 stays."""
        self.admin("POST", "/flush_cache?timeout=60", {})

    def admin(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, str]:
        """SGLang's answer, once it is idle: pages may still be on their way to L3."""
        deadline = time.monotonic() + WRITE_SECONDS
        while True:
            status, text = self._admin(method, path, body)
            if "not idle" not in text or time.monotonic() > deadline:
                return status, text
            time.sleep(0.5)

    def _admin(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, str]:
        request = urllib.request.Request(
            f"{self.server.client.url}{path}",
            data=json.dumps(body).encode(),
            headers={"content-type": "application/json", "authorization": f"Bearer {ADMIN_KEY}"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def attach(self, backend: str, **options: str) -> tuple[int, str]:
        options = {f"hicache_storage_{name}": value for name, value in options.items()}
        body = {"hicache_storage_backend": backend, **options}
        return self.admin("PUT", "/hicache/storage-backend", body)

    def counted(self, name: str) -> float:
        return float(self.server.client.metrics().get(f"hiqcache_engine_l3_{name}", 0.0))

    def bad_pages(self) -> dict[str, float]:
        with urllib.request.urlopen(f"{self.server.client.url}/metrics", timeout=60) as response:
            text = response.read().decode()
        series = r'hiqcache_engine_l3_bad_pages_total\{.*reason="(\w+)".*\} ([\d.]+)'
        return {reason: float(count) for reason, count in re.findall(series, text)}


@contextmanager
def l3_server(
    model: str, out: Path, name: str, codec: str, arguments: Sequence[str], **environment: str
) -> Iterator[L3Server]:
    arguments = [
        "--enable-hierarchical-cache",
        *("--hicache-write-policy", "write_through"),
        *("--hicache-ratio", "4"),
        *("--admin-api-key", ADMIN_KEY),
        *arguments,
    ]
    variables = {"HIQCACHE_CODEC": codec, **environment}
    with start_server(model, out / f"{name}.log", arguments, variables) as server:
        server.wait_ready(READY_SECONDS)
        yield L3Server(server)


def settled(count: Any) -> int:
    """A count of stored pages once it has not changed for two seconds."""
    deadline = time.monotonic() + WRITE_SECONDS
    last, since = -1, 0.0
    while time.monotonic() < deadline:
        now: int = count()
        if now != last:
            last, since = now, time.monotonic()
        if last > 0 and time.monotonic() - since > 2:
            return last
        time.sleep(0.2)
    raise AssertionError(f"{last} pages, and not settled in {WRITE_SECONDS} s")


def pages(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.bin"))


def whole_pages(answer: Answer) -> int:
    return (answer.prompt_tokens - 1) // PAGE
