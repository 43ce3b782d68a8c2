"""Two replicas under priority scheduling: the sidecar's figures are of both, each request once."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from hiqcache.lab.serving.server import Server
from hiqcache.sidecar.figures import Figures, read_figures
from tests.engine.case import prompts
from tests.engine.conftest import GPU, READY_SECONDS, start_server
from tests.engine.tensor_parallel import by_label, tp_environment

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(GPU and torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

REPLICAS = 2
SECONDS = 60
ARGUMENTS = (
    *("--dp-size", str(REPLICAS)),
    "--enable-priority-scheduling",
    *("--default-priority-value", "0"),
    *("--max-running-requests", "1"),
    "--enable-hierarchical-cache",
    *("--hicache-ratio", "2"),
    *("--hicache-write-policy", "write_through"),
)
LAYERS = 30
BYTES = LAYERS * 2 * 208
"""Of a token under `int8-compact`: 3 heads of 64 with their scales, in units of 16 bytes."""


@pytest.fixture(scope="module")
def server(model: str, out: Path) -> Iterator[Server]:
    environment = {"HIQCACHE_CODEC": "int8-compact", **tp_environment(REPLICAS)}
    with start_server(model, out / "replicas.log", ARGUMENTS, environment) as started:
        started.wait_ready(READY_SECONDS)
        yield started


def ask(server: Server, text: str, priority: int, new_tokens: int) -> None:
    sampling = {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
    body = {"text": text, "priority": priority, "sampling_params": sampling}
    request = urllib.request.Request(
        f"{server.client.url}/generate",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        response.read()


def figures_when(server: Server, ready: Callable[[Figures], bool]) -> Figures:
    """The first figures that are as the caller waits for."""
    deadline = time.monotonic() + SECONDS
    while not ready(found := read_figures(server.client.metrics_text())):
        assert time.monotonic() < deadline, found.values
        time.sleep(0.2)
    return found


def test_tokens_bytes_and_records_are_of_both_replicas(server: Server) -> None:
    for number, text in enumerate(prompts(2 * REPLICAS)):
        ask(server, text, number % 2, 2)
    texts = by_label(server.client.metrics_text(), "hiqcache_engine_pool_bytes", "dp_rank")
    assert set(texts) == {"0", "1"}
    found = figures_when(server, lambda f: f.backup_records == f.backup_tokens * LAYERS * 2 > 0)
    assert found.unreadable == ()
    assert found.bytes_per_token == BYTES
    assert found.l2_bytes_max == found.l2_tokens_max * BYTES == sum(texts.values())
    assert found.backup_bytes == found.backup_tokens * BYTES
    assert 0 < found.l2_bytes <= found.l2_bytes_max


def test_each_request_is_counted_once(server: Server) -> None:
    text, count = prompts(1)[0][:200], 3 * REPLICAS
    with ThreadPoolExecutor(count) as pool:
        answers = [pool.submit(ask, server, text, n % 3, 64) for n in range(count)]
        most = 0.0
        while not all(answer.done() for answer in answers):
            found = read_figures(server.client.metrics_text())
            most = max(most, found.queued_requests)
            assert found.running_requests <= REPLICAS
            assert found.queued_requests <= count
            time.sleep(0.2)
        assert most > 0, "some had to wait"
        for answer in answers:
            answer.result()
