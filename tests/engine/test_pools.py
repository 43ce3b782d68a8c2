"""The encoded pool over SGLang's own device pools, in this process: every type and shape of row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from hiqcache.capacity import by_ratio
from hiqcache.codec.catalog import codec_names
from hiqcache.codec.inputs import named_input
from hiqcache.codec.registry import get_codec
from hiqcache.config import Config
from hiqcache.geometry import Geometry
from tests.engine.pools import DEVICE_TOKENS, encoded_pool, sglang_context

pytestmark = pytest.mark.engine

LAYERS = 3
INPUTS = ("random_unit", "largest_finite", "scattered_patterns")


@dataclass(frozen=True)
class Rows:
    """What a device pool keeps for one token."""

    heads: int
    k_dim: int
    v_dim: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.heads}x{self.k_dim}+{self.v_dim}-{str(self.dtype).removeprefix('torch.')}"


SYMMETRIC = [Rows(3, 64, 64, dtype) for dtype in (torch.bfloat16, torch.float16)]
# MiMo-V2's widths, a V wider than K, and one that is no power of two.
ASYMMETRIC = [
    Rows(4, 192, 128, torch.bfloat16),
    Rows(4, 192, 128, torch.float16),
    Rows(1, 8, 576, torch.bfloat16),
    Rows(5, 40, 72, torch.float16),
]


@pytest.fixture(scope="module", autouse=True)
def context() -> Iterator[None]:
    with sglang_context():
        yield


@pytest.mark.parametrize("codec_name", codec_names())
@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
@pytest.mark.parametrize("rows", [*SYMMETRIC, *ASYMMETRIC], ids=str)
def test_rows_come_back_as_the_codec_makes_them(codec_name: str, layout: str, rows: Rows) -> None:
    pool = encoded_pool(
        Config(codec=codec_name),
        layout,
        page_size=4,
        heads=rows.heads,
        head_dim=rows.k_dim,
        v_head_dim=rows.v_dim,
        dtype=rows.dtype,
        layers=LAYERS,
    )
    codec = get_codec(codec_name)
    layouts = [
        codec.layout(side, rows.heads, dim)
        for side, dim in (("k", rows.k_dim), ("v", rows.v_dim))  # type: ignore[arg-type]
    ]

    # Sizes: what `hiqcache capacity` says, to the byte.
    geometry = Geometry("rows", LAYERS, rows.heads, rows.k_dim, rows.v_dim)
    capacity = by_ratio(geometry, codec_name, 2.0, DEVICE_TOKENS, page_size=4)
    assert pool.size == capacity.tokens
    assert pool.get_size_per_token() == capacity.bytes_per_token
    assert pool.get_ksize_per_token() == LAYERS * layouts[0].record_bytes
    assert pool.k_buffer.nbytes + pool.v_buffer.nbytes == capacity.bytes_allocated

    # Backup and restore into other slots, which hold another NaN until then.
    device, host, target = (
        torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:24]
        for seed, count in enumerate((DEVICE_TOKENS, pool.size, DEVICE_TOKENS))
    )
    sides = list(zip(layouts, (pool.device_k_buffers, pool.device_v_buffers), strict=True))
    expected = {}
    for place, (layout_of_side, buffers) in enumerate(sides):
        for layer, buffer in enumerate(buffers):
            assert buffer.dtype == rows.dtype
            name = INPUTS[(layer + place) % len(INPUTS)]
            shape = (len(device), rows.heads, layout_of_side.head_dim)
            fresh = named_input(name, shape, layer, rows.dtype)
            buffer[device] = fresh
            records = codec.encode(fresh, layout_of_side)
            expected[place, layer] = codec.decode(records, layout_of_side, dtype=rows.dtype)
    pool.backup_from_device_all_layer(None, host, device, "direct")
    untouched = torch.ones(pool.device_k_buffers[0].shape[0], dtype=torch.bool)
    untouched[target] = False
    for _, buffers in sides:
        for buffer in buffers:
            buffer.view(torch.int16).fill_(0x7FA5)
    for layer in range(LAYERS):
        pool.load_to_device_per_layer(None, host, target, layer, "direct")
    for place, (_, buffers) in enumerate(sides):
        for layer, buffer in enumerate(buffers):
            found = buffer.view(torch.int16)
            assert torch.equal(found[target], expected[place, layer].view(torch.int16))
            assert bool((found[untouched] == 0x7FA5).all())


@pytest.mark.parametrize(
    ("dtype", "label"), [(torch.bfloat16, "BF16"), (torch.float16, "FP16")], ids=str
)
def test_the_log_line_names_the_rows_type(
    dtype: torch.dtype, label: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="hiqcache.engine.host_pool"):
        encoded_pool(Config(codec="int8-compact"), "layer_first", dtype=dtype)
    # 129 slots of 2 layers, K and V: 208 bytes a record, 384 a row.
    assert f"{label} would hold {129 * 832 // 1536} tokens at 1536 bytes" in caplog.text


@pytest.mark.parametrize(
    ("codec_name", "heads", "warned"),
    [("int8", 1, True), ("int8", 3, False), ("int8-compact", 1, False), ("bf16", 1, False)],
)
def test_a_record_as_large_as_its_row_is_warned_about(
    codec_name: str, heads: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    encoded_pool(Config(codec=codec_name), "layer_first", heads=heads, head_dim=64)
    said = "int8 saves nothing for 1 KV heads of 64" in caplog.text
    assert said == warned


def test_figures_say_whose_they_are_and_what_rows_would_take() -> None:
    from prometheus_client import REGISTRY
    from sglang.srt.runtime_context import get_parallel

    with get_parallel().override(dp_rank=2):
        encoded_pool(Config(codec="int8-compact"), "layer_first")
    labels = {"pool": "kv", "tp_rank": "0", "pp_rank": "0", "dp_rank": "2"}
    for name, size in (("bytes_per_token", 832), ("unencoded_bytes_per_token", 1536)):
        assert REGISTRY.get_sample_value(f"hiqcache_engine_{name}", labels) == size


def test_rows_that_exact_cannot_keep_are_counted() -> None:
    from prometheus_client import REGISTRY

    from hiqcache.engine.families import rank_labels

    pool = encoded_pool(Config(codec="exact"), "layer_first", heads=3, head_dim=64, layers=LAYERS)
    labels = {"pool": "kv", **rank_labels()}
    slots = torch.arange(1, 9)

    def counted() -> float | None:
        name = "hiqcache_engine_inexact_rows_total"
        return REGISTRY.get_sample_value(name, labels)

    assert counted() == 0
    # One size: every value has the exponent of its group.
    for buffer in (*pool.device_k_buffers, *pool.device_v_buffers):
        buffer.fill_(1.5)
    pool.backup_from_device_all_layer(None, slots, slots, "direct")
    assert counted() == 0
    # All sizes there are, evenly: no base fits a group, and there is room for few that do not.
    generator = torch.Generator().manual_seed(1)
    for buffer in pool.device_k_buffers:
        exponents = torch.randint(-120, 120, buffer.shape, generator=generator)
        buffer.copy_(torch.exp2(exponents.float()))
    pool.backup_from_device_all_layer(None, slots, slots, "direct")
    assert counted() == len(slots) * LAYERS
