"""The engine's numbers that the sidecar knows, out of the text of its `/metrics`.

A whitelist: a line of any other metric is not even parsed, and of a known one only the labels
that decide something are looked at. So nothing else of the engine's (the model's path is in
almost every line) can reach an answer of the sidecar.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

TOKENS_AND_REQUESTS = (
    "sglang:prompt_tokens_total",
    "sglang:cached_tokens_total",
    "sglang:generation_tokens_total",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:max_total_num_tokens",
    "sglang:evicted_tokens_total",
)
HICACHE = (
    "sglang:hicache_host_used_tokens",
    "sglang:hicache_host_total_tokens",
    "sglang:hicache_backup_tokens_total",
    "sglang:hicache_backup_bytes_total",
    "sglang:load_back_tokens_total",
    "sglang:load_back_bytes_total",
    "sglang:hicache_dropped_tokens_total",
)
HIQCACHE = (
    "hiqcache_engine_pool_info",
    "hiqcache_engine_bytes_per_token",
    "hiqcache_engine_pool_bytes",
    "hiqcache_engine_staging_bytes",
    "hiqcache_engine_restore_operations_total",
    "hiqcache_engine_backup_records_total",
    "hiqcache_engine_restore_records_total",
    "hiqcache_engine_encode_seconds_total",
    "hiqcache_engine_decode_seconds_total",
    "hiqcache_engine_nonfinite_heads_total",
    "hiqcache_engine_checksum_bytes",
    "hiqcache_engine_mismatches_total",
    "hiqcache_engine_l3_page_bytes",
    "hiqcache_engine_l3_bad_pages_total",
    "hiqcache_engine_l3_failed_writes_total",
    "hiqcache_engine_memory_bytes",
    "hiqcache_engine_memory_limit_bytes",
)
HISTOGRAMS = (
    "sglang:hicache_backup_duration_seconds",
    "sglang:load_back_duration_seconds",
    "sglang:time_to_first_token_seconds",
)
KNOWN = (
    *TOKENS_AND_REQUESTS,
    *HICACHE,
    *HIQCACHE,
    *(f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count")),
)

MOST_LINES = 5000
"""Known lines that one answer may have; 64 data-parallel ranks stay below it."""

_SGLANG_LINE = re.compile(r"^sglang:[a-z0-9_]+[{ ]", re.MULTILINE)
_KNOWN_LINE = re.compile(rf"^(?:{'|'.join(KNOWN)})(?![a-zA-Z0-9_:]).*$", re.MULTILINE)


class GarbledText(ValueError):
    """The text is not what an SGLang engine answers."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: a known name, its labels, and a finite value of 0 or more."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_samples(text: str) -> list[Sample]:
    """The known samples of an engine's `/metrics`.

    Raises
    ------
    GarbledText
        Nothing of SGLang's is in it, its last line has no end, a known line cannot be read or
        has a value that no counter and no size can have, or there are more of them than
        `MOST_LINES`.
    """
    if not _SGLANG_LINE.search(text):
        raise GarbledText("no metric of SGLang's")
    if not text.endswith("\n"):
        raise GarbledText("cut short")
    lines = _KNOWN_LINE.findall(text)
    if len(lines) > MOST_LINES:
        raise GarbledText(f"more than {MOST_LINES} known lines")
    return list(_parsed(lines))


def _parsed(lines: Iterable[str]) -> Iterable[Sample]:
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                if not 0 <= sample.value < math.inf:
                    raise GarbledText(f"{sample.name} is {sample.value}")
                yield Sample(sample.name, sample.labels, sample.value)
    # The parser has no error type of its own: a broken line is a ValueError or an overrun.
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise GarbledText("a known line cannot be read") from error
