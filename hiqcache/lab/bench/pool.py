"""Device rows, registered host memory and random slots: for the benchmarks that run on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from hiqcache.codec.base import Codec
from hiqcache.codec.record import RecordLayout
from hiqcache.codec.registry import get_codec
from hiqcache.errors import HiQCacheError
from hiqcache.lab.bench.shape import Shape
from hiqcache.transfer.base import Side

PAGE_BYTES = 4096
LAYOUTS = ("layer_first", "page_first")


@dataclass(frozen=True)
class BenchPool:
    """Rows on the GPU and the host memory that all codecs take turns in.

    `rows` is `[layers, slots, heads, head_dim]` bf16 for K and for V; `host` is uint8, as large
    as the largest record needs for as many slots.
    """

    geometry: Shape
    slots: int
    rows: tuple[torch.Tensor, torch.Tensor]
    host: tuple[torch.Tensor, torch.Tensor]

    def sides(self, codec: Codec, layout: str) -> tuple[Side, Side]:
        """K and V of a pool with this codec's records; what host memory held is lost."""
        k, v = (
            Side(
                record, tuple(rows.unbind(0)), per_layer(self.records(host, record, layout), layout)
            )
            for record, rows, host in zip(self._layouts(codec), self.rows, self.host, strict=True)
        )
        return k, v

    def records(self, host: torch.Tensor, record: RecordLayout, layout: str) -> torch.Tensor:
        """A buffer as the pool would lay it out, from the start of `host`."""
        layers = self.geometry.layers
        outer = (layers, self.slots) if layout == "layer_first" else (self.slots, layers)
        size = layers * self.slots * record.record_bytes
        return host[:size].view(*outer, record.record_bytes)

    def _layouts(self, codec: Codec) -> tuple[RecordLayout, RecordLayout]:
        heads, head_dim = self.geometry.heads, self.geometry.head_dim
        return codec.layout("k", heads, head_dim), codec.layout("v", heads, head_dim)

    def narrowed(self, geometry: Shape, rows: tuple[torch.Tensor, torch.Tensor]) -> BenchPool:
        """The same host memory under other rows."""
        return replace(self, geometry=geometry, rows=rows)


def per_layer(buffer: torch.Tensor, layout: str) -> tuple[torch.Tensor, ...]:
    by_layer = buffer.transpose(0, 1) if layout == "page_first" else buffer
    return tuple(by_layer.unbind(0))


@contextmanager
def bench_pool(geometry: Shape, slots: int, codecs: list[str]) -> Iterator[BenchPool]:
    """A pool of `slots` on both sides, random rows, host memory registered and zero."""
    shape = (geometry.layers, slots, geometry.heads, geometry.head_dim)
    rows = tuple(torch.empty(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    for side in rows:
        for layer in side:
            layer.normal_()
    largest = max(
        get_codec(name).layout("k", geometry.heads, geometry.head_dim).record_bytes
        for name in codecs
    )
    size = geometry.layers * slots * largest
    host = [registered(size) for _ in range(2)]
    try:
        yield BenchPool(geometry, slots, (rows[0], rows[1]), (host[0], host[1]))
    finally:
        torch.cuda.synchronize()
        for buffer in host:
            _runtime().cudaHostUnregister(buffer.data_ptr())


def registered(size: int) -> torch.Tensor:
    """Zeros that start on a page and that kernels reach, as SGLang's host pool has them."""
    raw = torch.zeros(size + PAGE_BYTES, dtype=torch.uint8)
    buffer = raw[-raw.data_ptr() % PAGE_BYTES :][:size]
    error = int(_runtime().cudaHostRegister(buffer.data_ptr(), size, 0))
    if error:
        raise HiQCacheError(f"cudaHostRegister refused {size / 2**30:.1f} GiB (error {error})")
    return buffer


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def random_slots(slots: int, tokens: int, page_size: int, seed: int) -> torch.Tensor:
    """`[tokens]` int64 on the GPU: whole pages in random order, tokens in order within them."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    pages = torch.randperm(slots // page_size, generator=generator, device="cuda")
    pages = pages[: -(-tokens // page_size)]
    within = torch.arange(page_size, device="cuda")
    return (pages[:, None] * page_size + within).flatten()[:tokens].contiguous()
