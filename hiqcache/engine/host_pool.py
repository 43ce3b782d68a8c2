"""A host pool that holds records instead of BF16 rows, under SGLang's unmodified cache.

A stack has one for each MHA or GQA pool of the device: `kv` alone, or beside it `swa` (sliding
windows), `draft` and `draft_swa` (layers of a draft model).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from sglang.srt.mem_cache.device_pool_info import MHABufferInfo
from sglang.srt.mem_cache.pool_host.base import (
    HICACHE_HOST_MEMORY_RESERVE_BYTES,
    host_memory_budget_bytes,
)
from sglang.srt.mem_cache.pool_host.common import ALLOC_MEMORY_FUNCS, HostTensorAllocator
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.runtime_context import get_memory

from hiqcache.codec.record import RecordLayout
from hiqcache.codec.registry import get_codec
from hiqcache.codec.row import row_type
from hiqcache.config import FUSED, Config
from hiqcache.engine.metrics import PoolMetrics
from hiqcache.engine.options import refuse_l3
from hiqcache.engine.progress import Progress
from hiqcache.engine.refusals import refuse_memory, refuse_pool
from hiqcache.engine.stop import fail_closed
from hiqcache.engine.stored_pages import StoredPages
from hiqcache.transfer.base import Side
from hiqcache.transfer.proof import prove
from hiqcache.transfer.registry import choose_transfer, make_verification

logger = logging.getLogger(__name__)


class EncodedHostPool(StoredPages, MHATokenToKVPoolHost):  # type: ignore[misc]  # SGLang ships no types
    """SGLang's MHA host pool with records of a codec as its storage.

    Every byte between L1 and L2 goes through `backup_from_device_all_layer` and
    `load_to_device_per_layer`; slots, eviction and sizing stay SGLang's. K and V have a
    buffer each, uint8:

    - `layer_first`: `[layers, size, record_bytes]`
    - `page_first`: `[size, layers, record_bytes]`

    The layers of drafts that are packed into the pool come behind the model's in the buffers, as
    SGLang numbers them, and before them in the transfer, which carries layers in its own order:
    SGLang asks for a draft's layer beside the model's first ones.
    """

    config: ClassVar[Config] = Config()
    """Set once by the plugin, before SGLang builds a pool."""
    shares: ClassVar[Mapping[str, float]] = {}
    """Decimal gigabytes by pool, set before SGLang builds a stack under `--hicache-size`."""

    def __init__(
        self,
        buffer_info: MHABufferInfo,
        host_to_device_ratio: float,
        host_size: float,
        page_size: int,
        layout: str,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        with fail_closed():
            codec = self.config.codec
            assert codec is not None, "the plugin hooks this pool only when a codec is set"
            label = kwargs.get("pool_label", "kv")
            refuse_pool(buffer_info, layout=layout, label=label, codec=codec)
            # SGLang's own metrics call the pool of full attention `kv` beside `swa` too.
            self.name = "kv" if label == "full" else label
            memory = get_memory()
            if memory.hicache_storage_backend is not None:
                refuse_l3(
                    memory.hicache_storage_backend,
                    memory.hicache_storage_backend_extra_config,
                    codec,
                )
            self.codec = get_codec(codec)
            heads = buffer_info.head_num
            self.k_layout = self.codec.layout("k", heads, buffer_info.head_dim)
            self.v_layout = self.codec.layout("v", heads, buffer_info.v_head_dim)
            size = self.shares.get(self.name, host_size) if host_size > 0 else host_size
            super().__init__(
                buffer_info, host_to_device_ratio, size, page_size, layout, *args, **kwargs
            )

    # -- sizing -----------------------------------------------------------------------------

    def get_size_per_token(self) -> int:
        layers: int = self.layer_num
        return layers * (self.k_layout.record_bytes + self.v_layout.record_bytes)

    @property
    def unencoded_bytes_per_token(self) -> int:
        """What SGLang's own pool would take: the rows as L1 holds them."""
        size: int = super().get_size_per_token()
        return size

    def get_ksize_per_token(self) -> int:
        layers: int = self.layer_num
        return layers * self.k_layout.record_bytes

    def _allocate_host_buffer(self) -> None:
        # A request of 0 bytes reads the budget without booking it; the parent books it.
        refuse_memory(
            self.size * self.size_per_token,
            host_memory_budget_bytes(0),
            HICACHE_HOST_MEMORY_RESERVE_BYTES,
        )
        super()._allocate_host_buffer()

    # -- buffers ----------------------------------------------------------------------------

    def init_kv_buffer(self) -> tuple[torch.Tensor, torch.Tensor]:
        # There is nobody to pin for when L1 is in host memory too.
        if self._transfer_device.type == "cpu":
            self.pin_memory: bool = False
        # Two anonymous mappings, so zero from the start: a record's padding is zero and stays
        # so, since no transfer writes it.
        return self._allocate(self.k_layout.record_bytes), self._allocate(
            self.v_layout.record_bytes
        )

    def _allocate(self, record_bytes: int) -> torch.Tensor:
        outer = (self.layer_num, self.size)
        page_bytes = None
        if self.layout == "page_first":
            outer = (self.size, self.layer_num)
            # SGLang registers a large buffer in pieces; a page must not straddle two.
            page_bytes = self.page_size * self.layer_num * record_bytes
        allocate = ALLOC_MEMORY_FUNCS[self._transfer_device.type]
        buffer: torch.Tensor = allocate(
            (*outer, record_bytes),
            dtype=torch.uint8,
            device=self.device,
            pin_memory=self.pin_memory,
            allocator=self.allocator,
            registration_granularity_bytes=page_bytes,
        )
        if type(self.allocator) is not HostTensorAllocator:
            # Memory of a store's own, such as Mooncake's, is what it was before.
            buffer.zero_()
        return buffer

    def _per_layer(self, buffer: torch.Tensor) -> tuple[torch.Tensor, ...]:
        by_layer = buffer.transpose(0, 1) if self.layout == "page_first" else buffer
        return tuple(by_layer.unbind(0))

    def _initialize_transfer_views(
        self, buffer_info: MHABufferInfo, write_back_staging: Any
    ) -> None:
        # What SGLang reads of a pool: no staging of its own, no kernels of its own.
        self.can_use_jit = False
        self.can_use_write_back_jit = False
        self.staging_page_capacity = self.staging_token_capacity = 0
        self.staging_k_buffer = self.staging_v_buffer = None
        buffers = (self.k_buffer, self.v_buffer)
        transfer, why = choose_transfer(self.config.transfer, self._transfer_device, buffers)
        k = self._side(self.k_layout, self.device_k_buffers, self.k_buffer)
        v = self._side(self.v_layout, self.device_v_buffers, self.v_buffer)
        self.transfer = transfer(self.codec, k, v, self.config.programs)
        self.verification = make_verification(self.config.verify, self.transfer)
        # SGLang builds its pools before it says that it is ready: no kernel compiles in traffic.
        self.transfer.warm_up()
        if self.transfer.name == FUSED:
            prove(self.transfer)
        if self.verification is not None:
            self.verification.warm_up()
        self.progress = Progress(self.layer_num)
        self.metrics = PoolMetrics(self)
        self._announce(why)

    def _side(
        self, layout: RecordLayout, device: tuple[torch.Tensor, ...], buffer: torch.Tensor
    ) -> Side:
        model = self.target_layer_num
        host = self._per_layer(buffer)
        return Side(layout, device[model:] + device[:model], host[model:] + host[:model])

    @property
    def drafts(self) -> int:
        """Layers of draft models that are packed into this pool."""
        packed: int = self.layer_num - self.target_layer_num
        return packed

    @property
    def staging_bytes(self) -> int:
        """Device memory that moving records takes beside L1."""
        verification = self.verification
        return self.transfer.device_bytes + (verification.device_bytes if verification else 0)

    def _announce(self, why: str) -> None:
        unencoded = self.unencoded_bytes_per_token
        budget = self.size * self.size_per_token
        logger.info(
            "HiQCache: codec=%s pool=%s transfer=%s (%s) layout=%s page_size=%d layers=%d "
            "draft_layers=%d bytes_per_token=%d l2_tokens=%d l2_bytes=%d staging_bytes=%d "
            "verify=%s; %s would hold %d tokens at %d bytes in the same memory",
            self.codec.name,
            self.name,
            self.transfer.name,
            why,
            self.layout,
            self.page_size,
            self.target_layer_num,
            self.drafts,
            self.size_per_token,
            self.size,
            budget,
            self.staging_bytes,
            self.config.verify,
            row_type(self.dtype).label,
            budget // unencoded,
            unencoded,
        )
        if self.codec.lossy and self.size_per_token >= unencoded:
            # One head of 64: 66 bytes of values and scale, padded to the 128 of its BF16 row.
            logger.warning(
                "HiQCache: %s saves nothing for %d KV heads of %d on one rank: its records are "
                "padded to the size of the rows; HIQCACHE_CODEC=int8-compact is not",
                self.codec.name,
                self.k_layout.heads,
                self.k_layout.head_dim,
            )

    # -- the two directions -----------------------------------------------------------------

    def backup_from_device_all_layer(
        self,
        device_pool: Any,
        host_indices: torch.Tensor,
        device_indices: torch.Tensor,
        io_backend: str,
    ) -> None:
        with self.metrics.backup(len(host_indices)):
            self.transfer.backup(device_indices, host_indices)
            if self.verification is not None:
                self.verification.after_backup(host_indices)

    def load_to_device_per_layer(
        self,
        device_pool: Any,
        host_indices: torch.Tensor,
        device_indices: torch.Tensor,
        layer_id: int,
        io_backend: str,
        *,
        is_draft: bool = False,
    ) -> None:
        # SGLang counts layers up to the longest pool of a group; those past ours are not ours.
        if 0 <= layer_id < self.layer_num:
            first, last = self.progress.ask(device_indices, host_indices)
            with self.metrics.restore(len(host_indices), first=first, last=last):
                if first:
                    self.transfer.begin_restore(device_indices, host_indices)
                place = (layer_id + self.drafts) % self.layer_num
                self.transfer.restore(device_indices, host_indices, place)
                if self.verification is not None:
                    self.verification.after_restore(host_indices, place)

    def mismatches(self) -> int:
        """Tokens and layers read from L2 so far that `HIQCACHE_VERIFY` found not as put there."""
        found = 0 if self.verification is None else self.verification.mismatches()
        self.metrics.mismatches(found)
        return found
