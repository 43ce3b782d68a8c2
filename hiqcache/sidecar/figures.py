"""One read of an engine as figures: what `/metrics`, the summary and the page are made from.

A counter that SGLang creates only at its first event is 0 before it. Any other figure that the
engine has not produced is None, and nothing is ever estimated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hiqcache.codec.page import Fault
from hiqcache.codec.record import RECORD_FORMATS
from hiqcache.sidecar.ranks import Histogram, Samples

TIERS = ("device", "host", "storage")
DROP_REASONS = ("host_pressure", "write_through_unbacked_eviction")
TRANSFERS = ("fused", "staged", "torch")
LAYOUTS = ("layer_first", "page_first")

NO_CODEC = "none"
OTHER = "other"
"""Stands for a label value that the sidecar does not know, which is never passed on."""

# SGLang 0.5.23's own bounds, for the zeros before the first observation (metrics_collector.py).
RESTORE_BOUNDS = (
    *(0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009),
    *(0.01, 0.02, 0.03, 0.04, 0.05, 0.1, 0.2, 0.5, 1.0),
)
BACKUP_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
TTFT_BOUNDS = (
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0),
    *(20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0),
)


@dataclass(frozen=True)
class Pool:
    """How L2 stores KV; `codec` is `none` and the rest empty without HiQCache's pool."""

    codec: str = NO_CODEC
    transfer: str = ""
    layout: str = ""
    page_size: str = ""

    @property
    def encoded(self) -> bool:
        return self.codec != NO_CODEC


@dataclass(frozen=True)
class Copies:
    """One direction between L1 and L2, since the engine started.

    For SmolLM2-135M under `int8`: 8,932 tokens are 8,932 x 15,360 = 137,195,520 bytes.

    Parameters
    ----------
    seconds
        SGLang's own timings of the copies; it makes none on a CPU.
    records, codec_seconds
        What HiQCache's pool counts: records, and the time in which they were made and carried, or
        carried and decoded. None without it.
    """

    tokens: float
    bytes: float
    seconds: Histogram
    records: float | None = None
    codec_seconds: float | None = None

    @property
    def bytes_per_token(self) -> float | None:
        """Measured: None before the first copy."""
        return self.bytes / self.tokens if self.tokens else None


@dataclass(frozen=True)
class Figures:
    """Everything the sidecar says about an engine that answers; counters since it started.

    Parameters
    ----------
    bytes_per_token
        As the codec configures it, in bytes of one rank; None without HiQCache.
    l1_tokens_max, l2_tokens, l2_tokens_max
        Slots of L1; slots of L2 held, and in all. None without an L2.
    pool_bytes, staging_bytes
        What HiQCache allocated, one rank.
    hit_tokens, dropped_tokens
        By tier and by reason.
    nonfinite_heads
        Encoded heads that held a NaN or an infinity; None where no codec looks.
    checksum_bytes, mismatches
        Host memory of checksums, one rank; tokens and layers that differed from theirs, all
        ranks. None without `HIQCACHE_VERIFY`.
    l3_page_bytes, l3_bad_pages, l3_failed_writes
        Bytes of one stored page, one rank; pages that were read and not used, by reason, and
        batches of pages that were not written, all ranks. None without HiQCache and an L3.
    memory_bytes, memory_limit_bytes
        In use where the engine runs, and at which the kernel kills it; None without HiQCache.
    """

    pool: Pool
    bytes_per_token: float | None
    l1_tokens_max: float | None
    l2_tokens: float | None
    l2_tokens_max: float | None
    pool_bytes: float | None
    staging_bytes: float | None
    prompt_tokens: float
    hit_tokens: Mapping[str, float]
    backup: Copies
    restore: Copies
    restore_operations: float
    dropped_tokens: Mapping[str, float]
    evicted_tokens: float
    ttft: Histogram
    generated_tokens: float
    running_requests: float | None
    queued_requests: float | None
    nonfinite_heads: float | None
    checksum_bytes: float | None
    mismatches: float | None
    l3_page_bytes: float | None
    l3_bad_pages: Mapping[str, float] | None
    l3_failed_writes: float | None
    memory_bytes: float | None
    memory_limit_bytes: float | None

    @property
    def hit_rate(self) -> float | None:
        """All hit tokens over prompt tokens; None before the first prompt."""
        return sum(self.hit_tokens.values()) / self.prompt_tokens if self.prompt_tokens else None

    @property
    def l2_bytes(self) -> float | None:
        """Tokens held x bytes per token, configured if known and else as backups measure it."""
        return _product(self.l2_tokens, self._any_bytes_per_token)

    @property
    def l2_bytes_max(self) -> float | None:
        """What HiQCache allocated, else all slots x bytes per token."""
        if self.pool_bytes is not None:
            return self.pool_bytes
        return _product(self.l2_tokens_max, self._any_bytes_per_token)

    @property
    def _any_bytes_per_token(self) -> float | None:
        if self.bytes_per_token is not None:
            return self.bytes_per_token
        return self.backup.bytes_per_token


def read_figures(samples: Samples) -> Figures:
    """Select and name what `samples` holds.

    Raises
    ------
    GarbledText
        A histogram that is not one.
    """
    hits = samples.split("sglang:cached_tokens_total", "cache_source")
    drops = samples.split("sglang:hicache_dropped_tokens_total", "reason")
    backup = samples.histogram("sglang:hicache_backup_duration_seconds")
    restore = samples.histogram("sglang:load_back_duration_seconds") or _zeros(RESTORE_BOUNDS)
    operations = samples.total("hiqcache_engine_restore_operations_total")
    # SGLang's name for hits that it cannot split, which have no tier but L1.
    hits["device"] = hits.get("device", 0.0) + hits.pop("total", 0.0)
    return Figures(
        pool=_pool(samples),
        bytes_per_token=samples.largest("hiqcache_engine_bytes_per_token"),
        l1_tokens_max=samples.total("sglang:max_total_num_tokens"),
        l2_tokens=samples.total("sglang:hicache_host_used_tokens"),
        l2_tokens_max=samples.total("sglang:hicache_host_total_tokens"),
        pool_bytes=samples.total("hiqcache_engine_pool_bytes"),
        staging_bytes=samples.total("hiqcache_engine_staging_bytes"),
        prompt_tokens=samples.count("sglang:prompt_tokens_total"),
        hit_tokens={tier: hits.get(tier, 0.0) for tier in TIERS},
        backup=Copies(
            samples.count("sglang:hicache_backup_tokens_total"),
            samples.count("sglang:hicache_backup_bytes_total"),
            backup or _zeros(BACKUP_BOUNDS),
            samples.total("hiqcache_engine_backup_records_total"),
            samples.total("hiqcache_engine_encode_seconds_total"),
        ),
        restore=Copies(
            samples.count("sglang:load_back_tokens_total"),
            samples.count("sglang:load_back_bytes_total"),
            restore,
            samples.total("hiqcache_engine_restore_records_total"),
            samples.total("hiqcache_engine_decode_seconds_total"),
        ),
        restore_operations=restore.count if operations is None else operations,
        dropped_tokens=_dropped(drops),
        evicted_tokens=samples.count("sglang:evicted_tokens_total"),
        ttft=samples.histogram("sglang:time_to_first_token_seconds") or _zeros(TTFT_BOUNDS),
        generated_tokens=samples.count("sglang:generation_tokens_total"),
        running_requests=samples.total("sglang:num_running_reqs"),
        queued_requests=samples.total("sglang:num_queue_reqs"),
        nonfinite_heads=samples.total("hiqcache_engine_nonfinite_heads_total"),
        checksum_bytes=samples.largest("hiqcache_engine_checksum_bytes"),
        mismatches=_of_all_ranks(samples, "hiqcache_engine_mismatches_total"),
        l3_page_bytes=samples.largest("hiqcache_engine_l3_page_bytes"),
        l3_bad_pages=_bad_pages(samples),
        l3_failed_writes=_of_all_ranks(samples, "hiqcache_engine_l3_failed_writes_total"),
        memory_bytes=samples.largest("hiqcache_engine_memory_bytes"),
        memory_limit_bytes=samples.largest("hiqcache_engine_memory_limit_bytes"),
    )


def _pool(samples: Samples) -> Pool:
    labels = samples.labels("hiqcache_engine_pool_info")
    if labels is None:
        return Pool()
    page_size = labels.get("page_size", "")
    return Pool(
        codec=_known(labels.get("codec"), tuple(RECORD_FORMATS)),
        transfer=_known(labels.get("transfer"), TRANSFERS),
        layout=_known(labels.get("layout"), LAYOUTS),
        page_size=page_size if re.fullmatch("[0-9]{1,6}", page_size) else OTHER,
    )


def _known(value: str | None, known: tuple[str, ...]) -> str:
    return value if value in known else OTHER


def _dropped(drops: Mapping[str, float]) -> dict[str, float]:
    known = {reason: drops.get(reason, 0.0) for reason in DROP_REASONS}
    others = sum(tokens for reason, tokens in drops.items() if reason not in known)
    return {**known, OTHER: others} if others else known


def _bad_pages(samples: Samples) -> Mapping[str, float] | None:
    found = samples.split_of_all_ranks("hiqcache_engine_l3_bad_pages_total", "reason")
    return None if found is None else {fault.value: found.get(fault, 0.0) for fault in Fault}


def _of_all_ranks(samples: Samples, name: str) -> float | None:
    found = samples.split_of_all_ranks(name, "")
    return None if found is None else sum(found.values())


def _zeros(bounds: tuple[float, ...]) -> Histogram:
    return Histogram(tuple((bound, 0.0) for bound in (*bounds, math.inf)), 0.0)


def _product(count: float | None, each: float | None) -> float | None:
    return None if count is None or each is None else count * each
