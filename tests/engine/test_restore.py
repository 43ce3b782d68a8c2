"""Real SGLang: what comes back from L2 is what went in, under every policy and layout."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest

from hiqcache.lab.serving.client import Answer, Client
from tests.engine.case import CHUNK, NEW_TOKENS, Case, prompts
from tests.engine.conftest import GPU, L1_TOKENS, Probed, probed_server

pytestmark = pytest.mark.engine

DOCUMENTS = 6
HOST_SHARE = 0.95
PAGE_BYTES = mmap.PAGESIZE

SIZE = ("--hicache-size", "1")
RATIO = ("--hicache-ratio", "4.5")
# On a CPU, PyTorch computes in float16 at a tenth of the speed; tests/engine/test_pools.py has it.
FLOAT16 = "float16" if GPU else "bfloat16"
CASES = [
    Case("int8", "write_back", "layer_first", 1, SIZE),
    Case("int8-compact", "write_through", "layer_first", 64, SIZE),
    Case("int8-compact", "write_through_selective", "page_first", 16, SIZE, FLOAT16),
    Case("k8v8", "write_back", "page_first", 1, RATIO),
]
# Starting SGLang costs a CPU a minute. Each policy, codec, layout, page size and sizing of these is
# in a case above too; tests/engine/test_pools.py has every codec in both layouts.
if GPU:
    CASES += [
        Case("int8", "write_through", "page_first", 16, RATIO),
        Case("int8", "write_through_selective", "layer_first", 1, RATIO),
        Case("int8-compact", "write_back", "page_first", 1, RATIO),
    ]


def replay(client: Client, texts: list[str], policy: str) -> list[Answer]:
    """Ask everything, then again; a selective policy backs up what was hit before it left L1."""
    for text in texts:
        for _ in range(2 if policy == "write_through_selective" else 1):
            client.ask(text, NEW_TOKENS)
    return [client.ask(text, NEW_TOKENS) for text in texts]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def served(request: pytest.FixtureRequest, model: str, out: Path) -> Any:
    case: Case = request.param
    with probed_server(model, out, case.name, case.codec, case.arguments) as probed:
        yield case, probed, replay(probed.server.client, prompts(DOCUMENTS), case.policy)


def test_prompts_of_several_chunks_come_back_from_l2(
    served: tuple[Case, Probed, list[Answer]],
) -> None:
    case, _, answers = served
    assert sum(a.prompt_tokens for a in answers) > L1_TOKENS, "the documents must overflow L1"
    for answer in answers:
        assert answer.prompt_tokens > CHUNK
        whole_pages = (answer.prompt_tokens - 1) // case.page_size * case.page_size
        assert answer.host_tokens >= HOST_SHARE * whole_pages


def test_restored_rows_keep_the_error_bound(served: tuple[Case, Probed, list[Answer]]) -> None:
    case, probed, answers = served
    report = probed.report()
    assert report["dtype"] == case.dtype
    rows = sum(a.host_tokens for a in answers) * report["layers"] * 2
    assert report["restored_rows"] >= rows > 0
    assert report["bound_violations"] == 0
    assert report["unpoisoned_rows"] == 0
    assert report["wrong_rows"] == 0, "and they are, bit by bit, what the codec makes of a row"
    assert report["dirty_padding_bytes"] == 0
    # A lossy codec that lost nothing would mean that the comparison looked at nothing.
    assert report["differing_rows"] > 0
    if case.codec.startswith("int8"):
        assert 0.5 < report["largest_normalised_error"] < 1


def test_counters_give_the_record_arithmetic_exactly(
    served: tuple[Case, Probed, list[Answer]],
) -> None:
    case, probed, _ = served
    expected = {"int8": 15360, "k8v8": 12960}.get(case.codec, 12480)
    metrics = probed.server.client.metrics()
    for direction in ("hicache_backup", "load_back"):
        tokens = metrics[f"sglang:{direction}_tokens_total"]
        assert tokens > 0
        assert metrics[f"sglang:{direction}_bytes_total"] == tokens * expected


def test_live_capacity_equals_the_capacity_command(
    served: tuple[Case, Probed, list[Answer]],
) -> None:
    case, probed, _ = served
    report = probed.report()
    assert report["device_tokens"] == L1_TOKENS, "what was pinned, whatever the codec"
    capacity = case.capacity(report)
    assert report["tokens"] == capacity.tokens
    assert report["size_per_token"] == capacity.bytes_per_token
    assert report["buffer_bytes"] == capacity.bytes_allocated
    # The kernel counts whole pages, of which each of the two buffers has a last one.
    assert 0 <= report["memory_taken_bytes"] - report["buffer_bytes"] <= 2 * PAGE_BYTES
    metrics = probed.server.client.metrics()
    assert metrics["sglang:hicache_host_total_tokens"] == capacity.tokens
