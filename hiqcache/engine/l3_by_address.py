"""L3 on a store that takes L2's own memory: pages are sealed and checked where they lie.

SGLang's Mooncake backend puts and gets K and V of a page as an object each, by address. The pool
gives it two addresses an object, a header of 16 bytes and the records, so that nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hiqcache.codec.page import Fault
from hiqcache.engine.l3 import CheckedBackend, logger
from hiqcache.engine.options import Refusal

BY_ADDRESS = ("MooncakeStore",)
"""Backends of SGLang's that put and get pages through L2's own memory."""


class AddressedBackend(CheckedBackend):
    """A backend of `BY_ADDRESS` behind a check of every page.

    Raises
    ------
    Refusal
        A page is not in one piece in L2, or the store wants to own L2's memory.
    """

    def __init__(self, backend: Any, pool: Any, weights: Any) -> None:
        super().__init__(backend, pool, weights)
        if pool.layout != "page_first":
            raise Refusal(
                f"Mooncake takes pages from L2 in one piece: expected --hicache-mem-layout "
                f"page_first, got {pool.layout}"
            )
        if backend.config.standalone_storage:
            raise Refusal(
                "HiQCache keeps L2's memory itself, got standalone_storage, under which Mooncake "
                "would: set it to false"
            )

    def batch_set_v1(
        self, keys: Sequence[str], host_indices: torch.Tensor, extra_info: Any = None
    ) -> list[bool]:
        named = self._named(keys)
        if named is None:
            return [False] * len(keys)
        if self._pool.verification is not None:
            self._pool.verification.require(host_indices)
        for key, index in zip(named, self._pages_of(host_indices), strict=True):
            for form, (header, records) in self._objects(index):
                form.write_header(_bytes(header), _bytes(records), key)
        written = [False] * len(keys)
        try:
            written = list(self._backend.batch_set_v1(named, host_indices, extra_info))
        finally:
            if not all(written):
                self._metrics.failed_write()
        return written

    def batch_get_v1(
        self, keys: Sequence[str], host_indices: torch.Tensor, extra_info: Any = None
    ) -> list[bool]:
        named = self._named(keys)
        if named is None:
            return [False] * len(keys)
        starts = self._pages_of(host_indices)
        # A header that an earlier page left here must not vouch for what did not arrive.
        for index in starts:
            self._pool.page_headers[index // self._pool.page_size].zero_()
        try:
            got = self._backend.batch_get_v1(named, host_indices, extra_info)
        except Exception as error:
            logger.error("HiQCache: the L3 store does not answer: %s", error)
            return [False] * len(keys)
        return [
            self._good(key, index) if there else self._gone(key)
            for key, index, there in zip(named, starts, got, strict=True)
        ]

    def _gone(self, key: str) -> bool:
        """Of a page that did not come: one that is there all the same, as if cut short, is bad."""
        if self._backend.batch_exists([key]):
            self._reject(key, Fault.UNREADABLE)
        return False

    def _good(self, key: str, index: int) -> bool:
        for form, (header, records) in self._objects(index):
            fault = form.fault_apart(_bytes(header), _bytes(records), key)
            if fault is not None:
                self._reject(key, fault)
                return False
        if self._pool.verification is not None:
            self._pool.verification.adopt(torch.arange(index, index + self._pool.page_size))
        return True

    def _reject(self, key: str, fault: Fault, why: str = "") -> None:
        super()._reject(key, fault, why)
        # SGLang writes no page that is there; a lease of somebody who reads it does not matter.
        (tagged,) = self._backend._tag_keys([key])
        for part in ("k", "v"):
            name = f"{tagged}_{self._backend.mha_suffix}_{part}"
            self._backend.store.remove(name, True)

    def _pages_of(self, host_indices: torch.Tensor) -> list[int]:
        starts: list[int] = host_indices[:: self._pool.page_size].tolist()
        return starts

    def _objects(self, index: int) -> Any:
        return zip(self._pool.object_formats, self._pool.page_objects(index), strict=True)


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.numpy().data
