"""What `HIQCACHE_VERIFY` costs a backup and a restore, on the GPU if there is one, else the CPU.

Correctness first: a flipped bit in each mode's own slots must be found before anything is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from hiqcache.codec.registry import get_codec
from hiqcache.config import OFF, VERIFY_CHOICES, VERIFY_EVERY
from hiqcache.errors import HiQCacheError
from hiqcache.lab.bench.codec import one_thread
from hiqcache.lab.bench.gpu import time_on_gpu
from hiqcache.lab.bench.percentiles import Percentiles
from hiqcache.lab.bench.pool import BenchPool, bench_pool
from hiqcache.lab.bench.shape import Shape
from hiqcache.lab.row import origin
from hiqcache.transfer.base import Transfer
from hiqcache.transfer.registry import choose_transfer, make_verification
from hiqcache.transfer.verification import Verification

SPARE = 2
"""Slots a pool has for each token: a restore's are neither all there are nor in order."""


@dataclass(frozen=True)
class Checked:
    """A transfer with its verification beside it, used as the host pool uses them."""

    transfer: Transfer
    verification: Verification | None

    @property
    def checksum_bytes(self) -> int:
        return 0 if self.verification is None else self.verification.checksum_bytes

    def mismatches(self) -> int:
        return 0 if self.verification is None else self.verification.mismatches()

    def backup(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
        self.transfer.backup(device_slots, host_slots)
        if self.verification is not None:
            self.verification.after_backup(host_slots)

    def restore_all(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
        self.transfer.begin_restore(device_slots, host_slots)
        for layer in range(len(self.transfer.k.device)):
            self.transfer.restore(device_slots, host_slots, layer)
            if self.verification is not None:
                self.verification.after_restore(host_slots, layer)


def run_verification_bench(
    geometry: Shape,
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
    provenance = origin(commit)
    slots = SPARE * max(tokens)
    with _pool(gpu, geometry, slots, codec) as pool, nullcontext() if gpu else one_thread():
        for mode in VERIFY_CHOICES:
            checked = _checked(pool, codec, layout, mode)
            _check(checked, mode)
            for count in tokens:
                for direction, spread in _time(checked, slots, count, repeats):
                    yield {
                        "transfer": checked.transfer.name,
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
                        "checksum_bytes_per_token": checked.checksum_bytes / slots,
                    } | provenance
            if checked.mismatches() != (mode != OFF):
                raise HiQCacheError(f"verify {mode}: untouched records were found to differ")


def _pool(gpu: bool, geometry: Shape, slots: int, codec: str) -> AbstractContextManager[BenchPool]:
    if gpu:
        return bench_pool(geometry, slots, [codec])
    shape = (geometry.layers, slots, geometry.heads, geometry.head_dim)
    k, v = (torch.randn(shape).to(torch.bfloat16) for _ in range(2))
    record = get_codec(codec).layout("k", geometry.heads, geometry.head_dim)
    size = geometry.layers * slots * record.record_bytes
    host = torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    return nullcontext(BenchPool(geometry, slots, (k, v), host))


def _checked(pool: BenchPool, codec: str, layout: str, mode: str) -> Checked:
    kind, _ = choose_transfer("auto", pool.rows[0].device, pool.host)
    made = get_codec(codec)
    transfer = kind(made, *pool.sides(made, layout))
    verification = make_verification(mode, transfer)
    transfer.warm_up()
    if verification is not None:
        verification.warm_up()
    return Checked(transfer, verification)


def _check(checked: Checked, mode: str) -> None:
    """Leaves exactly one mismatch behind, in a slot that is then backed up anew."""
    if mode == OFF:
        return
    transfer = checked.transfer
    slots = torch.arange(VERIFY_EVERY[mode] + 1, device=transfer.device)
    checked.backup(slots, slots)
    _wait(transfer)
    transfer.k.host[-1][0, 1] ^= 16
    checked.restore_all(slots, slots)
    _wait(transfer)
    if checked.mismatches() != 1:
        raise HiQCacheError(
            f"verify {mode}: one flipped bit was found {checked.mismatches()} times"
        )
    checked.backup(slots, slots)


def _wait(transfer: Transfer) -> None:
    if transfer.device.type == "cuda":
        torch.cuda.synchronize()


def _time(
    checked: Checked, slots: int, tokens: int, repeats: int
) -> Iterator[tuple[str, Percentiles]]:
    target = checked.transfer.device
    generator = torch.Generator().manual_seed(tokens)
    device, host = (
        torch.randperm(slots, generator=generator)[:tokens].to(target) for _ in range(2)
    )

    def backup(repeat: int) -> None:
        checked.backup(device, host)

    def restore(repeat: int) -> None:
        checked.restore_all(device, host)

    clock = time_on_gpu if target.type == "cuda" else _time_on_cpu
    yield "backup", clock(backup, repeats)
    yield "restore", clock(restore, repeats)


def _time_on_cpu(work: Callable[[int], object], repeats: int) -> Percentiles:
    work(0)
    times = []
    for repeat in range(repeats):
        begin = time.perf_counter()
        work(repeat)
        times.append((time.perf_counter() - begin) * 1000)
    return Percentiles.of(times)
