"""The last line of refusals, on real device pools: what only the buffers can tell."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
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

    arguments = {"layout": "page_first", "label": "kv", "drafts": 0, "codec": "int8"}
    info = pool.get_device_pool_infos()[0].buffer_info
    try:
        refuse_pool(info, **(arguments | overrides))
    except Refusal as refused:
        return str(refused)
    return ""


def test_a_plain_bfloat16_pool_is_taken(device_pool: Any) -> None:
    for layout in ("layer_first", "page_first"):
        assert refusal(device_pool(), layout=layout) == ""
    assert refusal(device_pool(v_head_dim=32)) == ""


@pytest.mark.parametrize(
    ("options", "overrides", "words"),
    [
        ({}, {"drafts": 2}, "packed draft layers in L2, got 2"),
        ({}, {"label": "draft"}, "'draft' KV pool"),
        ({}, {"label": "swa"}, "'swa' KV pool"),
        ({}, {"layout": "page_head"}, "layer_first and page_first, got page_head"),
        ({"dtype": torch.float16}, {}, "bfloat16 device KV cache, got torch.float16"),
        ({"head_dim": 60}, {}, "multiple of 8, got K heads of 60"),
        ({"v_head_dim": 20}, {}, "multiple of 8, got V heads of 20"),
        ({"kv_cache_layout": "hnd"}, {}, "NHD device layout"),
    ],
)
def test_other_pools_are_refused_by_name(
    device_pool: Any, options: dict[str, Any], overrides: dict[str, Any], words: str
) -> None:
    assert words in refusal(device_pool(**options), **overrides)


@pytest.mark.parametrize(
    ("backend", "extra", "words"),
    [
        ("mooncake", None, "backend file and dynamic, got mooncake"),
        ("hf3fs", "{}", "backend file and dynamic, got hf3fs"),
        ("sim", None, "backend file and dynamic, got sim"),
        ("dynamic", '{"interface_v1": 1}', "got interface_v1 in .* set it to 0"),
        ("dynamic", "{interface", "expected JSON, or @ and a file of options"),
        ("dynamic", "@missing.json", "expected JSON, or @ and a file of options"),
    ],
)
def test_other_l3_backends_are_refused_by_name(backend: str, extra: str | None, words: str) -> None:
    from hiqcache.engine.refusals import Refusal, refuse_l3

    with pytest.raises(Refusal, match=words):
        refuse_l3(backend, extra, "int8")


def test_tested_l3_backends_are_taken() -> None:
    from hiqcache.engine.refusals import refuse_l3

    refuse_l3("file", None, "int8")
    refuse_l3("file", '{"prefetch_threshold": 16}', "int8")
    refuse_l3("dynamic", '{"module_path": "a", "class_name": "B", "backend_name": "c"}', "int8")


def test_verification_is_refused_over_pipeline_stages() -> None:
    from hiqcache.engine.refusals import Refusal, refuse_verification

    refuse_verification(SimpleNamespace(pp_size=2), "off")
    refuse_verification(SimpleNamespace(pp_size=1), "full")
    with pytest.raises(Refusal, match="HIQCACHE_VERIFY=full supports one .* got --pp-size 2"):
        refuse_verification(SimpleNamespace(pp_size=2), "full")


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
