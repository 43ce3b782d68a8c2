"""What HiQCache refuses, by name, with what is supported.

Two moments: `refuse_arguments` sees SGLang's arguments in the first process, before weights
load; `refuse_pool` sees the real buffers in the scheduler and is the last line. Both raise
`HiQCacheError`; the hooks turn it into a stop.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, MHABufferInfo

from hiqcache.codec.record import DIM_MULTIPLE
from hiqcache.codec.row import ROW_TYPES
from hiqcache.config import OFF
from hiqcache.errors import HiQCacheError
from hiqcache.unsupported_models import ONE_POOL_FLAG, SHAPED_WINDOW_POOL

HOST_LAYOUTS = ("layer_first", "page_first")
L3_BACKENDS = ("file", "dynamic")
KV_CACHE_DTYPES = ("auto", "bf16", "bfloat16")
DEVICE_KV = " or ".join(str(dtype).removeprefix("torch.") for dtype in ROW_TYPES)
OFF_HINT = "or set HIQCACHE_CODEC=off to run without HiQCache"


class Refusal(HiQCacheError):
    """An option, model or buffer that HiQCache does not support."""


def refuse_arguments(args: Any, codec: str) -> None:
    """Refuse a `ServerArgs` that asks for something the encoded L2 cannot give.

    Raises
    ------
    Refusal
        Names the argument, its value, what is supported and the way out.
    """
    asked = f"HIQCACHE_CODEC={codec}"
    if not args.enable_hierarchical_cache:
        raise Refusal(
            f"{asked} asks for an encoded L2, but the server has none: add "
            f"--enable-hierarchical-cache, {OFF_HINT}"
        )
    if args.hicache_storage_backend is not None:
        refuse_l3(args.hicache_storage_backend, args.hicache_storage_backend_extra_config, codec)
    if args.hicache_host_memory_mode != "cache":
        raise Refusal(
            f"{asked} supports --hicache-host-memory-mode cache, got "
            f"{args.hicache_host_memory_mode}, which keeps no L2: remove it, {OFF_HINT}"
        )
    if args.kv_cache_dtype not in KV_CACHE_DTYPES:
        raise Refusal(
            f"{asked} encodes a {DEVICE_KV} device KV cache, got --kv-cache-dtype "
            f"{args.kv_cache_dtype}: expected one of {', '.join(KV_CACHE_DTYPES)}; remove it, "
            f"{OFF_HINT}"
        )
    for option, value in (
        ("--radix-cache-backend", args.radix_cache_backend),
        ("--enable-flexkv", args.enable_flexkv or None),
    ):
        if value is not None:
            raise Refusal(
                f"{asked} needs SGLang's own radix tree, got {option} {value}, which puts a cache "
                f"without HiCache's L2 in its place: remove it, {OFF_HINT}"
            )
    if args.speculative_algorithm is not None:
        raise Refusal(
            f"{asked} does not support draft layers in L2, got --speculative-algorithm "
            f"{args.speculative_algorithm}: remove it, {OFF_HINT}"
        )
    if args.disaggregation_mode != "null":
        raise Refusal(
            f"{asked} does not support prefill/decode disaggregation, got --disaggregation-mode "
            f"{args.disaggregation_mode}: remove it, {OFF_HINT}"
        )


def refuse_verification(args: Any, mode: str) -> None:
    """Refuse to promise what several pipeline stages cannot keep.

    Raises
    ------
    Refusal
        Names the argument and the way out.
    """
    if mode != OFF and args.pp_size > 1:
        raise Refusal(
            f"HIQCACHE_VERIFY={mode} supports one pipeline stage, got --pp-size {args.pp_size}: "
            f"the last stage answers before it could hear of the others' records; unset it"
        )


def refuse_l3(backend: str, extra_config: str | None, codec: str) -> None:
    """Refuse a storage backend that encoded pages have not been tested with or cannot pass.

    Parameters
    ----------
    backend, extra_config
        `--hicache-storage-backend` and `--hicache-storage-backend-extra-config`.

    Raises
    ------
    Refusal
        Names the backend and those that are supported.
    """
    if backend not in L3_BACKENDS:
        raise Refusal(
            f"HIQCACHE_CODEC={codec} supports --hicache-storage-backend "
            f"{' and '.join(L3_BACKENDS)}, got {backend}: it has not been tested with encoded "
            f"pages, or takes them from L2 without a copy that could be checked; use file, "
            f"remove it, {OFF_HINT}"
        )
    if backend == "dynamic" and _l3_options(extra_config).get("interface_v1"):
        raise Refusal(
            f"HIQCACHE_CODEC={codec} gives a dynamic L3 backend copies of pages, got "
            f"interface_v1 in --hicache-storage-backend-extra-config, which asks for L2's own "
            f"memory: set it to 0, {OFF_HINT}"
        )


def _l3_options(extra_config: str | None) -> dict[str, Any]:
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController

    try:
        options: dict[str, Any]
        options, *_ = HybridCacheController.parse_storage_backend_extra_config(extra_config)
        return options
    except Exception as error:
        raise Refusal(
            f"--hicache-storage-backend-extra-config: expected JSON, or @ and a file of options, "
            f"got {extra_config!r} ({error})"
        ) from error


def refuse_model(model: ModelConfig, codec: str) -> None:
    """Refuse a model whose KV is not one K and one V row a token and layer in one pool.

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
    if mambaish_config(model) is not None:
        raise Refusal(
            f"{asked} supports attention in every layer, but {architecture} has state-space, "
            f"linear-attention or convolution layers, whose state SGLang keeps in a pool of its "
            f"own: use another model, {OFF_HINT}"
        )
    if model.is_hybrid_swa:
        way_out = (
            "use another model"
            if SHAPED_WINDOW_POOL.intersection(model.hf_config.architectures)
            else f"add {ONE_POOL_FLAG}, which keeps every layer in one pool"
        )
        raise Refusal(
            f"{asked} supports one KV pool for all layers, but SGLang keeps the sliding-window "
            f"layers of {architecture} in a pool of their own: {way_out}, {OFF_HINT}"
        )


def refuse_cache(cache: Any, encoded: type, codec: str) -> None:
    """Refuse a finished prefix cache without an L2, or with more in it than the encoded pool.

    The last line, whichever of SGLang's options or models led there: for some SGLang turns HiCache
    off by itself and says so in a warning only, and some host pools never pass through
    `HostKVCache.__init__`, where `refuse_foreign_pool` waits.

    Parameters
    ----------
    cache
        What SGLang's `create_tree_cache` made.
    encoded
        The class of the only host pool that is allowed.

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
    group = cache.cache_controller.mem_pool_host
    pools = [entry.host_pool for entry in getattr(group, "entries", ())] or [group]
    for pool in pools:
        if not isinstance(pool, encoded):
            refuse_foreign_pool(type(pool), codec)


def refuse_foreign_pool(pool: type, codec: str) -> None:
    """Refuse a host pool that is not the encoded one: nothing is stored in another form.

    Raises
    ------
    Refusal
        Always; names the pool.
    """
    raise Refusal(
        f"HIQCACHE_CODEC={codec} supports L2 pools of plain MHA or GQA layers, but this model "
        f"or option needs SGLang's {pool.__name__}, which would store its state unencoded: "
        f"remove the option or use another model, {OFF_HINT}"
    )


def refuse_pool(info: MHABufferInfo, *, layout: str, label: str, drafts: int, codec: str) -> None:
    """Refuse device buffers that the encoded pool cannot address.

    Raises
    ------
    Refusal
        Names the property, what is supported and what was found.
    """
    asked = f"HIQCACHE_CODEC={codec}"
    if layout not in HOST_LAYOUTS:
        raise Refusal(
            f"{asked} supports --hicache-mem-layout {' and '.join(HOST_LAYOUTS)}, got {layout} "
            f"(--hicache-io-backend direct turns page_first into page_first_direct), {OFF_HINT}"
        )
    if label != "kv":
        raise Refusal(
            f"{asked} supports one KV pool for all layers, but this model or option needs a "
            f"{label!r} KV pool (sliding windows or a draft model): remove the option or add "
            f"{ONE_POOL_FLAG}, {OFF_HINT}"
        )
    if drafts:
        raise Refusal(
            f"{asked} does not support packed draft layers in L2, got {drafts}: remove "
            f"--speculative-algorithm, {OFF_HINT}"
        )
    if info.dtype not in ROW_TYPES or info.scales is not None:
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
