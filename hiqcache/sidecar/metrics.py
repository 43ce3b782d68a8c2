"""Every metric that describes an engine, as data: name, type, help and where its value comes from.

`docs/metrics.md` says the same in prose; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from hiqcache.sidecar.figures import Figures
from hiqcache.sidecar.ranks import Histogram

Value = float | Mapping[str, float] | Mapping[str, str] | Histogram | None


class Kind(StrEnum):
    """The type on the TYPE line; `info` is a gauge of 1 whose labels carry the information."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True)
class Metric:
    """One metric; `label` names the keys of a value that is a mapping."""

    name: str
    kind: Kind
    help: str
    value: Callable[[Figures], Value]
    label: str | None = None


POOL_LABELS = ("codec", "transfer", "layout", "page_size")


def _pool(figures: Figures) -> Mapping[str, str]:
    return {label: getattr(figures.pool, label) for label in POOL_LABELS}


def _gauge(name: str, text: str, value: Callable[[Figures], Value]) -> Metric:
    return Metric(name, Kind.GAUGE, text, value)


def _counter(
    name: str, text: str, value: Callable[[Figures], Value], label: str | None = None
) -> Metric:
    return Metric(name, Kind.COUNTER, text, value, label)


def _histogram(name: str, text: str, value: Callable[[Figures], Value]) -> Metric:
    return Metric(name, Kind.HISTOGRAM, text, value)


METRICS = (
    Metric(
        "hiqcache_pool_info",
        Kind.INFO,
        "How L2 stores KV; codec is none without HiQCache in the engine.",
        _pool,
    ),
    _gauge(
        "hiqcache_l2_bytes_per_token_configured",
        "Bytes of one token in L2 by the codec's record arithmetic, one rank.",
        lambda f: f.bytes_per_token,
    ),
    _gauge(
        "hiqcache_l2_bytes_per_token_backup",
        "Backed-up bytes divided by backed-up tokens, one rank.",
        lambda f: f.backup.bytes_per_token,
    ),
    _gauge(
        "hiqcache_l2_bytes_per_token_restore",
        "Restored bytes divided by restored tokens, one rank.",
        lambda f: f.restore.bytes_per_token,
    ),
    _gauge("hiqcache_l2_tokens", "Tokens held in L2.", lambda f: f.l2_tokens),
    _gauge("hiqcache_l2_tokens_max", "Tokens that L2 can hold.", lambda f: f.l2_tokens_max),
    _gauge("hiqcache_l2_bytes", "Bytes of L2 that hold tokens, one rank.", lambda f: f.l2_bytes),
    _gauge("hiqcache_l2_bytes_max", "Bytes of L2 in all, one rank.", lambda f: f.l2_bytes_max),
    _counter(
        "hiqcache_prompt_tokens_total",
        "Prompt tokens of finished requests.",
        lambda f: f.prompt_tokens,
    ),
    _counter(
        "hiqcache_hit_tokens_total",
        "Prompt tokens that were not computed, by the tier they were found in.",
        lambda f: f.hit_tokens,
        "tier",
    ),
    _gauge(
        "hiqcache_hit_rate",
        "Hit tokens of all tiers divided by prompt tokens, since the engine started.",
        lambda f: f.hit_rate,
    ),
    _counter("hiqcache_backup_tokens_total", "Tokens copied to L2.", lambda f: f.backup.tokens),
    _counter(
        "hiqcache_backup_bytes_total", "Bytes copied to L2, one rank.", lambda f: f.backup.bytes
    ),
    _histogram(
        "hiqcache_backup_duration_seconds",
        "Time of one copy to L2.",
        lambda f: f.backup.seconds,
    ),
    _counter(
        "hiqcache_restore_tokens_total", "Tokens copied back from L2.", lambda f: f.restore.tokens
    ),
    _counter(
        "hiqcache_restore_bytes_total",
        "Bytes copied back from L2, one rank.",
        lambda f: f.restore.bytes,
    ),
    _histogram(
        "hiqcache_restore_duration_seconds",
        "Time of one copy back from L2.",
        lambda f: f.restore.seconds,
    ),
    _counter(
        "hiqcache_restore_operations_total",
        "Copies back from L2.",
        lambda f: f.restore_operations,
    ),
    _counter(
        "hiqcache_backup_records_total",
        "Records written to L2, a K and a V a token and layer, one rank.",
        lambda f: f.backup.records,
    ),
    _counter(
        "hiqcache_restore_records_total",
        "Records read from L2, a K and a V a token and layer, one rank.",
        lambda f: f.restore.records,
    ),
    _counter(
        "hiqcache_encode_seconds_total",
        "Time in which rows were encoded and carried to L2, one rank.",
        lambda f: f.backup.codec_seconds,
    ),
    _counter(
        "hiqcache_decode_seconds_total",
        "Time in which records were carried from L2 and decoded, one rank.",
        lambda f: f.restore.codec_seconds,
    ),
    _counter(
        "hiqcache_nonfinite_heads_total",
        "Encoded heads that held a NaN or an infinity, one rank.",
        lambda f: f.nonfinite_heads,
    ),
    _gauge(
        "hiqcache_checksum_bytes",
        "Host memory beside L2 that holds checksums, one rank.",
        lambda f: f.checksum_bytes,
    ),
    _counter(
        "hiqcache_mismatches_total",
        "Tokens and layers read from L2 that were not what was put there, all ranks.",
        lambda f: f.mismatches,
    ),
    _gauge(
        "hiqcache_l3_page_bytes",
        "Bytes of one page in L3, one rank.",
        lambda f: f.l3_page_bytes,
    ),
    _counter(
        "hiqcache_l3_bad_pages_total",
        "Pages read from L3 and not used, all ranks.",
        lambda f: f.l3_bad_pages,
        "reason",
    ),
    _counter(
        "hiqcache_l3_failed_writes_total",
        "Batches of pages that L3 did not write, all or in part, all ranks.",
        lambda f: f.l3_failed_writes,
    ),
    _counter(
        "hiqcache_dropped_tokens_total",
        "Tokens lost from L1 without a copy in L2.",
        lambda f: f.dropped_tokens,
        "reason",
    ),
    _counter(
        "hiqcache_evicted_tokens_total", "Tokens evicted from L1.", lambda f: f.evicted_tokens
    ),
    _histogram("hiqcache_ttft_seconds", "Time to first token.", lambda f: f.ttft),
    _counter(
        "hiqcache_generated_tokens_total",
        "Generated tokens of finished requests.",
        lambda f: f.generated_tokens,
    ),
    _gauge(
        "hiqcache_running_requests", "Requests that are computed.", lambda f: f.running_requests
    ),
    _gauge("hiqcache_queued_requests", "Requests that wait.", lambda f: f.queued_requests),
    _gauge(
        "hiqcache_memory_bytes", "Memory in use where the engine runs.", lambda f: f.memory_bytes
    ),
    _gauge(
        "hiqcache_memory_limit_bytes",
        "Memory at which the kernel kills: the container's limit, else the machine's memory.",
        lambda f: f.memory_limit_bytes,
    ),
    _gauge(
        "hiqcache_staging_bytes",
        "GPU memory that the transfer keeps for itself, one rank.",
        lambda f: f.staging_bytes,
    ),
)
