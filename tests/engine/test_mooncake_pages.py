"""Encoded pages in a real Mooncake Store over TCP, without a server: stored, missed, found out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hiqcache.codec.page import HEADER_BYTES, Fault
from tests.engine.mooncake import Mooncake, mooncake
from tests.engine.pools import sglang_context
from tests.engine.test_l3_pages import KEYS, MODEL, WEIGHTS, checked, counted, fill, pool_of

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mooncake]:
    with mooncake(tmp_path_factory.mktemp("mooncake") / "log") as started:
        yield started


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    with sglang_context():
        yield


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    """A part of the store for each test."""
    return str(request.node.name).replace("[", "-").rstrip("]")


def l3_of(store: Mooncake, pool: Any, tag: str, identity: str = WEIGHTS) -> Any:
    from sglang.srt.managers.cache_controller import storage_model_name
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.storage.mooncake_store.mooncake_store import MooncakeStore

    config = HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=True,
        model_name=storage_model_name(MODEL, pool),
        extra_config=store.options(extra_backend_tag=tag),
    )
    l3 = checked(pool, MooncakeStore(config, pool), identity)
    l3.register_mem_pool_host(pool)
    return l3


def slots(pool: Any, *starts: int) -> torch.Tensor:
    return torch.cat([torch.arange(start, start + pool.page_size) for start in starts])


@pytest.mark.parametrize("codec", ["bf16", "int8", "int8-compact"])
def test_pages_come_back_to_other_slots_and_nowhere_else(
    codec: str, store: Mooncake, tenant: str
) -> None:
    pool = pool_of(codec, v_head_dim=32)
    fill(pool)
    before = [buffer.clone() for buffer in (pool.k_buffer, pool.v_buffer)]
    l3 = l3_of(store, pool, tenant)
    held = store.metrics()
    assert l3.batch_set_v1(KEYS, slots(pool, 0, 4, 8, 12)) == [True] * 4
    now = store.metrics()
    assert held is not None and now is not None
    # What the store has taken in: two objects a page, each its records and 16 bytes.
    taken = now["master_value_size_bytes_sum"] - held["master_value_size_bytes_sum"]
    assert taken == 4 * (pool.page_size * pool.size_per_token + 2 * HEADER_BYTES)
    for buffer in (pool.k_buffer, pool.v_buffer):
        buffer.fill_(0xA5)
    pool.page_headers.fill_(0xA5)
    assert l3.batch_exists(KEYS) == 4
    assert l3.batch_get_v1(KEYS, slots(pool, 40, 8, 64, 0)) == [True] * 4
    for buffer, kept in zip((pool.k_buffer, pool.v_buffer), before, strict=True):
        written = torch.zeros(len(buffer), dtype=torch.bool)
        for number, slot in enumerate((40, 8, 64, 0)):
            assert torch.equal(buffer[slot : slot + 4], kept[4 * number : 4 * number + 4])
            written[slot : slot + 4] = True
        assert (buffer[~written] == 0xA5).all()


def test_pages_of_another_format_or_of_other_weights_miss(store: Mooncake, tenant: str) -> None:
    pool = pool_of()
    l3 = l3_of(store, pool, tenant)
    assert all(l3.batch_set_v1(KEYS, slots(pool, 0, 4, 8, 12)))
    others = [l3_of(store, pool, tenant, identity="f" * 16)]
    others += [l3_of(store, pool_of(codec), tenant) for codec in ("bf16", "int8-compact")]
    others += [l3_of(store, pool_of(page_size=8), tenant)]
    for other in others:
        assert other.batch_exists(KEYS) == 0
        size = other._pool.page_size
        wanted = slots(other._pool, *range(0, 4 * size, size))
        assert other.batch_get_v1(KEYS, wanted) == [False] * 4


def flip(data: bytearray) -> bytes:
    data[len(data) // 2] ^= 4
    return bytes(data)


def cut(data: bytearray) -> bytes:
    return bytes(data[:-1])


def replace(data: bytearray) -> bytes:
    return bytes(len(data))


@pytest.mark.parametrize("part", ["k", "v"])
@pytest.mark.parametrize(
    ("harm", "fault"), [(flip, Fault.DAMAGED), (cut, Fault.UNREADABLE), (replace, Fault.FOREIGN)]
)
def test_a_bad_page_is_found_counted_removed_and_written_anew(
    harm: Any, fault: Fault, part: str, store: Mooncake, tenant: str
) -> None:
    pool = pool_of()
    fill(pool)
    l3 = l3_of(store, pool, tenant)
    whole = slots(pool, 0, 4, 8, 12)
    assert all(l3.batch_set_v1(KEYS, whole))
    (name,) = l3._backend._tag_keys([f"{KEYS[2]}-{WEIGHTS}"])
    name += f"_{l3._backend.mha_suffix}_{part}"
    client = store.client()
    data = bytearray(client.get(name))
    assert client.remove(name, True) == 0
    assert client.put(name, harm(data)) == 0
    elsewhere = slots(pool, 40, 44, 48, 52)
    assert l3.batch_get_v1(KEYS, elsewhere) == [True, True, False, True]
    assert counted("bad_pages_total", reason=fault.value) == 1
    assert l3.batch_exists(KEYS) == 2
    assert all(l3.batch_set_v1(KEYS, whole))
    assert all(l3.batch_get_v1(KEYS, elsewhere))


def test_a_store_that_is_gone_is_a_miss_and_no_hang(tmp_path: Path) -> None:
    with mooncake(tmp_path / "log") as own:
        pool = pool_of()
        l3 = l3_of(own, pool, "gone")
        whole = slots(pool, 0, 4, 8, 12)
        assert all(l3.batch_set_v1(KEYS, whole))
        own.kill()
        assert l3.batch_get_v1(KEYS, whole) == [False] * 4
        assert l3.batch_exists(KEYS) == 0
        assert not any(l3.batch_set_v1([f"{9:064x}"], slots(pool, 0)))
        assert counted("failed_writes_total") == 1
