"""SGLang's own device and host pools in this process, on the reference platform."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hiqcache.config import Config

DEVICE_TOKENS = 64


@contextmanager
def sglang_context() -> Iterator[None]:
    """What SGLang's pools read of the process: resolved arguments and a rank."""
    os.environ["SGLANG_PLATFORM"] = "hiqcache_cpu"
    from sglang.srt.runtime_context import get_context, get_parallel

    arguments = get_context().override_server_args()
    arguments.install()
    try:
        with get_parallel().override(tp_rank=0, pp_rank=0, dp_rank=None):
            yield
    finally:
        arguments.restore()
        forget_metrics()


def forget_metrics() -> None:
    """A process of SGLang's builds one stack, and registers its metrics' names once."""
    from prometheus_client import REGISTRY

    from hiqcache.engine import families

    families.forget()
    for collector, names in list(REGISTRY._collector_to_names.items()):
        if any(name.startswith("hiqcache_engine") for name in names):
            REGISTRY.unregister(collector)


def device_pool(
    *, heads: int = 3, head_dim: int = 64, layers: int = 2, page_size: int = 1, **options: Any
) -> Any:
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    return MHATokenToKVPool(
        size=DEVICE_TOKENS,
        page_size=page_size,
        **{"dtype": torch.bfloat16, "device": "cpu", "enable_memory_saver": False} | options,
        head_num=heads,
        head_dim=head_dim,
        layer_num=layers,
    )


def encoded_pool(config: Config, layout: str, *, page_size: int = 1, **geometry: Any) -> Any:
    """An `EncodedHostPool` of twice the device pool's tokens; needs `sglang_context`."""
    from hiqcache.engine.host_pool import EncodedHostPool

    forget_metrics()
    EncodedHostPool.config = config
    return host_pool(EncodedHostPool, layout, page_size=page_size, **geometry)


def host_pool(kind: type, layout: str, *, page_size: int = 1, **geometry: Any) -> Any:
    pool = device_pool(page_size=page_size, **geometry)
    return kind(
        pool.get_device_pool_infos()[0].buffer_info,
        2.0,
        0,
        page_size,
        layout,
        pin_memory=False,
        device_capacity_tokens=DEVICE_TOKENS,
        start_layer=0,
        end_layer=pool.layer_num,
    )
