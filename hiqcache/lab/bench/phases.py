"""Encode, transfer and decode apart: is the codec or the link the bottleneck?

`fused` does both in one kernel. Its parts are timed by two kernels that leave one out: the same
kernel on records in GPU memory (all of the arithmetic, none of the link), and the identity kernel
moving pieces of a record's size over the link (all of the link, none of the arithmetic).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from hiqcache.codec.base import Codec
from hiqcache.codec.registry import get_codec
from hiqcache.lab.bench.gpu import memcpy_limits, need_gpu, time_on_gpu
from hiqcache.lab.bench.pool import BenchPool, bench_pool, random_slots
from hiqcache.lab.bench.shape import Shape
from hiqcache.lab.bench.verify import verify
from hiqcache.lab.row import origin
from hiqcache.transfer.base import Side
from hiqcache.transfer.fused import FusedTransfer
from hiqcache.transfer.launch import RowKernels

LAYOUT = "layer_first"
SLOTS_PER_TOKEN = 4


@dataclass(frozen=True)
class Phase:
    """Work on all layers of the tokens, and the bytes of one token that it moves."""

    transfer: str
    direction: str
    phase: str
    work: Callable[[], object]


def run_phases(
    geometry: Shape,
    codec_name: str,
    tokens: int,
    programs: int | None,
    repeats: int,
    commit: str | None = None,
) -> Iterator[dict[str, Any]]:
    """One row a phase, milliseconds for 1,000 tokens. The first two are the link's limits.

    Raises
    ------
    UsageError
        There is no GPU.
    """
    need_gpu()
    provenance = origin(commit)
    codec = get_codec(codec_name)
    labels = {"codec": codec_name, "layout": LAYOUT, "page_size": 1, "tokens": tokens}
    with bench_pool(geometry, tokens * SLOTS_PER_TOKEN, [codec_name, "bf16"]) as pool:
        used = geometry.layers * sum(side.layout.used_bytes for side in pool.sides(codec, LAYOUT))
        for direction, rate in memcpy_limits(pool.host[0]).items():
            yield (
                {
                    "transfer": "memcpy",
                    "direction": direction,
                    "phase": "link",
                    "ms_per_1000_tokens": 1000 * used / rate / 1e6,
                }
                | labels
                | provenance
            )
        device_slots = random_slots(pool.slots, tokens, 1, seed=0)
        host_slots = random_slots(pool.slots, tokens, 1, seed=1)
        for phase in _phases(pool, codec, device_slots, host_slots, programs):
            spread = time_on_gpu(lambda _, phase=phase: phase.work(), repeats)  # type: ignore[misc]
            yield (
                {
                    "transfer": phase.transfer,
                    "direction": phase.direction,
                    "phase": phase.phase,
                    "ms_per_1000_tokens": 1000 * spread.p50_ms / tokens,
                    "p20_ms": spread.p20_ms,
                    "p50_ms": spread.p50_ms,
                    "p80_ms": spread.p80_ms,
                }
                | labels
                | provenance
            )


def _phases(
    pool: BenchPool,
    codec: Codec,
    device_slots: torch.Tensor,
    host_slots: torch.Tensor,
    programs: int | None,
) -> Iterator[Phase]:
    k, v = pool.sides(codec, LAYOUT)
    fused = FusedTransfer(codec, k, v, programs)
    fused.warm_up()
    verify(fused, pool.slots)
    slots = (device_slots, host_slots)
    yield from _both("fused", "whole", fused.backup, fused.restore_all, *slots)
    local = [
        Side(side.layout, side.device, tuple(records.cuda() for records in side.host))
        for side in (k, v)
    ]
    kernels = RowKernels(codec, local[0], local[1], programs)
    yield from _both("fused", "codec", kernels.encode, _all_layers(kernels), *slots)
    del local, kernels
    # Last: it overwrites the records.
    bare = _bare(pool, k.layout.used_bytes, programs)
    yield from _both("fused", "link", bare.encode, _all_layers(bare), *slots)


def _both(
    transfer: str,
    phase: str,
    backup: Callable[[torch.Tensor, torch.Tensor], None],
    restore: Callable[[torch.Tensor, torch.Tensor], None],
    device_slots: torch.Tensor,
    host_slots: torch.Tensor,
) -> Iterator[Phase]:
    yield Phase(transfer, "backup", phase, lambda: backup(device_slots, host_slots))
    yield Phase(transfer, "restore", phase, lambda: restore(device_slots, host_slots))


def _all_layers(kernels: RowKernels) -> Callable[[torch.Tensor, torch.Tensor], None]:
    def restore(device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
        kernels.decode(device_slots, host_slots, range(kernels.layers))

    return restore


def _bare(pool: BenchPool, used_bytes: int, programs: int | None) -> RowKernels:
    """The identity kernel over rows that are as long as a record's used bytes, rounded up."""
    identity = get_codec("bf16")
    width = -(-used_bytes // 16) * 8
    rows = tuple(
        side.flatten()[: pool.geometry.layers * pool.slots * width].view(
            pool.geometry.layers, pool.slots, 1, width
        )
        for side in pool.rows
    )
    geometry = Shape(pool.geometry.layers, 1, width)
    narrow = pool.narrowed(geometry, (rows[0], rows[1]))
    k, v = narrow.sides(identity, LAYOUT)
    return RowKernels(identity, k, v, programs)
