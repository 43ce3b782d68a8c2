"""Backup and restore of tokens: every transfer beside SGLang's BF16 mover and a plain copy.

Correctness first: a transfer whose records or rows differ from the codec's by one bit is not
timed. All figures are for whole tokens: all layers, K and V, asked for one by one in a restore,
as SGLang's transfer engine does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hiqcache.codec.base import Codec
from hiqcache.codec.registry import get_codec
from hiqcache.errors import UsageError
from hiqcache.lab.bench.compile import compile_all
from hiqcache.lab.bench.gpu import memcpy_limits, need_gpu, time_on_gpu
from hiqcache.lab.bench.percentiles import Percentiles
from hiqcache.lab.bench.pool import BenchPool, bench_pool, random_slots
from hiqcache.lab.bench.sglang_bf16 import SglangBf16, sglang_hicache
from hiqcache.lab.bench.shape import Shape
from hiqcache.lab.bench.verify import verify
from hiqcache.lab.row import origin
from hiqcache.transfer.plan import make_plan
from hiqcache.transfer.registry import choose_transfer

TORCH_TOKENS = 1024
"""`torch` scatters on the CPU: it is timed up to here, to show what it costs."""
SLOT_SETS = 3
SPARE = 1.125
"""Slots a pool has for each token of the largest transfer."""
LEAST_HOST_BYTES = 4 * 10**9
"""Host memory in use, at least: far more than any cache holds."""

SlotSets = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class TransferSpec:
    geometry: Shape
    tokens: tuple[int, ...]
    page_sizes: tuple[int, ...]
    layouts: tuple[str, ...]
    codecs: tuple[str, ...]
    transfers: tuple[str, ...]
    programs: int | None
    repeats: int


class Moves(Protocol):
    """What is timed: a transfer, or SGLang's mover."""

    def backup(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None: ...

    def restore_all(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None: ...


@dataclass(frozen=True)
class Contender:
    """Something to time, and what its rows say about it."""

    labels: dict[str, Any]
    moves: Moves
    wire_bytes: int
    most_tokens: int


def run_transfer_bench(spec: TransferSpec, commit: str | None = None) -> Iterator[dict[str, Any]]:
    """One row a measurement, as it is made. The first two are the limits.

    Raises
    ------
    UsageError
        There is no GPU, or a transfer cannot work here.
    HiQCacheError
        A transfer is wrong; nothing of it is timed then.
    """
    need_gpu()
    check_spec(spec)
    provenance = origin(commit)
    with bench_pool(spec.geometry, pool_slots(spec), [*spec.codecs, "bf16"]) as pool:
        if "fused" in spec.transfers:
            codecs = list(map(get_codec, spec.codecs))
            sides = ((codec, pool.sides(codec, name)) for codec in codecs for name in spec.layouts)
            compile_all(make_plan(codec, k, v, spec.programs) for codec, (k, v) in sides)
        limits = memcpy_limits(pool.host[0])
        for direction, rate in limits.items():
            yield {"transfer": "memcpy", "direction": direction, "wire_gb_per_s": rate} | provenance
        for contender in _contenders(spec, pool):
            for row in _time(spec, pool, contender, limits):
                yield row | provenance


def check_spec(spec: TransferSpec) -> None:
    """Refuse numbers of tokens that are no whole pages: SGLang moves whole pages.

    Raises
    ------
    UsageError
        Names the first that is not.
    """
    for page_size in spec.page_sizes:
        for tokens in spec.tokens:
            if tokens % page_size:
                raise UsageError(
                    f"{tokens} tokens are no whole pages of {page_size}; "
                    f"give multiples of every page size"
                )


def pool_slots(spec: TransferSpec) -> int:
    """Slots for the largest transfer and some to spare, in whole pages of every size."""
    token = spec.geometry.bf16_bytes
    wanted = max(int(max(spec.tokens) * SPARE), LEAST_HOST_BYTES // token)
    page = max(spec.page_sizes)
    return -(-wanted // page) * page


def figures(
    spread: Percentiles, tokens: int, wire_bytes: int, bf16_bytes: int, limit: float
) -> dict[str, Any]:
    """A measurement in the units that matter.

    Parameters
    ----------
    wire_bytes, bf16_bytes
        Of one token: what crosses the link, and what its rows take on the GPU.
    limit
        GB/s of a plain copy in this direction.
    """
    wire = tokens * wire_bytes / spread.p50_ms / 1e6
    return {
        "p20_ms": spread.p20_ms,
        "p50_ms": spread.p50_ms,
        "p80_ms": spread.p80_ms,
        "repeats": spread.repeats,
        "tokens_per_ms": tokens / spread.p50_ms,
        "wire_gb_per_s": wire,
        "link_share": wire / limit,
        "bf16_gb_per_s": tokens * bf16_bytes / spread.p50_ms / 1e6,
    }


def _contenders(spec: TransferSpec, pool: BenchPool) -> Iterator[Contender]:
    """What to time, in turn. Only one uses the pool at a time."""
    hicache = sglang_hicache()
    for layout in spec.layouts:
        for page_size in spec.page_sizes:
            labels: dict[str, Any] = {"layout": layout, "page_size": page_size}
            if hicache is not None:
                mover = SglangBf16(pool, layout, page_size, hicache)
                about = {
                    "transfer": "sglang",
                    "codec": "bf16",
                    "mover": mover.name,
                    "device_bytes": mover.staging_bytes,
                    "programs": "default",
                }
                yield Contender(labels | about, mover, spec.geometry.bf16_bytes, 10**9)
            for codec in map(get_codec, spec.codecs):
                for name in spec.transfers:
                    if page_size == spec.page_sizes[0] or name != "torch":
                        yield _contender(spec, pool, codec, name, labels)


def _contender(
    spec: TransferSpec, pool: BenchPool, codec: Codec, name: str, labels: dict[str, Any]
) -> Contender:
    kind, _ = choose_transfer(name, pool.rows[0].device, pool.host)
    k, v = pool.sides(codec, labels["layout"])
    transfer = kind(codec, k, v, spec.programs)
    transfer.warm_up()
    if labels["page_size"] == spec.page_sizes[0]:
        verify(transfer, pool.slots)
    about = {
        "transfer": transfer.name,
        "codec": codec.name,
        "mover": "none",
        "device_bytes": transfer.device_bytes,
        "programs": spec.programs or "default",
    }
    most = TORCH_TOKENS if name == "torch" else 10**9
    wire = spec.geometry.layers * (k.layout.used_bytes + v.layout.used_bytes)
    return Contender(labels | about, transfer, wire, most)


def _time(
    spec: TransferSpec, pool: BenchPool, contender: Contender, limits: dict[str, float]
) -> Iterator[dict[str, Any]]:
    moves = contender.moves
    page_size = contender.labels["page_size"]
    for tokens in spec.tokens:
        if tokens > contender.most_tokens:
            continue
        slots = [
            (
                random_slots(pool.slots, tokens, page_size, 2 * n),
                random_slots(pool.slots, tokens, page_size, 2 * n + 1),
            )
            for n in range(SLOT_SETS)
        ]

        def backup(repeat: int, slots: SlotSets = slots) -> None:
            moves.backup(*slots[repeat % SLOT_SETS])

        def restore(repeat: int, slots: SlotSets = slots) -> None:
            moves.restore_all(*slots[repeat % SLOT_SETS])

        for direction, work in (("backup", backup), ("restore", restore)):
            spread = time_on_gpu(work, _repeats(spec, tokens))
            yield (
                contender.labels
                | {"tokens": tokens, "direction": direction}
                | figures(
                    spread,
                    tokens,
                    contender.wire_bytes,
                    spec.geometry.bf16_bytes,
                    limits[direction],
                )
            )


def _repeats(spec: TransferSpec, tokens: int) -> int:
    """Fewer for the long ones, which vary less."""
    return spec.repeats if tokens <= 8192 else max(3, spec.repeats // 3)
