"""All ranks look at a host's free memory before the first one takes any; for the plugin's hooks.

SGLang divides what is free among the ranks of a host when each allocates its pool. With a fixed
`--hicache-size` the last one would get a share of what the others have left, and be refused a size
that fits (sgl-project/sglang#38156). Under automatic sizing SGLang itself looks once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from sglang.srt.mem_cache.pool_host import base
from sglang.srt.runtime_context import get_parallel


@contextmanager
def one_look(
    original: Callable[..., AbstractContextManager[None]], *args: Any, enabled: bool
) -> Iterator[None]:
    """Around `auto_size_hicache`, inside which every rank builds its pools."""
    with original(*args, enabled=enabled):
        if not enabled or base._host_memory_budget.get() is not None:
            yield
            return
        budget = base.host_memory_budget_bytes()
        if torch.distributed.is_initialized():
            torch.distributed.barrier(group=get_parallel().world_group.cpu_group)
        with base.host_memory_budget_scope(budget):
            yield
