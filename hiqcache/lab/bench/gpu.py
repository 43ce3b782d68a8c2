"""Timing on a GPU, the link's limit, and where a figure was measured."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import torch

from hiqcache.errors import UsageError
from hiqcache.lab.bench.codec import percentile
from hiqcache.provenance import provenance

LIMIT_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Spread:
    """Percentiles over the repeats, in milliseconds."""

    p20_ms: float
    p50_ms: float
    p80_ms: float
    repeats: int


def need_gpu() -> None:
    """Refuse where there is no CUDA device."""
    if not torch.cuda.is_available():
        raise UsageError("this benchmark needs an NVIDIA GPU, and PyTorch finds none here")


def time_on_gpu(work: Callable[[int], object], repeats: int) -> Spread:
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
    p20, p50, p80 = (percentile(times, share) for share in (0.2, 0.5, 0.8))
    return Spread(p20, p50, p80, repeats)


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


def gpu_origin(commit: str | None = None) -> dict[str, str]:
    """What every row of a result carries: device, driver, versions, commit and date."""
    name = torch.cuda.get_device_name()
    origin = provenance("cuda", name) | {
        "gpu": name,
        "capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "driver": _driver(),
    }
    return origin | ({"commit": commit} if commit else {})


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.splitlines()[0].strip()
