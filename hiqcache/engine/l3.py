"""L3: what stands between SGLang's storage backends and the pool's pages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheFile

from hiqcache.codec.page import Fault
from hiqcache.engine.weights import Weights

if TYPE_CHECKING:
    from hiqcache.engine.host_pool import EncodedHostPool

logger = logging.getLogger(__name__)


def check_pages(backend: Any, pool: EncodedHostPool, weights: Weights) -> CheckedBackend:
    """Put a `CheckedBackend` before `backend`.

    SGLang reports a hit with the name of the backend's type, which stays what it was.
    """
    from hiqcache.engine.l3_by_address import BY_ADDRESS, AddressedBackend

    name = type(backend).__name__
    kind = type(name, (AddressedBackend if name in BY_ADDRESS else CheckedBackend,), {})
    checked: CheckedBackend = kind(backend, pool, weights)
    return checked


class CheckedBackend:
    """A storage backend whose pages are sealed before they are written and checked when read.

    A page that is not what was written, or was made by other weights, is a page that is not there:
    SGLang then uses what came before it and computes the rest. It calls this from its storage
    threads.

    Parameters
    ----------
    backend
        SGLang's own, or one that `--hicache-storage-backend dynamic` names.
    pool
        Its page format, and the counters of what was not used and what could not be written.
    weights
        Their identity becomes part of every key; without one nothing is found or written.
    """

    def __init__(self, backend: Any, pool: EncodedHostPool, weights: Weights) -> None:
        self._backend = backend
        self._pool = pool
        self._pages = pool.page_format
        self._metrics = pool.l3_metrics
        self._weights = weights

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def _named(self, keys: Sequence[str]) -> list[str] | None:
        """The keys under which the pages of these weights are stored."""
        identity = self._weights.identity
        return None if identity is None else [f"{key}-{identity}" for key in keys]

    def exists(self, key: str) -> bool:
        named = self._named([key])
        return named is not None and bool(self._backend.exists(named[0]))

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        named = self._named(keys)
        return 0 if named is None else int(self._backend.batch_exists(named, extra_info))

    def set(self, key: str, value: torch.Tensor, *args: Any, **kwargs: Any) -> bool:
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: Sequence[str], values: Sequence[torch.Tensor], *args: Any, **kwargs: Any
    ) -> bool:
        named = self._named(keys)
        if named is None:
            return False
        keys = named
        for key, page in zip(keys, values, strict=True):
            self._pages.seal(_bytes(page), key)
        written = False
        try:
            written = bool(self._backend.batch_set(keys, values))
        finally:
            written &= not self._cut_short(keys)
            if not written:
                self._metrics.failed_write()
        return written

    def _cut_short(self, keys: Sequence[str]) -> bool:
        """Whether SGLang's file backend kept less than a whole page, which it then loses.

        On a full disk it does not notice when the last 4 KiB of a page are missing.
        """
        if not isinstance(self._backend, HiCacheFile):
            return False
        short = [key for key in keys if self._is_short(_file(self._backend, key))]
        for key in short:
            _remove(self._backend, key)
        return bool(short)

    def _is_short(self, path: Path) -> bool:
        try:
            return path.stat().st_size < self._pages.page_bytes
        except OSError:
            return False

    def get(
        self, key: str, target_location: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor | None:
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: Sequence[str], target_locations: Sequence[torch.Tensor], *args: Any
    ) -> list[torch.Tensor | None]:
        named = self._named(keys)
        if named is None:
            return [None] * len(keys)
        keys = named
        try:
            pages = self._backend.batch_get(keys, target_locations)
        except Exception:
            # One page that cannot be read must not take the pages before it along.
            pages = [self._read(*each) for each in zip(keys, target_locations, strict=True)]
        if pages is None:
            return [None] * len(keys)
        return [self._checked(key, page) for key, page in zip(keys, pages, strict=True)]

    def _read(self, key: str, target: torch.Tensor) -> torch.Tensor | None:
        try:
            page: torch.Tensor | None = self._backend.get(key, target)
            return page
        except Exception as error:
            self._reject(key, Fault.UNREADABLE, f": {error}")
            return None

    def _checked(self, key: str, page: torch.Tensor | None) -> torch.Tensor | None:
        fault = None if page is None else self._pages.fault(_bytes(page), key)
        if fault is None:
            return page
        self._reject(key, fault)
        return None

    def _reject(self, key: str, fault: Fault, why: str = "") -> None:
        self._metrics.bad_page(fault)
        logger.error("HiQCache: L3 page %s is %s and is computed again%s", key, fault, why)
        # SGLang writes no page that is there, so a bad one would stay bad.
        if isinstance(self._backend, HiCacheFile):
            _remove(self._backend, key)

    def _no_other_way(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("HiQCache: pages go to L3 and back as checked copies only")

    batch_get_v1: Callable[..., list[bool]] = _no_other_way
    batch_set_v1: Callable[..., list[bool]] = _no_other_way
    batch_get_v2 = batch_set_v2 = batch_exists_v2 = _no_other_way


def _bytes(page: torch.Tensor) -> memoryview:
    return page.contiguous().view(torch.uint8).numpy().data


def _file(backend: HiCacheFile, key: str) -> Path:
    return Path(backend.file_path, f"{backend._get_suffixed_key(key)}.bin")


def _remove(backend: HiCacheFile, key: str) -> None:
    """Take a page out of SGLang's file backend, which has no call for it."""
    path = _file(backend, key)
    path.unlink(missing_ok=True)
    if backend.metadata_cache is not None:
        backend.metadata_cache.remove(path.stem)
