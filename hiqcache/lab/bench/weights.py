"""What it costs to know a model's weights for L3's keys: at the start, and at each update."""

from __future__ import annotations

import time
from typing import Any

import torch

from hiqcache.engine.weights import checksum
from hiqcache.errors import HiQCacheError
from hiqcache.lab.bench.percentiles import Percentiles
from hiqcache.lab.row import origin

TENSOR_BYTES = 64 * 2**20
"""One projection of a model of some billion parameters."""


def run_weights_bench(gigabytes: float, repeats: int, commit: str | None = None) -> dict[str, Any]:
    """One row: seconds and GB/s of a checksum over BF16 parameters of that size.

    Raises
    ------
    HiQCacheError
        One flipped bit was not noticed.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = torch.nn.Module()
    for number in range(max(1, round(gigabytes * 1e9 / TENSOR_BYTES))):
        values = torch.empty(TENSOR_BYTES // 2, dtype=torch.bfloat16, device=device).normal_()
        model.register_parameter(f"weight_{number}", torch.nn.Parameter(values, False))
    before = checksum(model, {})
    last = next(reversed(list(model.parameters())))
    last.data.view(torch.uint8)[-1] ^= 1
    if checksum(model, {}) == before:
        raise HiQCacheError("a flipped bit of the weights was not noticed")
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        checksum(model, {})
        times.append((time.perf_counter() - begin) * 1000)
    read = sum(parameter.nbytes for parameter in model.parameters())
    spread = Percentiles.of(times)
    return {
        "bench": "weights",
        "bytes": read,
        "p20_ms": spread.p20_ms,
        "p50_ms": spread.p50_ms,
        "p80_ms": spread.p80_ms,
        "repeats": spread.repeats,
        "gb_per_s": read / spread.p50_ms / 1e6,
    } | origin(commit)
