"""Real servers that share a real Mooncake Store over TCP: what one computes another restores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hiqcache.codec.page import HEADER_BYTES
from hiqcache.lab.serving.client import Answer
from tests.engine.case import prompts
from tests.engine.l3 import PAGE, PATIENCE, L3Server, l3_server, settled, whole_pages
from tests.engine.mooncake import Mooncake, mooncake

pytestmark = pytest.mark.engine

CODEC = "int8-compact"
TOKEN_BYTES = 30 * 2 * 208
"""SmolLM2-135M: layers, K and V, records of 3 heads x 64 and 3 scales."""
TEXTS = 3


def arguments(store: Mooncake) -> tuple[str, ...]:
    return (
        *store.arguments(prefetch_threshold=PAGE, **PATIENCE),
        *("--hicache-storage-prefetch-policy", "wait_complete"),
        *("--page-size", str(PAGE)),
    )


def objects(store: Mooncake) -> int:
    metrics = store.metrics()
    return int(metrics["master_key_count"]) if metrics else 0


@pytest.fixture(scope="module")
def store(out: Path) -> Iterator[Mooncake]:
    with mooncake(out / "mooncake.log") as started:
        yield started


@pytest.fixture(scope="module")
def first(model: str, out: Path, store: Mooncake) -> list[Answer]:
    """What a first server answered from L2; its pages stay in the store when it has ended."""
    with l3_server(model, out, "mooncake-first", CODEC, arguments(store)) as served:
        texts = prompts(TEXTS)
        for text in [*texts, *prompts(TEXTS + 3)[TEXTS:]]:
            served.ask(text)
        settled(lambda: objects(store))
        answers = [served.ask(text) for text in texts]
        assert served.bad_pages() == {"foreign": 0, "damaged": 0, "unreadable": 0}
        assert served.counted("failed_writes_total") == 0
    assert all(answer.host_tokens and not answer.storage_tokens for answer in answers)
    return answers


@pytest.fixture(scope="module")
def second(model: str, out: Path, store: Mooncake, first: list[Answer]) -> Iterator[L3Server]:
    """Another server on the same store, cold, which verifies what L3 brings to L2."""
    verify = {"HIQCACHE_VERIFY": "full"}
    with l3_server(model, out, "mooncake-second", CODEC, arguments(store), **verify) as served:
        yield served


def test_the_store_holds_records_and_their_headers(first: list[Answer], store: Mooncake) -> None:
    metrics = store.metrics()
    assert metrics is not None
    # K and V of each page; and 4 KiB that SGLang puts there at a start, to see that it works.
    pages, starts = divmod(int(metrics["master_key_count"]), 2)
    assert starts == 1 and pages >= sum(whole_pages(answer) for answer in first)
    page_bytes = PAGE * TOKEN_BYTES + 2 * HEADER_BYTES
    assert metrics["master_value_size_bytes_sum"] == pages * page_bytes + 4096
    assert PAGE * 30 * 2 * 384 / page_bytes >= 1.83


def test_another_server_restores_from_the_store(second: L3Server, first: list[Answer]) -> None:
    for text, before in zip(prompts(TEXTS), first, strict=True):
        answer = second.ask(text)
        assert answer.storage_tokens == whole_pages(answer) * PAGE
        assert answer.token_ids == before.token_ids
    assert second.bad_pages() == {"foreign": 0, "damaged": 0, "unreadable": 0}


def test_a_store_that_dies_costs_its_hits_and_nothing_else(
    second: L3Server, store: Mooncake, first: list[Answer]
) -> None:
    store.kill()
    for text, before in zip(prompts(TEXTS), first, strict=True):
        assert second.ask(text).host_tokens or second.ask(text).device_tokens
        second.forget()
        answer = second.ask(text)
        assert (answer.storage_tokens, answer.host_tokens) == (0, 0)
        assert len(answer.token_ids) == len(before.token_ids)
