"""Two processes that build SGLang's pools as two ranks of one host do, and nothing else."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from hiqcache.config import Config
from tests.engine.pools import DEVICE_TOKENS, device_pool, forget_metrics, sglang_context

RANKS = 2
LATE_SECONDS = 1.0
"""How long the second rank lets the first one go ahead."""


def shared_bytes(pids: Sequence[int]) -> int:
    """What lies in these processes' shared mappings, as their host pools do."""
    status = (Path(f"/proc/{pid}/status").read_text() for pid in pids)
    return sum(int(text.partition("RssShmem:")[2].split()[0]) * 1024 for text in status)


def build(rank: int, port: int, free: int, gigabytes: int, rounds: int, answers: Any) -> None:
    """Build and drop a pool `rounds` times, then once as SGLang alone would.

    Puts `(rank, outcome of each)` into `answers`: bytes of the pool, or the refusal.

    Parameters
    ----------
    free
        Bytes that this host has before the pools take theirs.
    """
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS
    )
    with sglang_context():
        import os

        from sglang.srt.mem_cache.pool_host import base
        from sglang.srt.runtime_context import get_context, get_parallel

        # As SGLang does for an explicit size.
        get_context().override("test", hicache_host_memory_fraction=None)
        pids: list[Any] = [None] * RANKS
        torch.distributed.all_gather_object(pids, os.getpid())
        before = shared_bytes(pids)
        base.available_host_memory_bytes = lambda **_: free - (shared_bytes(pids) - before)
        world = SimpleNamespace(cpu_group=torch.distributed.group.WORLD)
        with get_parallel().override(launch_world_size=RANKS, nnodes=1, world_group=world):
            outcomes = [one(rank, pids, gigabytes, alone=False) for _ in range(rounds)]
            outcomes.append(one(rank, pids, gigabytes, alone=True))
    answers.put((rank, outcomes))
    torch.distributed.barrier()


def one(rank: int, pids: Sequence[int], gigabytes: int, *, alone: bool) -> int | str:
    from sglang.srt.mem_cache.hicache_auto_size import auto_size_hicache

    from hiqcache.engine.host_pool import EncodedHostPool
    from hiqcache.engine.memory_budget import one_look

    forget_metrics()
    EncodedHostPool.config = Config(codec="int8", transfer="torch")
    device = device_pool()
    torch.distributed.barrier()
    deadline = time.monotonic() + LATE_SECONDS
    begin = shared_bytes(pids)
    while rank and time.monotonic() < deadline and shared_bytes(pids) - begin < gigabytes * 9e8:
        time.sleep(0.01)
    scope = nullcontext() if alone else one_look(auto_size_hicache, None, None, enabled=True)
    try:
        with scope:
            pool = EncodedHostPool(
                device.get_device_pool_infos()[0].buffer_info,
                2.0,
                gigabytes,
                1,
                "layer_first",
                pin_memory=False,
                device_capacity_tokens=DEVICE_TOKENS,
                start_layer=0,
                end_layer=device.layer_num,
            )
        outcome: int | str = pool.k_buffer.nbytes + pool.v_buffer.nbytes
        del pool
    except SystemExit as refused:
        outcome = str(refused.__cause__)
    except Exception as error:
        outcome = str(error)
    torch.distributed.barrier()
    gc.collect()
    return outcome
