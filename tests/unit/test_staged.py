"""The `staged` transfer against the reference, under Triton's interpreter."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

from hiqcache.errors import UsageError
from hiqcache.transfer import mover as movers
from hiqcache.transfer.mover import AotMover, JitMover, Route, sglang_mover
from tests.unit.interpreter import run_interpreted


def test_staged_under_the_interpreter() -> None:
    run_interpreted("staged_cases.py", at_least=10)


def test_records_of_two_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match="one size, got 208 and 256 bytes; use fused"):
        sglang_mover(_route(208, 256))


@pytest.mark.parametrize(
    ("takes", "kind", "name"),
    [
        (lambda size, page: True, JitMover, "sglang jit"),
        (lambda size, page: page is None, JitMover, "sglang jit tma"),
        (lambda size, page: False, AotMover, "sgl_kernel"),
    ],
    ids=["register", "tma", "aot"],
)
def test_the_mover_is_one_that_takes_the_records(
    monkeypatch: pytest.MonkeyPatch, takes: Any, kind: type[movers.Mover], name: str
) -> None:
    def can_use(*, element_size: int, page_size: int | None = None) -> bool:
        assert element_size == 1040
        return bool(takes(element_size, page_size))

    hicache = types.SimpleNamespace(can_use_hicache_jit_kernel=can_use)
    package = types.SimpleNamespace(hicache=hicache)
    monkeypatch.setitem(sys.modules, "sglang.kernels.ops.kvcache", package)
    kernel = types.SimpleNamespace(kvcacheio=types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, "sgl_kernel", kernel)
    mover = sglang_mover(_route(1040, 1040))
    assert type(mover) is kind and mover.name == name


def _route(k_bytes: int, v_bytes: int) -> Route:
    k, v = (torch.zeros((4, size), dtype=torch.uint8) for size in (k_bytes, v_bytes))
    return Route(host=((k,), (v,)), outgoing=((k,), (v,)), incoming=(k, v))
