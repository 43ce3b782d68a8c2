"""A stack before it is built: the device pools that get an L2, and their parts of the budget."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from sglang.srt.mem_cache.memory_pool import (
    HybridLinearKVPool,
    HybridReqToTokenPool,
    MHATokenToKVPool,
    MiniMaxSparseKVPool,
)
from sglang.srt.mem_cache.qsa_kv_pool import QSATokenToKVPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.runtime_context import get_memory

from hiqcache.budget import KV, STATE, SWA, Pool, dead_memory, shares, slots
from hiqcache.codec.base import Codec
from hiqcache.config import Config

logger = logging.getLogger(__name__)


def stack_of(params: Any, codec: Codec) -> list[Pool]:
    """The pools that SGLang is about to build for a model, as the budget sees them.

    Parameters
    ----------
    params
        SGLang's `CacheInitParams`: the device's pools, and those of draft models.

    Returns
    -------
    list[Pool]
        Empty where rows of the model are not MHA or GQA; those pools are refused as they come.
    """
    cache = params.token_to_kv_pool_allocator.get_kvcache()
    windows = cache.swa_kv_pool if isinstance(cache, SWAKVPool) else None
    rows = _full_attention(cache)
    if not isinstance(rows, MHATokenToKVPool):
        return []
    packed = params.mtp_draft_device_pools
    separate = params.sidecar_draft_device_pools[:1]
    kv = Pool(
        KV,
        _records(codec, rows, *(_full_attention(draft) for draft in packed)),
        rider_bytes=_riders(codec, cache, separate) + _window_drafts(codec, packed, on_kv=True),
        device_slots=rows.size,
    )
    pools = [kv]
    if windows is not None:
        swa = _records(codec, windows) + _window_drafts(codec, packed, on_kv=False)
        riders = _records(codec, *(draft.swa_kv_pool for draft in separate if _has_windows(draft)))
        pools.append(Pool(SWA, swa, riders, windows.size))
    if isinstance(params.req_to_token_pool, HybridReqToTokenPool):
        state = params.req_to_token_pool.mamba_pool
        size = sum(_state_bytes(pool) for pool in (state, *params.mtp_draft_mamba_pools))
        pools.append(Pool(STATE, size, device_slots=state.size))
    return pools


def shared(config: Config, pools: list[Pool]) -> Mapping[str, float]:
    """Decimal gigabytes of each pool under `--hicache-size`; none where it was not given."""
    gigabytes = get_memory().hicache_size
    if gigabytes <= 0 or not pools:
        return {}
    return shares(gigabytes, pools, tokens_per_state=config.tokens_per_state, split=config.split)


def total_bytes(pools: list[Pool], parts: Mapping[str, float], page_size: int) -> int:
    """What the whole stack will allocate, drafts and index keys included."""
    return sum(
        slots(parts[pool.name], pool.slot_bytes, 1 if pool.name == STATE else page_size)
        * pool.bytes
        for pool in pools
    )


def warn_of_dead_memory(config: Config, pools: list[Pool], entries: Iterable[Any]) -> None:
    """Say where a built stack's pools cannot be used together."""
    names = {"mamba": STATE}
    held = {
        names.get(entry.name.value, entry.name.value): entry.host_pool.size for entry in entries
    }
    if len(pools) < 2:
        return
    said = dead_memory(pools, held, tokens_per_state=config.tokens_per_state)
    if said:
        hint = "" if get_memory().hicache_size > 0 else " (with --hicache-size)"
        logger.warning("HiQCache: L2: %s%s", said, hint)


def _full_attention(cache: Any) -> Any:
    """The pool of a cache's full-attention layers."""
    if isinstance(cache, SWAKVPool | HybridLinearKVPool):
        return cache.full_kv_pool
    return cache.main_pool if isinstance(cache, MiniMaxSparseKVPool) else cache


def _has_windows(draft: Any) -> bool:
    return isinstance(draft, SWAKVPool)


def _records(codec: Codec, *pools: Any) -> int:
    """Bytes per token as stored, in all layers of these pools."""
    total = 0
    for pool in pools:
        info = pool.get_device_pool_infos()[0].buffer_info
        k = codec.layout("k", info.head_num, info.head_dim).record_bytes
        v = codec.layout("v", info.head_num, info.v_head_dim).record_bytes
        total += len(info.buffers.k) * (k + v)
    return total


def _window_drafts(codec: Codec, packed: Iterable[Any], *, on_kv: bool) -> int:
    """Windowed layers of packed drafts, on the slots of `kv` or on those of `swa`."""
    found = [
        draft.swa_kv_pool
        for draft in packed
        if _has_windows(draft) and draft.swa_uses_full_indices == on_kv
    ]
    return _records(codec, *(pool for pool in found if pool.layer_num))


def _riders(codec: Codec, cache: Any, separate: Iterable[Any]) -> int:
    """What has a slot for each slot of `kv`: separate drafts' rows, and index keys."""
    drafts = [draft for draft in separate if not _has_windows(draft)]
    rows = [_full_attention(draft) for draft in drafts]
    return _records(codec, *(pool for pool in rows if pool.layer_num)) + sum(
        _index_keys(pool) for pool in (cache, *drafts)
    )


def _index_keys(cache: Any) -> int:
    if isinstance(cache, QSATokenToKVPool):
        keys = sum(buffer[0].nbytes for buffer in cache.qsa_compressed_k_buffer_pool)
        return int(keys // cache.qsa_compress_ratio)
    if isinstance(cache, MiniMaxSparseKVPool) and cache.index_k_pool is not None:
        pool = cache.index_k_pool
        return int(pool.head_dim * pool.head_num * pool.layer_num * pool.store_dtype.itemsize)
    return 0


def _state_bytes(pool: Any) -> int:
    """One slot of `MambaPoolHost`: the state of all layers, and what shares its slots."""
    total = 0
    for found in pool.get_device_pool_infos():
        info = found.buffer_info
        for buffer in (info.temporal, *info.conv):
            total += buffer[:, 0].numel() * buffer.element_size()
        total += sum(
            buffer[0].numel() * buffer.element_size() for buffer in info.extra_checkpoint_buffers
        )
    return total
