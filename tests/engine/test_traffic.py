"""Real SGLang under multi-turn traffic, with an L2 that is always full and restores delayed.

What must hold: no error, and every restored row is what was backed up, although host slots are
given to other prefixes all the time (a slot reused while a restore is in flight would show).
"""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hiqcache.lab.serving.client import Client
from hiqcache.lab.workload.documents import Document, load_documents
from tests.engine.conftest import GPU, probed_server

pytestmark = pytest.mark.engine

ROUNDS = int(os.environ.get("TRAFFIC_ROUNDS", "200" if GPU else "8"))
# On a CPU the soak (test_soak.py) does the same under `write_through`.
POLICIES = ("write_back", "write_through") if GPU else ("write_back",)
CONCURRENCY = 4
CONVERSATIONS = 12
L1 = 1536
NEW_TOKENS = 8
# Delays each layer of a restore by about half a millisecond of a GPU's clock.
DELAY = {"SGLANG_TEST_HICACHE_H2D_DELAY_CYCLES": "1000000"} if GPU else {}


def converse(client: Client, document: Document, seed: int) -> int:
    """Two turns about a document, the second on top of the first; tokens that came from L2."""
    question = random.Random(seed).choice(document.questions)
    history = f"{document.text[: len(document.text) // 4]}\n\nQuestion: {question}\nAnswer:"
    first = client.ask(history, NEW_TOKENS)
    second = client.ask(f"{history}{first.text}\nQuestion: Why?\nAnswer:", NEW_TOKENS)
    return first.host_tokens + second.host_tokens


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_wrong_is_restored_under_pressure(policy: str, model: str, out: Path) -> None:
    arguments = (
        *("--hicache-write-policy", policy),
        *("--hicache-ratio", "1.5"),
        *("--max-total-tokens", str(L1)),
    )
    name = f"traffic-{policy}"
    documents = load_documents()[:CONVERSATIONS]
    with probed_server(model, out, name, "int8-compact", arguments, DELAY) as probed:
        client = probed.server.client
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            jobs = []
            for turn in range(ROUNDS):
                order = random.Random(turn).sample(documents, CONCURRENCY)
                jobs += [pool.submit(converse, client, d, turn) for d in order]
            restored = sum(job.result() for job in jobs)
        report = probed.report()
        metrics = client.metrics()
        log = probed.server.output()
    assert restored > 0
    assert report["restored_rows"] > 0
    assert report["bound_violations"] == 0
    assert report["wrong_rows"] == 0
    assert report["unpoisoned_rows"] == 0
    held = metrics["sglang:hicache_host_used_tokens"]
    assert held > 0.5 * report["tokens"], "the pool must have been under pressure"
    assert report["backed_up_rows"] > 2 * report["layers"] * report["tokens"]
    assert "Traceback" not in log
