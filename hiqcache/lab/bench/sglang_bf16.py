"""SGLang's own BF16 transfer, called as its host pool calls it: what HiQCache is measured by."""

from __future__ import annotations

from typing import Any

import torch

from hiqcache.codec.registry import get_codec
from hiqcache.lab.bench.pool import BenchPool
from hiqcache.transfer.base import Side

STAGED_PAGES = 64
"""What SGLang stages at once when it backs up into page_first."""


class SglangBf16:
    """The kernels of SGLang's MHA host pool over the bench's buffers.

    Attributes
    ----------
    name
        Which kernels the page size and the layout lead SGLang to.
    staging_bytes
        GPU memory that SGLang takes for it.
    """

    def __init__(self, pool: BenchPool, layout: str, page_size: int, hicache: Any) -> None:
        self._hicache = hicache
        self._layout, self._page_size = layout, page_size
        self._rows = pool.rows
        codec = get_codec("bf16")
        self._k, self._v = pool.sides(codec, layout)
        self._buffers = tuple(
            pool.records(host, self._k.layout, layout).view(torch.bfloat16) for host in pool.host
        )
        heads, head_dim = pool.geometry.heads, pool.geometry.head_dim
        self._dim = heads * head_dim
        self._bytes = self._dim * 2
        tma = hicache.use_hicache_tma_kernel(
            element_size=self._bytes, block_quota=hicache.TMA_BLOCK_QUOTA, page_size=page_size
        )
        self.name = "tma" if tma else "register"
        device = pool.rows[0].device
        self._host_tables = _tables(self._k.host, self._v.host, device)
        self._row_tables = _tables(self._k.device, self._v.device, device)
        self._staging: tuple[torch.Tensor, ...] = ()
        if layout == "page_first":
            shape = (STAGED_PAGES * page_size, pool.geometry.layers, heads, head_dim)
            self._staging = tuple(
                torch.empty(shape, dtype=torch.bfloat16, device=device) for _ in range(2)
            )
        self.staging_bytes = sum(tensor.nbytes for tensor in self._staging)
        self._seen: torch.Tensor | None = None
        self._seen_on_cpu = torch.empty(0, dtype=torch.int64)

    def backup(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
        if self._staging:
            shape = (-1, len(self._k.host), *self._rows[0].shape[2:])
            self._hicache.transfer_hicache_all_layer_staged_lf_pf(
                k_ptr_src=self._row_tables[0],
                v_ptr_src=self._row_tables[1],
                src_indices=device_slots,
                dst_indices=self._on_cpu(host_slots),
                staging_k=self._staging[0],
                staging_v=self._staging[1],
                dst_k=self._buffers[0].view(shape),
                dst_v=self._buffers[1].view(shape),
                page_size=self._page_size,
            )
            return
        self._hicache.transfer_hicache_all_layer(
            k_ptr_dst=self._host_tables[0],
            v_ptr_dst=self._host_tables[1],
            indices_dst=host_slots,
            k_ptr_src=self._row_tables[0],
            v_ptr_src=self._row_tables[1],
            indices_src=device_slots,
            kv_cache_dst_stride_bytes=self._bytes,
            kv_cache_src_stride_bytes=self._bytes,
            element_size=self._bytes,
            page_size=self._page_size,
        )

    def _on_cpu(self, slots: torch.Tensor) -> torch.Tensor:
        """SGLang's staged backup takes the host's own slots; the copy is not part of its work."""
        if self._seen is not slots:
            self._seen, self._seen_on_cpu = slots, slots.cpu()
        return self._seen_on_cpu

    def restore_all(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
        for layer in range(len(self._k.host)):
            self._restore(device_slots, host_slots, layer)

    def _restore(self, device_slots: torch.Tensor, host_slots: torch.Tensor, layer: int) -> None:
        self._hicache.transfer_hicache_one_layer(
            k_cache_dst=_values(self._k, layer),
            v_cache_dst=_values(self._v, layer),
            indices_dst=device_slots,
            k_cache_src=self._k.host[layer].view(torch.bfloat16),
            v_cache_src=self._v.host[layer].view(torch.bfloat16),
            indices_src=host_slots,
            element_dim=self._dim,
            page_size=self._page_size,
        )


def sglang_hicache() -> Any | None:
    """SGLang's module of HiCache kernels; None where SGLang is not installed."""
    try:
        from sglang.kernels.ops.kvcache import hicache
    except ImportError:
        return None
    return hicache


def _values(side: Side, layer: int) -> torch.Tensor:
    return side.device[layer].flatten(1)


def _tables(
    k: tuple[torch.Tensor, ...], v: tuple[torch.Tensor, ...], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    k_table, v_table = (
        torch.tensor([layer.data_ptr() for layer in side], dtype=torch.uint64, device=device)
        for side in (k, v)
    )
    return k_table, v_table
