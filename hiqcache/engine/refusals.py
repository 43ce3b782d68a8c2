"""What HiQCache refuses, by name, with what is supported.

Two moments: `refuse_arguments` sees SGLang's arguments in the first process, before weights
load; `refuse_pool` sees the real buffers in the scheduler and is the last line. Both raise
`HiQCacheError`; the hooks turn it into a stop.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, MHABufferInfo

from hiqcache.codec.record import DIM_MULTIPLE
from hiqcache.config import OFF
from hiqcache.errors import HiQCacheError

HOST_LAYOUTS = ("layer_first", "page_first")
L3_BACKENDS = ("file", "dynamic")
KV_CACHE_DTYPES = ("auto", "bf16", "bfloat16")
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
            f"{asked} encodes a bfloat16 device KV cache, got --kv-cache-dtype "
            f"{args.kv_cache_dtype}: expected one of {', '.join(KV_CACHE_DTYPES)}; remove it, "
            f"{OFF_HINT}"
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


def refuse_attention(architecture: str, codec: str) -> None:
    """Refuse a model whose KV is not one K and one V row a token: MLA, state-space.

    Raises
    ------
    Refusal
        Names the architecture.
    """
    if architecture != "MHA":
        raise Refusal(
            f"HIQCACHE_CODEC={codec} supports MHA and GQA models, got {architecture} attention: "
            f"use another model, {OFF_HINT}"
        )


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
            f"(--hicache-io-backend direct turns page_first into page_first_direct)"
        )
    if label != "kv":
        raise Refusal(
            f"{asked} supports full attention in every layer, but this model or option needs a "
            f"{label!r} KV pool (sliding windows or a draft model), {OFF_HINT}"
        )
    if drafts:
        raise Refusal(f"{asked} does not support packed draft layers in L2, got {drafts}")
    if info.dtype != torch.bfloat16 or info.scales is not None:
        raise Refusal(
            f"{asked} encodes a bfloat16 device KV cache, got {info.dtype}"
            f"{' with scales' if info.scales is not None else ''}: set --dtype bfloat16 and "
            f"--kv-cache-dtype auto, {OFF_HINT}"
        )
    if info.buffers.layout is not KVBufferLayout.NHD:
        raise Refusal(
            f"{asked} supports the NHD device layout (token, head, dim), got "
            f"{info.buffers.layout.value}, {OFF_HINT}"
        )
    if info.transfer_buffers is not None:
        raise Refusal(f"{asked} does not support relocatable device KV pools")
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
