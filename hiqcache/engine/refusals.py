"""What HiQCache refuses, by name, with what is supported.

What SGLang's arguments alone tell is refused in `options`, which doctor reads too. Here
`refuse_model` sees the model in the first process, before weights load; `refuse_pool` sees the real
buffers in the scheduler and is the last line. All raise `Refusal`; the hooks turn it into a stop.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, MHABufferInfo

from hiqcache.checkpoint import CONFIG
from hiqcache.codec.record import DIM_MULTIPLE
from hiqcache.codec.row import SIXTEEN_BIT_ROWS
from hiqcache.engine.companions import is_companion
from hiqcache.engine.options import DEVICE_KV, OFF_HINT, Refusal, refuse_layout
from hiqcache.unsupported_models import ONE_POOL_FLAG

STATE_LAYOUT = "page_first"
"""The one layout that the encoded pools and SGLang's `MambaPoolHost` both have."""
POOLS = ("kv", "full", "swa", "draft", "draft_swa")
"""SGLang's labels of host pools of MHA or GQA rows: the model's, and a draft model's."""


def refuse_model(model: ModelConfig, storage_backend: str | None, layout: str, codec: str) -> None:
    """Refuse a model whose attention layers do not keep one K and one V row per token.

    Parameters
    ----------
    storage_backend
        `--hicache-storage-backend`, which takes pages of one pool only.
    layout
        `--hicache-mem-layout`, which SGLang's pool of recurrent state must know.

    Raises
    ------
    Refusal
        Names the attention or the architecture, and what helps where something does.
    """
    asked = f"HIQCACHE_CODEC={codec}"
    architecture = model.hf_config.architectures[0]
    attention = model.attention_arch.name
    if attention != "MHA":
        raise Refusal(
            f"{asked} supports MHA and GQA models, got {attention} attention ({architecture}): "
            f"use another model, {OFF_HINT}"
        )
    stateful = mambaish_config(model) is not None
    if stateful and layout != STATE_LAYOUT:
        raise Refusal(
            f"SGLang keeps the recurrent state of {architecture} in L2 under --hicache-mem-layout "
            f"{STATE_LAYOUT} alone, got {layout}: remove it, {OFF_HINT}"
        )
    if storage_backend is None:
        return
    if stateful:
        raise Refusal(
            f"{asked} supports L3 for models with one pool, but {architecture} has recurrent "
            f"state in a pool of its own: remove --hicache-storage-backend, {OFF_HINT}"
        )
    if model.is_hybrid_swa:
        raise Refusal(
            f"{asked} supports L3 for models with one pool, but SGLang keeps the sliding-window "
            f"layers of {architecture} in a pool of their own: remove --hicache-storage-backend, "
            f"or add {ONE_POOL_FLAG} if all its layers have one shape, {OFF_HINT}"
        )


def model_folder(model: ModelConfig) -> Path | None:
    """Where the model's files lie on this machine: its folder, or a download of its config.json."""
    if os.path.isdir(model.model_path):
        return Path(model.model_path)
    try:
        found = try_to_load_from_cache(model.model_path, CONFIG, revision=model.revision)
    except ValueError:  # neither a folder nor an id, such as an address in an object store
        return None
    return Path(found).parent if isinstance(found, str) else None


def refuse_cache(cache: Any, encoded: type, codec: str) -> None:
    """Refuse a finished prefix cache without an L2, or with a pool that is not accounted for.

    The last line, whichever of SGLang's options or models led there: for some SGLang turns HiCache
    off by itself and says so in a warning only, and some host pools never pass through
    `HostKVCache.__init__`, where `refuse_foreign_pool` waits.

    Parameters
    ----------
    cache
        What SGLang's `create_tree_cache` made.
    encoded
        The class of the encoded pools.

    Raises
    ------
    Refusal
        Names the cache, or the pool.
    """
    if cache.cache_controller is None:
        raise Refusal(
            f"HIQCACHE_CODEC={codec} asks for an encoded L2, but SGLang built a "
            f"{type(cache).__name__} without one (its log says why): remove the option that chose "
            f"it or use another model, {OFF_HINT}"
        )
    strangers = [pool for pool in host_pools(cache) if not isinstance(pool, encoded)]
    for pool in strangers:
        if not is_companion(pool) or len(strangers) == len(host_pools(cache)):
            refuse_foreign_pool(type(pool), codec)


def host_pools(cache: Any) -> list[Any]:
    """The host pools of a finished prefix cache."""
    group = cache.cache_controller.mem_pool_host
    return [entry.host_pool for entry in getattr(group, "entries", ())] or [group]


def refuse_l3_of_stack(cache: Any, codec: str) -> None:
    """Refuse L3 for a cache with more than one host pool, or with draft layers in it.

    Raises
    ------
    Refusal
        Names the pools.
    """
    pools = host_pools(cache)
    if len(pools) > 1 or any(getattr(pool, "drafts", 0) for pool in pools):
        names = ", ".join(getattr(pool, "name", type(pool).__name__) for pool in pools)
        raise Refusal(
            f"HIQCACHE_CODEC={codec} supports L3 for a stack of one pool without draft layers, got "
            f"{names}: attach no storage backend, {OFF_HINT}"
        )


def refuse_foreign_pool(pool: type, codec: str) -> None:
    """Refuse a host pool that is neither encoded nor a companion: nothing is stored unasked.

    Raises
    ------
    Refusal
        Always; names the pool.
    """
    raise Refusal(
        f"HIQCACHE_CODEC={codec} supports L2 pools of MHA or GQA layers, and beside them recurrent "
        f"state and index keys, but this model or option needs SGLang's {pool.__name__}, which "
        f"would store its rows unencoded: remove the option or use another model, {OFF_HINT}"
    )


def refuse_pool(info: MHABufferInfo, *, layout: str, label: str, codec: str) -> None:
    """Refuse device buffers that the encoded pool cannot address.

    Raises
    ------
    Refusal
        Names the property, what is supported and what was found.
    """
    asked = f"HIQCACHE_CODEC={codec}"
    refuse_layout(layout, codec)
    if label not in POOLS:
        raise Refusal(
            f"{asked} supports the pools {', '.join(POOLS)}, but this model or option needs a "
            f"{label!r} KV pool: remove the option or use another model, {OFF_HINT}"
        )
    if not info.buffers.k:
        raise Refusal(
            f"{asked} encodes rows of attention layers, but the {label!r} pool of this model has "
            f"none: use another model, {OFF_HINT}"
        )
    if info.dtype not in SIXTEEN_BIT_ROWS or info.scales is not None:
        # SGLang stores fp8 and fp4 values as bytes.
        kind = " (quantised)" if info.dtype == torch.uint8 else ""
        raise Refusal(
            f"{asked} encodes a {DEVICE_KV} device KV cache, got {info.dtype}{kind}"
            f"{' with scales' if info.scales is not None else ''}: set --kv-cache-dtype bfloat16, "
            f"or --dtype bfloat16 or float16 with --kv-cache-dtype auto, {OFF_HINT}"
        )
    if info.buffers.layout is not KVBufferLayout.NHD:
        raise Refusal(
            f"{asked} supports the NHD device layout (token, head, dim), got "
            f"{info.buffers.layout.value}, {OFF_HINT}"
        )
    if info.transfer_buffers is not None:
        raise Refusal(
            f"{asked} does not support relocatable device KV pools, whose rows move, {OFF_HINT}"
        )
    for name, dim in (("K", info.head_dim), ("V", info.v_head_dim)):
        if dim % DIM_MULTIPLE:
            raise Refusal(
                f"{asked} supports a head_dim that is a multiple of {DIM_MULTIPLE}, got {name} "
                f"heads of {dim}, {OFF_HINT}"
            )


def refuse_memory(requested: int, available: int, reserve: int) -> None:
    """Refuse a pool beyond the memory that SGLang lets HiCache use, before it is allocated.

    Parameters
    ----------
    requested, available, reserve
        Bytes: of the pool, of free host memory less the reserve, and of the reserve.

    Raises
    ------
    Refusal
        Names all three figures and a size that fits.
    """
    if requested <= available:
        return
    fits = max(0, int(available // 1e9))
    advice = (
        f"set --hicache-size {fits} or less"
        if fits
        else "give the machine or container more memory"
    )
    raise Refusal(
        f"L2 needs {requested / 1e9:.2f} GB of host memory, but {max(0, available) / 1e9:.2f} GB "
        f"are free after the {reserve / 2**30:.0f} GiB that SGLang keeps in reserve: {advice}"
    )
