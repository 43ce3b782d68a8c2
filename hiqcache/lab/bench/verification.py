"""What `HIQCACHE_VERIFY` costs a backup and a restore, on the GPU if there is one, else the CPU.

Correctness first: a flipped bit in each mode's own slots must be found before anything is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from hiqcache.codec.registry import get_codec
from hiqcache.config import VERIFY_CHOICES
from hiqcache.errors import HiQCacheError
from hiqcache.lab.bench.codec import one_thread, percentile
from hiqcache.lab.bench.gpu import Spread, gpu_origin, time_on_gpu
from hiqcache.lab.bench.pool import BenchPool, Geometry, bench_pool
from hiqcache.provenance import cpu_model, provenance
from hiqcache.transfer.base import Transfer
from hiqcache.transfer.checksum import VERIFY
from hiqcache.transfer.registry import add_verification, choose_transfer

SPARE = 2
"""Slots a pool has for each token: a restore's are neither all there are nor in order."""


def run_verification_bench(
    geometry: Geometry,
    codec: str,
    layout: str,
    tokens: tuple[int, ...],
    repeats: int,
    commit: str | None = None,
) -> Iterator[dict[str, Any]]:
    """One row a mode, number of tokens and direction.

    Raises
    ------
    HiQCacheError
        A flipped bit was not found, or an untouched record was.
    """
    gpu = torch.cuda.is_available()
    origin = gpu_origin(commit) if gpu else provenance("cpu", cpu_model())
    slots = SPARE * max(tokens)
    with _pool(gpu, geometry, slots, codec) as pool, nullcontext() if gpu else one_thread():
        for mode in VERIFY_CHOICES:
            transfer = _transfer(pool, codec, layout, mode)
            _check(transfer, mode)
            for count in tokens:
                for direction, spread in _time(transfer, slots, count, repeats):
                    yield {
                        "transfer": transfer.name,
                        "codec": codec,
                        "layout": layout,
                        "verify": mode,
                        "tokens": count,
                        "direction": direction,
                        "p20_ms": spread.p20_ms,
                        "p50_ms": spread.p50_ms,
                        "p80_ms": spread.p80_ms,
                        "repeats": spread.repeats,
                        "tokens_per_ms": count / spread.p50_ms,
                        "checksum_bytes_per_token": transfer.checksum_bytes / slots,
                    } | origin
            if transfer.mismatches() != (mode != "off"):
                raise HiQCacheError(f"verify {mode}: untouched records were found to differ")


def _pool(
    gpu: bool, geometry: Geometry, slots: int, codec: str
) -> AbstractContextManager[BenchPool]:
    if gpu:
        return bench_pool(geometry, slots, [codec])
    shape = (geometry.layers, slots, geometry.heads, geometry.head_dim)
    k, v = (torch.randn(shape).to(torch.bfloat16) for _ in range(2))
    record = get_codec(codec).layout("k", geometry.heads, geometry.head_dim)
    size = geometry.layers * slots * record.record_bytes
    host = torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    return nullcontext(BenchPool(geometry, slots, (k, v), host))


def _transfer(pool: BenchPool, codec: str, layout: str, mode: str) -> Transfer:
    kind, _ = choose_transfer("auto", pool.rows[0].device, pool.host)
    made = get_codec(codec)
    transfer = add_verification(kind(made, *pool.sides(made, layout)), mode)
    transfer.warm_up()
    return transfer


def _check(transfer: Transfer, mode: str) -> None:
    """Leaves exactly one mismatch behind, in a slot that is then backed up anew."""
    if mode == "off":
        return
    slots = torch.arange(VERIFY[mode].every + 1, device=transfer.device)
    transfer.backup(slots, slots)
    _wait(transfer)
    transfer.k.host[-1][0, 1] ^= 16
    transfer.restore_all(slots, slots)
    _wait(transfer)
    if transfer.mismatches() != 1:
        raise HiQCacheError(
            f"verify {mode}: one flipped bit was found {transfer.mismatches()} times"
        )
    transfer.backup(slots, slots)


def _wait(transfer: Transfer) -> None:
    if transfer.device.type == "cuda":
        torch.cuda.synchronize()


def _time(
    transfer: Transfer, slots: int, tokens: int, repeats: int
) -> Iterator[tuple[str, Spread]]:
    generator = torch.Generator().manual_seed(tokens)
    device, host = (
        torch.randperm(slots, generator=generator)[:tokens].to(transfer.device) for _ in range(2)
    )

    def backup(repeat: int) -> None:
        transfer.backup(device, host)

    def restore(repeat: int) -> None:
        transfer.restore_all(device, host)

    clock = time_on_gpu if transfer.device.type == "cuda" else _time_on_cpu
    yield "backup", clock(backup, repeats)
    yield "restore", clock(restore, repeats)


def _time_on_cpu(work: Callable[[int], object], repeats: int) -> Spread:
    work(0)
    times = []
    for repeat in range(repeats):
        begin = time.perf_counter()
        work(repeat)
        times.append((time.perf_counter() - begin) * 1000)
    p20, p50, p80 = (percentile(times, share) for share in (0.2, 0.5, 0.8))
    return Spread(p20, p50, p80, repeats)
