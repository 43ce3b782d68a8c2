"""Pages of L2 as L3 stores them, as copies or by address: a part of the host pool."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from hiqcache.codec.page import HEADER_BYTES, PageFormat
from hiqcache.engine.l3_metrics import L3Metrics


class StoredPages:
    """What SGLang's L3 asks of a pool, for the records that `EncodedHostPool` holds."""

    if TYPE_CHECKING:  # what is the pool's own

        def __getattr__(self, name: str) -> Any: ...

    @property
    def storage_format_tag(self) -> str:
        """Names the bytes of a page; SGLang puts it into the keys that L3 stores pages under.

        For SmolLM2-135M at page size 16: `hiqcache-int8-r1-bfloat16-30x3x64.64-p16-page_first`.
        What differs in codec, record, rows, pool, drafts, geometry or layout is another key, and
        so a miss.
        """
        rows = str(self.dtype).removeprefix("torch.")
        k, v = self.k_layout, self.v_layout
        pool = "" if self.name == "kv" else f"{self.name}-"
        layers = f"{self.target_layer_num}" + (f"+{self.drafts}" if self.drafts else "")
        return (
            f"hiqcache-{self.codec.name}-r{self.codec.entry.record_version}-{rows}-{pool}"
            f"{layers}x{k.heads}x{k.head_dim}.{v.head_dim}-p{self.page_size}-{self.layout}"
        )

    @property
    def page_format(self) -> PageFormat:
        return PageFormat(self.storage_format_tag, self.page_size * self.size_per_token)

    @cached_property
    def l3_metrics(self) -> L3Metrics:
        # Once a pool, however often a backend is attached: names are registered once a process.
        return L3Metrics(self.metrics.rank, self.page_format.page_bytes)

    def get_data_page(self, index: int | torch.Tensor, flat: bool = True) -> torch.Tensor:
        """A copy of the page that starts at slot `index`, with an empty header before it."""
        index = int(index)
        if self.verification is not None:
            self.verification.require(torch.arange(index, index + self.page_size))
        page = self.get_dummy_flat_data_page()
        for part, records in self._page_parts(page, index):
            part.copy_(records)
        return page

    def get_dummy_flat_data_page(self) -> torch.Tensor:
        return torch.zeros(self.page_format.page_bytes, dtype=torch.uint8)

    def set_from_flat_data_page(self, index: int | torch.Tensor, data_page: torch.Tensor) -> None:
        """Write a checked page's records to the slots from `index` on."""
        index = int(index)
        for part, records in self._page_parts(data_page, index):
            records.copy_(part)
        if self.verification is not None:
            self.verification.adopt(torch.arange(index, index + self.page_size))

    def _page_parts(
        self, page: torch.Tensor, index: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """K's and V's stretch of a flat page, each shaped like the records it stands for."""
        begin = HEADER_BYTES
        slots = slice(index, index + self.page_size)
        for buffer in (self.k_buffer, self.v_buffer):
            records = buffer[slots] if self.layout == "page_first" else buffer[:, slots]
            part = page[begin : begin + records.numel()]
            begin += records.numel()
            yield part.view(records.shape), records

    @cached_property
    def page_headers(self) -> torch.Tensor:
        """`[pages, 2, 16]`: a header each for K and V of a page, beside the records of L2.

        A store that takes L2's own memory stores header and records as one object.
        """
        return torch.zeros((self.page_num, 2, HEADER_BYTES), dtype=torch.uint8)

    def get_hybrid_pool_buffer(self) -> list[torch.Tensor]:
        """What SGLang registers with such a store."""
        return [self.k_buffer, self.v_buffer, self.page_headers]

    def get_page_buffer_meta(
        self, indices: torch.Tensor
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Addresses and sizes of the objects of whole pages, K before V, each header and records.

        Parameters
        ----------
        indices
            Slots, those of a page one after the other.
        """
        if self.layout != "page_first":
            raise NotImplementedError(f"HiQCache: a page is not in one piece under {self.layout}")
        pointers, sizes = [], []
        for index in indices[:: self.page_size].tolist():
            for header, records in self.page_objects(index):
                pointers.append([header.data_ptr(), records.data_ptr()])
                sizes.append([header.nbytes, records.nbytes])
        return pointers, sizes

    def page_objects(self, index: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Header and records of K, then of V, of the page that starts at slot `index`."""
        headers = self.page_headers[index // self.page_size]
        for header, buffer in zip(headers, (self.k_buffer, self.v_buffer), strict=True):
            yield header, buffer[index : index + self.page_size].view(-1)

    @property
    def object_formats(self) -> tuple[PageFormat, PageFormat]:
        """The formats of K's and V's objects."""
        sizes = (layout.record_bytes for layout in (self.k_layout, self.v_layout))
        k, v = (self.page_size * self.layer_num * size for size in sizes)
        tag = self.storage_format_tag
        return PageFormat(f"{tag} k", k), PageFormat(f"{tag} v", v)

    def _no_zero_copy(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("HiQCache: pages go to L3 and back as checked copies only")

    get_split_heads_page_buffer_meta = _no_zero_copy
    is_stride_page_aligned = _no_zero_copy
