"""A pool's buffers take the bytes that were asked for: nothing rounds them up."""

from __future__ import annotations

import mmap
from typing import Any

import pytest
import torch

from tests.engine.conftest import GPU
from tests.engine.probe.hiqcache_probe import shared_memory

pytestmark = pytest.mark.engine

RECORD = 208
LAYERS = 30


@pytest.fixture(scope="module")
def allocate() -> Any:
    """The pool's own allocation, without a model around it."""
    from sglang.srt.mem_cache.pool_host.common import HostTensorAllocator

    from hiqcache.engine.host_pool import EncodedHostPool

    def build(layout: str, tokens: int) -> torch.Tensor:
        pool = EncodedHostPool.__new__(EncodedHostPool)
        pool.layer_num, pool.size, pool.page_size, pool.layout = LAYERS, tokens, 1, layout
        pool._transfer_device = torch.device("cuda" if GPU else "cpu")
        pool.device, pool.pin_memory, pool.allocator = "cpu", GPU, HostTensorAllocator()
        return pool._allocate(RECORD)

    return build


@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
# 2.1, 33.6, 50.0 and 134.3 MB: just above 2, 32 and 128 MiB, and halfway between two powers.
@pytest.mark.parametrize("tokens", [337, 5_378, 8_012, 21_510])
def test_a_size_that_is_no_power_of_two_is_not_rounded_up(
    allocate: Any, layout: str, tokens: int
) -> None:
    before = shared_memory()
    buffer = allocate(layout, tokens)
    asked = tokens * LAYERS * RECORD
    assert buffer.nbytes == asked
    assert 0 <= shared_memory() - before - asked <= mmap.PAGESIZE
    if GPU:
        pinned = buffer._sglang_cuda_host_registered_ranges
        assert sum(size for _, size in pinned) == asked
