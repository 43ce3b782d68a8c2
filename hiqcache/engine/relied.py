"""What HiQCache overrides or reaches into beyond its hooks: all of it is looked at before a start.

A name that a new SGLang release moves would otherwise be found when a pool is built, or later: an
override that nobody calls any more is silent.
"""

from __future__ import annotations

import inspect
import pkgutil
from dataclasses import dataclass
from typing import Any

CACHE = "sglang.srt.mem_cache"
MHA = f"{CACHE}.pool_host.mha.MHATokenToKVPoolHost"
ASSEMBLER = f"{CACHE}.hybrid_cache.hybrid_pool_assembler"


@dataclass(frozen=True)
class Relied:
    """A function with its parameters, or a class with what its methods set on it.

    Parameters
    ----------
    target
        Where it is.
    parameters
        The first ones that a function must take.
    attributes
        Names that some method of a class mentions.
    """

    target: str
    parameters: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()

    def what_is_missing(self) -> str | None:
        """One phrase; None if all is there."""
        try:
            found = pkgutil.resolve_name(self.target)
        except (ImportError, AttributeError) as error:
            return f"has no {self.target} ({error})"
        if self.attributes:
            missing = set(self.attributes) - _mentioned(found)
            return f"has no {', '.join(sorted(missing))} in {self.target}" if missing else None
        takes = tuple(inspect.signature(found).parameters)
        if takes[: len(self.parameters)] != self.parameters:
            return (
                f"has a {self.target} that takes ({', '.join(takes)}), expected "
                f"({', '.join(self.parameters)})"
            )
        return None


def _mentioned(kind: Any) -> set[str]:
    """Names that a class is made with, and that its methods and properties use."""
    found: set[str] = set(inspect.signature(kind).parameters)
    for base in inspect.getmro(kind):
        for name, member in vars(base).items():
            found.add(name)
            function: Any = member.fget if isinstance(member, property) else member
            code = getattr(inspect.unwrap(function), "__code__", None)
            found.update(code.co_names if code is not None else ())
    return found


RELIED = (
    # The encoded pool overrides these, so that SGLang's calls reach it.
    Relied(f"{MHA}._initialize_transfer_views", ("self", "buffer_info", "write_back_staging")),
    Relied(f"{MHA}._allocate_host_buffer", ("self",)),
    Relied(f"{MHA}.init_kv_buffer", ("self",)),
    Relied(f"{MHA}.get_size_per_token", ("self",)),
    Relied(f"{MHA}.get_ksize_per_token", ("self",)),
    Relied(
        f"{MHA}.backup_from_device_all_layer",
        ("self", "device_pool", "host_indices", "device_indices", "io_backend"),
    ),
    Relied(
        f"{MHA}.load_to_device_per_layer",
        ("self", "device_pool", "host_indices", "device_indices", "layer_id", "io_backend"),
    ),
    Relied(f"{MHA}.get_data_page", ("self", "index", "flat")),
    Relied(f"{MHA}.get_dummy_flat_data_page", ("self",)),
    Relied(f"{MHA}.set_from_flat_data_page", ("self", "index", "data_page")),
    Relied(f"{MHA}.get_page_buffer_meta", ("self", "indices")),
    # It reads these of its parent and of itself.
    Relied(
        MHA,
        attributes=(
            *("_transfer_device", "device_k_buffers", "device_v_buffers", "kv_buffer"),
            *("target_layer_num", "layer_num", "size_per_token", "allocator", "storage_format_tag"),
        ),
    ),
    # What a stack is made of, and where SGLang asks for it.
    Relied(f"{ASSEMBLER}.build_kv_host_pool"),
    Relied(f"{ASSEMBLER}._mha_host_inputs", ("pool", "drafts")),
    Relied(f"{CACHE}.pool_host.mamba.MambaPoolHost", attributes=("size_per_token", "size")),
    Relied(
        f"{CACHE}.cache_init_params.CacheInitParams",
        attributes=(
            *("token_to_kv_pool_allocator", "req_to_token_pool", "page_size"),
            *("mtp_draft_device_pools", "mtp_draft_mamba_pools", "sidecar_draft_device_pools"),
        ),
    ),
    # L3: the file of a page, which SGLang's backend has no call to remove.
    Relied(f"{CACHE}.hicache_storage.HiCacheFile._get_suffixed_key", ("self", "key")),
    Relied(f"{CACHE}.hicache_storage.HiCacheFile", attributes=("file_path", "metadata_cache")),
)
BY_VERIFICATION = (
    # Which of the launcher's children has ended.
    Relied(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager",
        attributes=("_subprocess_watchdog",),
    ),
    Relied("sglang.srt.utils.watchdog.SubprocessWatchdog", attributes=("_processes",)),
)
