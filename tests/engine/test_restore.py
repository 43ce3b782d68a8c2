"""Real SGLang: what comes back from L2 is what went in, under every policy and layout."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hiqcache.capacity import Capacity, automatic, by_ratio, by_size, bytes_per_token
from hiqcache.geometry import Geometry
from hiqcache.pod.checks.memory import RESERVE_BYTES, Memory
from hiqcache.serving.client import Answer, Client
from hiqcache.workload.documents import load_documents
from tests.engine.conftest import GPU, L1_TOKENS, Probed, probed_server

pytestmark = pytest.mark.engine

CHUNK = 512
DOCUMENTS = 6
HOST_SHARE = 0.95
NEW_TOKENS = 2
PAGE_BYTES = mmap.PAGESIZE
MIRRORS = 1.5
"""Automatic sizing stops at 2 by itself; below that, memory is what limits."""


@dataclass(frozen=True)
class Case:
    """One server: a codec under a write policy, in a layout, with a page size and a sizing.

    The type of the rows is the model's; one case has it float16.
    """

    codec: str
    policy: str
    layout: str
    page_size: int
    sizing: tuple[str, ...]
    dtype: str = "bfloat16"

    @property
    def name(self) -> str:
        return f"{self.codec}-{self.policy}" + ("" if self.dtype == "bfloat16" else "-float16")

    @property
    def arguments(self) -> list[str]:
        return [
            *("--hicache-write-policy", self.policy),
            *("--hicache-mem-layout", self.layout),
            *("--page-size", str(self.page_size)),
            *("--dtype", self.dtype),
            *("--chunked-prefill-size", str(CHUNK)),
            *self.sizing,
        ]

    def capacity(self, report: dict[str, Any]) -> Capacity:
        """What `hiqcache capacity` says of this server."""
        geometry = Geometry.load("smollm2-135m")
        device = report["device_tokens"]
        match self.sizing:
            case ("--hicache-size", size):
                return by_size(geometry, self.codec, int(size), page_size=self.page_size)
            case ("--hicache-ratio", ratio):
                return by_ratio(
                    geometry, self.codec, float(ratio), device, page_size=self.page_size
                )
            case ("--hicache-host-memory-fraction", fraction):
                return automatic(
                    geometry,
                    self.codec,
                    device,
                    report["auto_budget_bytes"],
                    fraction=float(fraction),
                    page_size=self.page_size,
                )
        raise AssertionError(self.sizing)


SIZE = ("--hicache-size", "1")
RATIO = ("--hicache-ratio", "4.5")
# On a CPU, PyTorch computes in float16 at a tenth of the speed; tests/engine/test_pools.py has it.
FLOAT16 = "float16" if GPU else "bfloat16"
CASES = [
    Case("int8", "write_back", "layer_first", 1, SIZE),
    Case("int8", "write_through", "page_first", 16, RATIO),
    Case("int8", "write_through_selective", "layer_first", 1, RATIO),
    Case("int8-compact", "write_back", "page_first", 1, RATIO),
    Case("int8-compact", "write_through", "layer_first", 64, SIZE),
    Case("int8-compact", "write_through_selective", "page_first", 16, SIZE, FLOAT16),
]


def prompts(count: int) -> list[str]:
    documents = load_documents()[:count]
    assert len(documents) == count
    return [f"{d.text}\n\nQuestion: {d.questions[0]}\nAnswer:" for d in documents]


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
    assert 0.5 < report["largest_normalised_error"] < 1


def test_counters_give_the_record_arithmetic_exactly(
    served: tuple[Case, Probed, list[Answer]],
) -> None:
    case, probed, _ = served
    expected = {"int8": 15360, "int8-compact": 12480}[case.codec]
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


def tight() -> Case:
    """Automatic sizing with a fraction of this machine's memory that L2 mirrors L1 in, at most."""
    mirror = (L1_TOKENS + 1) * bytes_per_token(Geometry.load("smollm2-135m"), "int8-compact")
    # The server's own processes will have taken some more of it when it sizes its pool.
    budget = Memory.read().available - RESERVE_BYTES
    fraction = min(1.0, MIRRORS * mirror / budget)
    sizing = ("--hicache-host-memory-fraction", f"{fraction:.9f}")
    return Case("int8-compact", "write_through", "page_first", 1, sizing)


def test_automatic_sizing_counts_records_not_bf16_rows(model: str, out: Path) -> None:
    case = tight()
    with probed_server(model, out, "auto", case.codec, case.arguments) as probed:
        report = probed.report()
    capacity = case.capacity(report)
    assert report["tokens"] == capacity.tokens
    as_bf16 = automatic(
        Geometry.load("smollm2-135m"),
        "bf16",
        report["device_tokens"],
        report["auto_budget_bytes"],
        fraction=float(case.sizing[1]),
    )
    assert capacity.tokens < 2 * report["device_tokens"], "the budget must be what limits"
    assert capacity.tokens > 1.8 * as_bf16.tokens
