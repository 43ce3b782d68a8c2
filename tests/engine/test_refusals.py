"""The last line of refusals, on real device pools: what only the buffers can tell."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def device_pool() -> Iterator[Any]:
    """Builds SGLang's own device pools in this process, on the reference platform."""
    os.environ["SGLANG_PLATFORM"] = "hiqcache_cpu"
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    def build(dtype: torch.dtype = torch.bfloat16, head_dim: int = 64, **options: Any) -> Any:
        return MHATokenToKVPool(
            size=64,
            page_size=1,
            dtype=dtype,
            head_num=3,
            head_dim=head_dim,
            layer_num=2,
            device="cpu",
            enable_memory_saver=False,
            **options,
        )

    yield build


def refusal(pool: Any, **overrides: Any) -> str:
    from hiqcache.engine.refusals import Refusal, refuse_pool

    arguments = {"layout": "page_first", "label": "kv", "drafts": 0, "l3": None, "codec": "int8"}
    info = pool.get_device_pool_infos()[0].buffer_info
    try:
        refuse_pool(info, **(arguments | overrides))
    except Refusal as refused:
        return str(refused)
    return ""


def test_a_plain_pool_is_taken(device_pool: Any) -> None:
    for layout in ("layer_first", "page_first"):
        assert refusal(device_pool(), layout=layout) == ""
        assert refusal(device_pool(torch.float16), layout=layout) == ""
    assert refusal(device_pool(v_head_dim=32)) == ""


@pytest.mark.parametrize(
    ("options", "overrides", "words"),
    [
        ({}, {"drafts": 2}, "packed draft layers in L2, got 2"),
        ({}, {"label": "draft"}, "'draft' KV pool"),
        ({}, {"label": "swa"}, "'swa' KV pool"),
        ({}, {"l3": "file"}, "L3 backend yet, got file"),
        ({}, {"layout": "page_head"}, "layer_first and page_first, got page_head"),
        ({"dtype": torch.float32}, {}, "or float16 device KV cache, got torch.float32"),
        ({"head_dim": 60}, {}, "multiple of 8, got K heads of 60"),
        ({"v_head_dim": 20}, {}, "multiple of 8, got V heads of 20"),
        ({"kv_cache_layout": "hnd"}, {}, "NHD device layout"),
    ],
)
def test_other_pools_are_refused_by_name(
    device_pool: Any, options: dict[str, Any], overrides: dict[str, Any], words: str
) -> None:
    assert words in refusal(device_pool(**options), **overrides)


def test_any_other_host_pool_is_refused() -> None:
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

    from hiqcache.engine.refusals import Refusal, refuse_foreign_pool

    with pytest.raises(Refusal, match="MLATokenToKVPoolHost, which would store"):
        refuse_foreign_pool(MLATokenToKVPoolHost, "int8")


def test_a_size_that_fits_is_named() -> None:
    from hiqcache.engine.refusals import Refusal, refuse_memory

    gib = 1 << 30
    refuse_memory(8 * 10**9, 8 * 10**9, 10 * gib)
    with pytest.raises(Refusal, match=r"8\.00 GB .* 5\.90 GB are free after the 10 GiB .* 5 or"):
        refuse_memory(8 * 10**9, 5_900_000_000, 10 * gib)
    with pytest.raises(Refusal, match="give the machine or container more memory"):
        refuse_memory(8 * 10**9, -gib, 10 * gib)
