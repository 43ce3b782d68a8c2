"""A reference CPU platform for SGLang, so that the whole path runs without a GPU.

SGLang's own CPU engine needs an AMX build of its kernels. This one needs nothing: no Triton,
no graphs, no pinned memory, attention in plain PyTorch. It is for trying out and for tests,
not for speed. `SGLANG_PLATFORM=hiqcache_cpu` chooses it; `hiqcache/cpu_server.py` names the
arguments that go with it.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

NAME = "hiqcache_cpu"


class CpuReferencePlatform(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc]  # untyped SGLang
    """Plain PyTorch on a CPU, declared out of tree so that SGLang assumes no kernels."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()

    def is_pin_memory_available(self, device: object = None) -> bool:
        return False

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Compute in float32 where this processor multiplies bfloat16 slowly; KV stays bfloat16.

        Without AVX-512 PyTorch has no fast product of bfloat16 matrices: a prefill takes three
        times as long as in float32. L1 and L2 hold the same bytes either way. An explicit
        `--dtype` or `--kv-cache-dtype` is left alone.
        """
        if (server_args.dtype, server_args.kv_cache_dtype) != ("auto", "auto"):
            return
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            server_args.dtype, server_args.kv_cache_dtype = "float32", "bfloat16"


def activate() -> str | None:
    """SGLang's entry point: the class's path, or None when the platform was not asked for."""
    if os.environ.get("SGLANG_PLATFORM") != NAME:
        return None
    return f"{__name__}.{CpuReferencePlatform.__qualname__}"
