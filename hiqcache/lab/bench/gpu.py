"""Timing on a GPU, and the link's limit: for the benchmarks of transfers."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hiqcache.errors import UsageError
from hiqcache.lab.bench.percentiles import Percentiles

LIMIT_BYTES = 512 * 2**20


def need_gpu() -> None:
    """Refuse where there is no CUDA device."""
    if not torch.cuda.is_available():
        raise UsageError("this benchmark needs an NVIDIA GPU, and PyTorch finds none here")


def time_on_gpu(work: Callable[[int], object], repeats: int) -> Percentiles:
    """Time `work(repeat)` by events on the current stream, after one run that warms up."""
    work(0)
    times = []
    for repeat in range(repeats):
        torch.cuda.synchronize()
        start, end = _event(), _event()
        start.record()
        work(repeat)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return Percentiles.of(times)


def memcpy_limits(host: torch.Tensor) -> dict[str, float]:
    """GB/s of a plain copy between registered host memory and the GPU, by direction."""
    size = min(LIMIT_BYTES, host.numel())
    there, here = host[:size], torch.empty(size, dtype=torch.uint8, device="cuda")
    backup = time_on_gpu(lambda _: there.copy_(here, non_blocking=True), 5)
    restore = time_on_gpu(lambda _: here.copy_(there, non_blocking=True), 5)
    return {
        "backup": size / backup.p50_ms / 1e6,
        "restore": size / restore.p50_ms / 1e6,
    }


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
