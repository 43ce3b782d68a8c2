"""Encoded pages and SGLang's own backends, without a server: what is stored, missed, found out."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hiqcache.codec.page import HEADER_BYTES, Fault
from hiqcache.config import Config
from tests.engine.backend.sqlite_l3 import SqliteStorage
from tests.engine.pools import encoded_pool, host_pool, sglang_context

pytestmark = pytest.mark.engine

KEYS = [f"{number:064x}" for number in range(1, 5)]
WEIGHTS = "0123456789abcdef"
MODEL = "acme/model"


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    with sglang_context():
        yield


def storage_config(pool: Any, rank: int = 0, ranks: int = 1, **extra: Any) -> Any:
    """As SGLang's controller builds it, its own function for the name among it."""
    from sglang.srt.managers.cache_controller import storage_model_name
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

    return HiCacheStorageConfig(
        tp_rank=rank,
        tp_size=ranks,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=pool.layout == "page_first",
        model_name=storage_model_name(MODEL, pool),
        extra_config=extra,
    )


def file_backend(pool: Any, folder: Path, **ranks: int) -> Any:
    from sglang.srt.mem_cache.hicache_storage import HiCacheFile

    return HiCacheFile(storage_config(pool, **ranks), str(folder))


def checked(pool: Any, backend: Any, identity: str | None = WEIGHTS) -> Any:
    from hiqcache.engine.l3 import check_pages
    from hiqcache.engine.weights import Weights

    weights = Weights()
    weights.identity = identity
    return check_pages(backend, pool, weights)


def file_l3(pool: Any, folder: Path, identity: str | None = WEIGHTS) -> Any:
    return checked(pool, file_backend(pool, folder), identity)


def pool_of(
    codec: str = "int8", layout: str = "page_first", verify: str = "off", **geometry: Any
) -> Any:
    return encoded_pool(Config(codec=codec, verify=verify), layout, **({"page_size": 4} | geometry))


def fill(pool: Any) -> None:
    """Different bytes in every record; what a codec would write there does not matter to L3."""
    generator = torch.Generator().manual_seed(7)
    for buffer in (pool.k_buffer, pool.v_buffer):
        buffer.copy_(torch.randint(0, 256, buffer.shape, dtype=torch.uint8, generator=generator))


def store(pool: Any, l3: Any, keys: list[str] = KEYS) -> bool:
    slots = range(0, len(keys) * pool.page_size, pool.page_size)
    stored: bool = l3.batch_set(keys, [pool.get_data_page(slot) for slot in slots])
    return stored


def load(pool: Any, l3: Any, keys: list[str] = KEYS) -> list[torch.Tensor | None]:
    pages: list[torch.Tensor | None]
    pages = l3.batch_get(keys, [pool.get_dummy_flat_data_page() for _ in keys])
    return pages


def counted(name: str, of: str = "l3_", **labels: str) -> float | None:
    from prometheus_client import REGISTRY

    from hiqcache.engine.families import rank_labels

    return REGISTRY.get_sample_value(f"hiqcache_engine_{of}{name}", {**rank_labels(), **labels})


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
@pytest.mark.parametrize("codec", ["bf16", "int8", "int8-compact"])
@pytest.mark.parametrize("v_head_dim", [64, 32])
def test_pages_come_back_to_other_slots_and_nowhere_else(
    layout: str, codec: str, v_head_dim: int, tmp_path: Path
) -> None:
    pool = pool_of(codec, layout, v_head_dim=v_head_dim)
    fill(pool)
    before = [buffer.clone() for buffer in (pool.k_buffer, pool.v_buffer)]
    l3 = file_l3(pool, tmp_path)
    assert store(pool, l3)
    per_token = pool.layer_num * (pool.k_layout.record_bytes + pool.v_layout.record_bytes)
    sizes = {path.stat().st_size for path in files(tmp_path)}
    assert sizes == {HEADER_BYTES + 4 * per_token} == {counted("page_bytes")}
    for buffer in (pool.k_buffer, pool.v_buffer):
        buffer.fill_(0xA5)
    for slot, page in zip((40, 8, 64, 0), load(pool, l3), strict=True):
        pool.set_from_flat_data_page(torch.tensor(slot), page)
    for buffer, kept in zip((pool.k_buffer, pool.v_buffer), before, strict=True):
        if layout == "layer_first":
            buffer, kept = buffer.transpose(0, 1), kept.transpose(0, 1)
        written = torch.zeros(len(buffer), dtype=torch.bool)
        for number, slot in enumerate((40, 8, 64, 0)):
            assert torch.equal(buffer[slot : slot + 4], kept[4 * number : 4 * number + 4])
            written[slot : slot + 4] = True
        assert (buffer[~written] == 0xA5).all()


OTHERS = [
    {"codec": "int8-compact"},
    {"codec": "bf16"},
    {"layout": "layer_first"},
    {"page_size": 8},
    {"heads": 6},
    {"head_dim": 128},
    {"v_head_dim": 32},
    {"layers": 3},
    {"dtype": torch.float16},
]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_pages_of_another_format_miss(other: dict[str, Any], tmp_path: Path) -> None:
    mine = pool_of()
    store(mine, file_l3(mine, tmp_path))
    theirs = pool_of(**other)
    assert theirs.storage_format_tag != mine.storage_format_tag
    l3 = file_l3(theirs, tmp_path)
    assert l3.batch_exists(KEYS) == 0
    assert load(theirs, l3) == [None] * len(KEYS)
    # Not even under the same name, as a backend without names of its own might have it.
    for path in files(tmp_path):
        key = path.name.split("_")[0]
        path.rename(tmp_path / f"{key}{l3.config_suffix}.bin")
    assert l3.batch_exists(KEYS) == len(KEYS)
    assert load(theirs, l3) == [None] * len(KEYS)


def test_another_record_version_or_rank_misses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pool_of()
    store(pool, file_l3(pool, tmp_path))
    named = [f"{key}-{WEIGHTS}" for key in KEYS]
    assert file_backend(pool, tmp_path).batch_exists(named) == len(KEYS)
    assert file_backend(pool, tmp_path, rank=1, ranks=2).batch_exists(named) == 0
    assert file_backend(pool, tmp_path, rank=0, ranks=2).batch_exists(named) == 0
    entry = dataclasses.replace(pool.codec.entry, record_version=2)
    monkeypatch.setattr(pool, "codec", dataclasses.replace(pool.codec, entry=entry))
    assert file_backend(pool, tmp_path).batch_exists(named) == 0


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_pages_of_sglangs_own_pool_miss_and_ours_miss_there(codec: str, tmp_path: Path) -> None:
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    stock, pool = host_pool(MHATokenToKVPoolHost, "layer_first", page_size=4), pool_of(codec)
    theirs, mine = file_backend(stock, tmp_path), file_l3(pool, tmp_path)
    assert theirs.batch_set(KEYS, [stock.get_data_page(4 * number) for number in range(4)])
    assert mine.batch_exists(KEYS) == 0
    for path in files(tmp_path):
        key = f"{path.name.split('_')[0]}-{WEIGHTS}"
        path.rename(tmp_path / f"{key}{mine.config_suffix}.bin")
    assert mine.batch_exists(KEYS) == len(KEYS)
    assert load(pool, mine) == [None] * len(KEYS)
    store(pool, mine)
    assert theirs.batch_exists(KEYS) == 0


def test_pages_of_other_weights_or_of_unknown_ones_miss(tmp_path: Path) -> None:
    pool = pool_of()
    assert store(pool, file_l3(pool, tmp_path))
    stored = files(tmp_path)
    other = file_l3(pool, tmp_path, identity="f" * 16)
    unknown = file_l3(pool, tmp_path, identity=None)
    for l3 in (other, unknown):
        assert l3.batch_exists(KEYS) == 0 and not l3.exists(KEYS[0])
        assert load(pool, l3) == [None] * len(KEYS)
    # What weights made it is not known: it is not written either, and that is no failure.
    assert not store(pool, unknown)
    assert files(tmp_path) == stored
    assert counted("failed_writes_total") == 0
    assert file_l3(pool, tmp_path).batch_exists(KEYS) == len(KEYS)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def swap(path: Path) -> None:
    first = path.parent / path.name.replace(KEYS[2], KEYS[0])
    path.write_bytes(first.read_bytes())


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (flip, Fault.DAMAGED),
        (cut, Fault.UNREADABLE),
        (empty, Fault.UNREADABLE),
        (replace, Fault.FOREIGN),
        (swap, Fault.DAMAGED),
    ],
)
def test_a_bad_file_is_found_counted_removed_and_written_anew(
    harm: Any, fault: Fault, tmp_path: Path
) -> None:
    pool = pool_of()
    fill(pool)
    l3 = file_l3(pool, tmp_path)
    store(pool, l3)
    good = load(pool, l3)
    bad = next(path for path in files(tmp_path) if path.name.startswith(KEYS[2]))
    harm(bad)
    # The pages around it are read all the same.
    pages = load(pool, l3)
    assert [page is None for page in pages] == [False, False, True, False]
    assert counted("bad_pages_total", reason=fault.value) == 1
    others = [counted("bad_pages_total", reason=f.value) for f in Fault if f is not fault]
    assert others == [0, 0]
    assert not bad.exists()
    assert l3.batch_exists(KEYS) == 2
    assert store(pool, l3)
    assert all(torch.equal(*each) for each in zip(load(pool, l3), good, strict=True))  # type: ignore[arg-type]


def test_a_file_that_is_not_there_is_no_bad_page(tmp_path: Path) -> None:
    pool = pool_of()
    assert load(pool, file_l3(pool, tmp_path)) == [None] * len(KEYS)
    assert {counted("bad_pages_total", reason=fault.value) for fault in Fault} == {0}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "hiqcache-test", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("room", [0, 4096, 12288], ids="{} bytes left".format)
def test_on_a_full_disk_writes_fail_and_no_part_of_a_page_stays(
    room: int, small_disk: Path
) -> None:
    # A page of 3 layers and 5 tokens: 15,376 bytes, of which 12,288 fit the room.
    pool = pool_of("int8", page_size=5, heads=3, layers=6)
    assert pool.page_format.page_bytes == 15376
    l3 = file_l3(pool, small_disk)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(65536 - room))
    assert not store(pool, l3, KEYS[:1])
    assert counted("failed_writes_total") == 1
    assert files(small_disk) == [filler]
    filler.unlink()
    assert store(pool, l3, KEYS[:1])
    assert counted("failed_writes_total") == 1
    assert load(pool, l3, KEYS[:1])[0] is not None


@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
def test_a_dynamic_backend_gets_sealed_pages_and_gives_checked_ones(
    layout: str, tmp_path: Path
) -> None:
    pool = pool_of("int8-compact", layout)
    fill(pool)
    path = tmp_path / "l3.sqlite"

    def reopened() -> Any:
        return checked(pool, SqliteStorage(storage_config(pool, path=str(path)), {}))

    l3 = reopened()
    assert store(pool, l3)
    l3 = reopened()
    good = load(pool, l3)
    assert all(
        page is not None and torch.equal(page[16:], pool.get_data_page(4 * number)[16:])
        for number, page in enumerate(good)
    )
    blobs = l3.database.execute("SELECT page FROM pages").fetchall()
    assert {len(blob) for (blob,) in blobs} == {pool.page_format.page_bytes}
    for key, blob in ((KEYS[1], b"short"), (KEYS[3], bytes(pool.page_format.page_bytes))):
        l3.database.execute("UPDATE pages SET page = ? WHERE key LIKE ?", (blob, f"%{key}-%"))
    assert [page is None for page in load(pool, l3)] == [False, True, False, True]
    assert counted("bad_pages_total", reason="unreadable") == 1
    assert counted("bad_pages_total", reason="foreign") == 1


@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
def test_verification_follows_pages_through_l3(layout: str, tmp_path: Path) -> None:
    from hiqcache.errors import IntegrityError

    pool = pool_of(layout=layout, verify="full")
    slots = torch.arange(16)
    for rows in (*pool.device_k_buffers, *pool.device_v_buffers):
        rows.normal_()
    pool.backup_from_device_all_layer(None, slots, slots, "kernel")
    l3 = file_l3(pool, tmp_path)
    assert store(pool, l3)
    for number, page in enumerate(load(pool, l3)):
        pool.set_from_flat_data_page(64 + 4 * number, page)
    for layer in range(pool.layer_num):
        pool.load_to_device_per_layer(None, slots + 64, slots, layer, "kernel")
    assert pool.mismatches() == 0
    # A record that went bad in L2 gets no valid checksum in L3.
    pool.transfer.k.host[1][6, 3] ^= 1
    assert store(pool, l3, KEYS[:1])
    with pytest.raises(IntegrityError):
        pool.get_data_page(4)
    assert pool.mismatches() == 1
    assert counted("mismatches_total", of="", pool="kv") == 1


@pytest.mark.parametrize("call", ["batch_get_v1", "batch_set_v1", "batch_get_v2", "batch_set_v2"])
def test_no_call_goes_past_the_check(call: str, tmp_path: Path) -> None:
    pool = pool_of()
    with pytest.raises(NotImplementedError, match="checked copies only"):
        getattr(file_l3(pool, tmp_path), call)(KEYS, torch.arange(16))
    with pytest.raises(NotImplementedError, match="checked copies only"):
        pool.get_split_heads_page_buffer_meta(torch.arange(16), 2)
    with pytest.raises(NotImplementedError, match="not in one piece under layer_first"):
        pool_of(layout="layer_first").get_page_buffer_meta(torch.arange(16))
