"""`bench codec`: how long one CPU core encodes and decodes a batch, beside a plain copy.

Every rate is GB/s of BF16 rows, so that a codec compares directly with the copy of the same
rows, which is the limit for anything that reads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from hiqcache.codec.base import Codec
from hiqcache.codec.inputs import named_input
from hiqcache.codec.record import SIDES, RecordLayout
from hiqcache.codec.registry import get_codec
from hiqcache.codec.verify import verified_error
from hiqcache.errors import UsageError
from hiqcache.lab.bench.percentiles import Percentiles
from hiqcache.lab.bench.shape import Shape
from hiqcache.provenance import cpu_model, provenance

MAX_BYTES = 4 * 2**30
"""The benchmark holds the rows three times over; more than this is a slip of the keyboard."""


@dataclass(frozen=True)
class Timing(Percentiles):
    """Percentiles over the repeats, each of which covers all layers, K and V."""

    gb_per_s: float


@dataclass(frozen=True)
class CodecRow:
    """One codec's figures. `error` is the bound's report by side, empty for the identity."""

    codec: str
    bytes_per_token: int
    encode: Timing
    decode: Timing
    error: dict[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class CodecBench:
    """A result with everything needed to repeat it."""

    provenance: dict[str, str]
    tokens: int
    heads: int
    head_dim: int
    layers: int
    bf16_bytes: int
    threads: int
    repeats: int
    memcpy: Timing
    codecs: list[CodecRow]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run_codec_bench(names: Sequence[str], shape: Shape, tokens: int, repeats: int) -> CodecBench:
    """Check each codec on the batch, then time it on one thread.

    Raises
    ------
    UsageError
        A geometry that a codec cannot hold, or a batch that is too large for this.
    BoundViolation, HiQCacheError
        A codec is wrong; nothing is timed then.
    """
    every = [get_codec(name) for name in names]
    for codec in every:
        codec.layout("k", shape.heads, shape.head_dim)
    bf16_bytes = tokens * shape.bf16_bytes
    if bf16_bytes > MAX_BYTES:
        raise UsageError(
            f"{tokens} tokens x {shape.layers} layers are {bf16_bytes / 2**30:.1f} GiB "
            f"of BF16 rows, expected at most {MAX_BYTES // 2**30}; ask for fewer tokens or layers"
        )
    # Neither codec takes another path for other values, so all layers may hold the same.
    size = (tokens, shape.heads, shape.head_dim)
    sides = [named_input("qwen3_8b_shaped", size, seed) for seed in (0, 1)]
    errors = [verify(codec, sides) for codec in every]
    rows = torch.stack(sides).expand(shape.layers, -1, -1, -1, -1).contiguous()
    restored = torch.empty_like(rows)
    with one_thread():
        memcpy = _timing(lambda: restored.copy_(rows), repeats, bf16_bytes)
        results = [
            _time_codec(codec, error, rows, restored, repeats)
            for codec, error in zip(every, errors, strict=True)
        ]
    return CodecBench(
        **asdict(shape),
        tokens=tokens,
        bf16_bytes=bf16_bytes,
        provenance=provenance("cpu", cpu_model()),
        threads=1,
        repeats=repeats,
        memcpy=memcpy,
        codecs=results,
    )


def verify(codec: Codec, batch: Sequence[Tensor]) -> dict[str, dict[str, Any]]:
    """Refuse a codec whose records of `batch` (K rows, V rows) are wrong.

    Returns
    -------
    dict
        The bound's report by side; empty for a codec that must be, and is, bit-exact.
    """
    reports: dict[str, dict[str, Any]] = {}
    for side, rows in zip(SIDES, batch, strict=True):
        layout = codec.layout(side, rows.shape[1], rows.shape[2])
        records = codec.encode(rows, layout)
        decoded = codec.decode(records, layout)
        report = verified_error(codec, rows, records, layout, decoded)
        if report is not None:
            reports[side] = asdict(report)
    return reports


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep PyTorch to one thread, and give the rest back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _time_codec(
    codec: Codec, error: dict[str, dict[str, Any]], rows: Tensor, restored: Tensor, repeats: int
) -> CodecRow:
    layers, _, tokens, heads, head_dim = rows.shape
    layouts = [codec.layout(side, heads, head_dim) for side in SIDES]
    records = [_empty_records(layers, tokens, layout) for layout in layouts]

    def encode() -> None:
        for layer in range(layers):
            for side, layout in enumerate(layouts):
                codec.encode(rows[layer, side], layout, out=records[side][layer])

    def decode() -> None:
        for layer in range(layers):
            for side, layout in enumerate(layouts):
                codec.decode(records[side][layer], layout, out=restored[layer, side])

    size = rows.numel() * rows.element_size()
    return CodecRow(
        codec=codec.name,
        bytes_per_token=layers * sum(layout.record_bytes for layout in layouts),
        encode=_timing(encode, repeats, size),
        decode=_timing(decode, repeats, size),
        error=error,
    )


def _empty_records(layers: int, tokens: int, layout: RecordLayout) -> Tensor:
    return torch.zeros((layers, tokens, layout.record_bytes), dtype=torch.uint8)


def _timing(work: Callable[[], object], repeats: int, size: int) -> Timing:
    """Time `work` on `size` bytes of BF16 rows, after one run that touches all memory."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - start))
    found = Percentiles.of(times)
    return Timing(**asdict(found), gb_per_s=size / found.p50_ms / 1e6)
