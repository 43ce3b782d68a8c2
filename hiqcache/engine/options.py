"""What HiQCache refuses of SGLang's arguments alone, for the hooks and, before a start, for doctor.

Nothing here imports torch or SGLang, whose import takes longer than all of doctor's quick checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hiqcache.checkpoint import fp8_kv
from hiqcache.config import OFF
from hiqcache.errors import HiQCacheError
from hiqcache.geometry import text_config
from hiqcache.unsupported_models import latent_attention

L3_BACKENDS = ("file", "dynamic", "mooncake")
HOST_LAYOUTS = ("layer_first", "page_first")
SPECULATION = ("EAGLE", "EAGLE3", "NEXTN", "NGRAM", "STANDALONE")
KV_CACHE_DTYPES = ("auto", "bf16", "bfloat16")
DEVICE_KV = "bfloat16 or float16"
"""The types of rows that can be encoded (`codec/row.py`, which needs torch)."""
OFF_HINT = "or set HIQCACHE_CODEC=off to run without HiQCache"

OTHER_NAMES = {
    "--enable-hicache": "enable_hierarchical_cache",
    "--pipeline-parallel-size": "pp_size",
}
"""SGLang's second names of the arguments below."""


@dataclass(frozen=True)
class Options:
    """Those of SGLang's arguments that a refusal looks at, with SGLang's names and defaults."""

    enable_hierarchical_cache: bool = False
    hicache_storage_backend: str | None = None
    hicache_storage_backend_extra_config: str | None = None
    hicache_host_memory_mode: str = "cache"
    kv_cache_dtype: str = "auto"
    radix_cache_backend: str | None = None
    enable_flexkv: bool = False
    speculative_algorithm: str | None = None
    enable_unified_memory: bool = False
    disaggregation_mode: str = "null"
    pp_size: int = 1
    hicache_mem_layout: str = "page_first"
    hicache_io_backend: str = "kernel"
    hicache_size: int = 0

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Options:
        """Read them from a command line; what is not a value is left to SGLang's own parser."""
        return cls(**dict(cls._given(arguments)))

    @classmethod
    def _given(cls, arguments: Sequence[str]) -> Iterator[tuple[str, Any]]:
        kinds = {field.name: field.type for field in fields(cls)}
        names = {f"--{name.replace('_', '-')}": name for name in kinds} | OTHER_NAMES
        for word, following in zip(arguments, [*arguments, ""][1:], strict=True):
            option, equals, value = word.partition("=")
            if (name := names.get(option)) is None:
                continue
            value = value if equals else following
            if kinds[name] == "bool":
                yield name, True
            elif kinds[name] != "int":
                yield name, value
            elif value.isdecimal():
                yield name, int(value)


class Refusal(HiQCacheError):
    """An option, model or buffer that HiQCache does not support."""


def refuse_arguments(args: Options, codec: str) -> None:
    """Refuse arguments that ask for something the encoded L2 cannot give.

    Parameters
    ----------
    args
        `Options`, or SGLang's own `ServerArgs`, which has the same attributes.

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
    direct = (args.hicache_mem_layout, args.hicache_io_backend) == ("page_first", "direct")
    refuse_layout("page_first_direct" if direct else args.hicache_mem_layout, codec)
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
    algorithm = args.speculative_algorithm
    if algorithm is not None and algorithm not in SPECULATION:
        raise Refusal(
            f"{asked} supports --speculative-algorithm {', '.join(SPECULATION)}, got {algorithm}, "
            f"whose draft layers have not been tested in an encoded L2: remove it, {OFF_HINT}"
        )
    if algorithm not in (None, "NGRAM") and args.hicache_storage_backend is not None:
        raise Refusal(
            f"{asked} does not support L3 beside draft layers, got --speculative-algorithm "
            f"{algorithm} and --hicache-storage-backend {args.hicache_storage_backend}: remove "
            f"one of them, {OFF_HINT}"
        )
    if args.enable_unified_memory:
        raise Refusal(
            f"{asked} does not support --enable-unified-memory, whose device pools move rows and "
            f"share one host arena: remove it, {OFF_HINT}"
        )
    if args.disaggregation_mode != "null":
        raise Refusal(
            f"{asked} does not support prefill/decode disaggregation, got --disaggregation-mode "
            f"{args.disaggregation_mode}: remove it, {OFF_HINT}"
        )


def refuse_checkpoint(
    args: Options, config: Mapping[str, Any], folder: Path | None, codec: str
) -> None:
    """Refuse a checkpoint whose files ask for an FP8 KV cache, unless the arguments overrule it.

    Parameters
    ----------
    args
        As for `refuse_arguments`.
    config, folder
        The model's config.json, and where further files of it lie, if that is known.

    Raises
    ------
    HiQCacheError
        Names the file, its key and the way out, before weights load.
    """
    asked = fp8_kv(config, folder) if args.kv_cache_dtype == "auto" else None
    if asked is not None:
        raise Refusal(
            f"HIQCACHE_CODEC={codec} encodes a {DEVICE_KV} device KV cache, but the checkpoint's "
            f"{asked} asks for an FP8 one: add --kv-cache-dtype bfloat16, {OFF_HINT}"
        )


def refuse_latent_attention(config: Mapping[str, Any], codec: str) -> None:
    """Refuse by its config.json what `refuse_model` refuses once SGLang has read it.

    Raises
    ------
    Refusal
        Names the attention and the way out.
    """
    attention = latent_attention(text_config(config))
    if attention is not None:
        raise Refusal(
            f"HIQCACHE_CODEC={codec} supports MHA and GQA models, got {attention}: use another "
            f"model, {OFF_HINT}"
        )


def refuse_layout(layout: str, codec: str) -> None:
    """Refuse a layout of L2 that records cannot be addressed in.

    Raises
    ------
    Refusal
        Names the layout and those that are supported.
    """
    if layout not in HOST_LAYOUTS:
        raise Refusal(
            f"HIQCACHE_CODEC={codec} supports --hicache-mem-layout {' and '.join(HOST_LAYOUTS)}, "
            f"got {layout} (--hicache-io-backend direct turns page_first into page_first_direct), "
            f"{OFF_HINT}"
        )


def refuse_verification(args: Options, mode: str) -> None:
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


def refuse_split(args: Options, split: Mapping[str, float] | None) -> None:
    """Refuse a split of a budget that was not given.

    Raises
    ------
    Refusal
        Names the option that it needs.
    """
    if split and args.hicache_size <= 0:
        raise Refusal(
            "HIQCACHE_SPLIT shares --hicache-size among pools, and it was not given: without it "
            "SGLang gives L2 a multiple of each device pool's slots; add --hicache-size or unset it"
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
            f"{', '.join(L3_BACKENDS)}, got {backend}: it has not been tested with encoded "
            f"pages, or takes them from L2 without a copy that could be checked; use file, "
            f"remove it, {OFF_HINT}"
        )
    if backend != "dynamic" or extra_config is None:
        return
    if _l3_options(extra_config).get("interface_v1"):
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
