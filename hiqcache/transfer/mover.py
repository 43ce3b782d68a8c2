"""What carries whole records between GPU staging and host buffers: SGLang's own kernels."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

import torch

from hiqcache.errors import UsageError

Pair = tuple[torch.Tensor, torch.Tensor]
Layers = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Route:
    """The buffers between which a mover is to copy, K and V of each.

    `host` and `outgoing` have one `[slots, record_bytes]` uint8 tensor a layer; `incoming` is
    one tensor for all layers.
    """

    host: tuple[Layers, Layers]
    outgoing: tuple[Layers, Layers]
    incoming: Pair


class Mover(abc.ABC):
    """Enqueues copies of whole records on the current stream, without waiting for them.

    Built when the server starts: whatever it compiles, it compiles then.
    """

    name: str

    def __init__(self, route: Route) -> None:
        self.route = route

    @abc.abstractmethod
    def to_host(self, host_slots: torch.Tensor, order: torch.Tensor) -> None:
        """Copy all layers of the outgoing staging, slots `order`, to `host_slots`."""

    @abc.abstractmethod
    def to_staging(self, host_slots: torch.Tensor, order: torch.Tensor, layer: int) -> None:
        """Copy one layer of the host buffers, `host_slots`, to slots `order` of incoming."""


class JitMover(Mover):
    """SGLang's HiCache kernels, compiled when the server starts.

    They take records of 128-byte multiples on every GPU, and of 16-byte multiples where the
    tensor memory accelerator does the copying (compute capability 9.0).
    """

    def __init__(self, route: Route, hicache: Any, *, tma: bool) -> None:
        super().__init__(route)
        self.name = "sglang jit tma" if tma else "sglang jit"
        # A page size that does not tile its chunks keeps SGLang from choosing the TMA kernel.
        self._page_size = None if tma else 1
        self._hicache = hicache
        device = route.incoming[0].device
        self._host, self._outgoing = (
            tuple(_addresses(layers, device) for layers in side)
            for side in (route.host, route.outgoing)
        )

    def to_host(self, host_slots: torch.Tensor, order: torch.Tensor) -> None:
        (k_host, v_host), (k_from, v_from) = self._host, self._outgoing
        self._hicache.transfer_hicache_all_layer(
            k_ptr_dst=k_host,
            v_ptr_dst=v_host,
            indices_dst=host_slots,
            k_ptr_src=k_from,
            v_ptr_src=v_from,
            indices_src=order,
            kv_cache_dst_stride_bytes=self.route.host[0][0].stride(0),
            kv_cache_src_stride_bytes=self.route.outgoing[0][0].stride(0),
            element_size=self.route.incoming[0].shape[1],
            page_size=self._page_size,
        )

    def to_staging(self, host_slots: torch.Tensor, order: torch.Tensor, layer: int) -> None:
        self._hicache.transfer_hicache_one_layer(
            k_cache_dst=self.route.incoming[0],
            v_cache_dst=self.route.incoming[1],
            indices_dst=order,
            k_cache_src=self.route.host[0][layer],
            v_cache_src=self.route.host[1][layer],
            indices_src=host_slots,
            element_dim=self.route.incoming[0].shape[1],
            page_size=self._page_size,
        )


class AotMover(Mover):
    """The kernels that `sgl_kernel` ships compiled: any GPU, records of 8-byte multiples."""

    name = "sgl_kernel"

    def __init__(self, route: Route, kvcacheio: Any) -> None:
        super().__init__(route)
        self._kvcacheio = kvcacheio
        device = route.incoming[0].device
        self._host, self._outgoing = (
            tuple(_addresses(layers, device) for layers in side)
            for side in (route.host, route.outgoing)
        )
        self._record_bytes = route.incoming[0].shape[1]
        self._host_stride = route.host[0][0].stride(0)

    def to_host(self, host_slots: torch.Tensor, order: torch.Tensor) -> None:
        common: dict[str, Any] = {
            "src_k_layers": self._outgoing[0],
            "src_v_layers": self._outgoing[1],
            "src_indices": order,
            "dst_indices": host_slots,
            "item_size": self._record_bytes,
            "num_layers": len(self.route.host[0]),
        }
        if self._host_stride == self._record_bytes:
            self._kvcacheio.transfer_kv_all_layer(
                dst_k_layers=self._host[0], dst_v_layers=self._host[1], **common
            )
        else:
            self._kvcacheio.transfer_kv_all_layer_lf_pf(
                dst_k=self.route.host[0][0],
                dst_v=self.route.host[1][0],
                dst_layout_dim=self._host_stride,
                **common,
            )

    def to_staging(self, host_slots: torch.Tensor, order: torch.Tensor, layer: int) -> None:
        common: dict[str, Any] = {
            "src_k": self.route.host[0][layer],
            "src_v": self.route.host[1][layer],
            "dst_k": self.route.incoming[0],
            "dst_v": self.route.incoming[1],
            "src_indices": host_slots,
            "dst_indices": order,
            "item_size": self._record_bytes,
        }
        if self._host_stride == self._record_bytes:
            self._kvcacheio.transfer_kv_per_layer(**common)
        else:
            # The view already starts at the layer, so that it is layer 0 of itself.
            self._kvcacheio.transfer_kv_per_layer_pf_lf(
                layer_id=0, src_layout_dim=self._host_stride, **common
            )


def sglang_mover(route: Route) -> Mover:
    """The mover of the installed SGLang that takes these records.

    Raises
    ------
    UsageError
        SGLang is missing, or K and V records differ in size.
    """
    if route.incoming[0].shape[1] != route.incoming[1].shape[1]:
        raise UsageError(
            f"transfer staged: SGLang moves K and V records of one size, got "
            f"{route.incoming[0].shape[1]} and {route.incoming[1].shape[1]} bytes; use fused or "
            f"torch"
        )
    # The package imports SGLang in `engine` alone; this is the one exception, and a late one:
    # the other transfers work without it.
    try:
        from sglang.kernels.ops.kvcache import hicache
    except ImportError as error:
        raise UsageError(
            f"transfer staged needs SGLang's own mover ({error}); use fused or torch"
        ) from None
    record_bytes = route.incoming[0].shape[1]
    if hicache.can_use_hicache_jit_kernel(element_size=record_bytes, page_size=1):
        return JitMover(route, hicache, tma=False)
    if hicache.can_use_hicache_jit_kernel(element_size=record_bytes):
        return JitMover(route, hicache, tma=True)
    from sgl_kernel import kvcacheio  # type: ignore[import-untyped]

    return AotMover(route, kvcacheio)


def _addresses(layers: Layers, device: torch.device) -> torch.Tensor:
    addresses = [layer.data_ptr() for layer in layers]
    return torch.tensor(addresses, dtype=torch.uint64, device=device)
