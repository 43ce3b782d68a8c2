"""How many tokens an L2 holds, computed as SGLang 0.5.23 sizes it.

`HostKVCache.__init__` (`sglang/srt/mem_cache/pool_host/base.py`) turns `--hicache-size` or
`--hicache-ratio` into tokens and rounds up to whole pages, with one page of padding on top;
`auto_size_hicache` (`hicache_auto_size.py`) chooses the ratio when neither is given. Every
figure is for one rank. The floating-point operations are SGLang's, in SGLang's order, so
that the results agree to the token.
"""

from __future__ import annotations

from dataclasses import dataclass

from hiqcache.codec.catalog import codec_entry
from hiqcache.errors import UsageError
from hiqcache.geometry import Geometry

DEFAULT_RATIO = 2.0
"""SGLang's host-to-device ratio when neither size nor ratio is given."""

DEFAULT_FRACTION = 0.8
"""SGLang's default of `--hicache-host-memory-fraction`."""

ALLOCATION_SLACK = 0.05
"""`_ALLOCATION_SLACK_FRACTION`: automatic sizing leaves this much of its budget free."""


@dataclass(frozen=True)
class Capacity:
    """An L2 pool of one rank.

    Qwen3-8B, `int8`, `--hicache-size 8`, page size 1: 82,944 bytes per token, 96,451 tokens in
    as many pages, 8,000,031,744 bytes allocated.

    Parameters
    ----------
    codec
        How rows are stored.
    bytes_per_token
        Records of K and V in all layers.
    tokens, pages
        `tokens = pages * page_size`, the page of padding included.
    bytes_allocated
        `tokens * bytes_per_token`.
    """

    codec: str
    bytes_per_token: int
    tokens: int
    pages: int
    bytes_allocated: int


def bytes_per_token(geometry: Geometry, codec: str, tp: int = 1) -> int:
    """Bytes that one token takes in one rank's L2: layers x (K record + V record).

    Raises
    ------
    UsageError
        An unknown codec, a head_dim that cannot be encoded, or a `tp` that does not divide.
    """
    heads = geometry.local_heads(tp)
    entry = codec_entry(codec)
    k = entry.layout("k", heads, geometry.head_dim)
    v = entry.layout("v", heads, geometry.v_head_dim)
    return geometry.layers * (k.record_bytes + v.record_bytes)


def by_size(
    geometry: Geometry, codec: str, gigabytes: int, *, page_size: int = 1, tp: int = 1
) -> Capacity:
    """Capacity under `--hicache-size`: `int(size * 1e9 // bytes_per_token)` tokens.

    Parameters
    ----------
    gigabytes
        Decimal gigabytes of one rank; a whole number, as SGLang's flag.

    Raises
    ------
    UsageError
        `gigabytes` or `page_size` below 1, or what `bytes_per_token` refuses.
    """
    _at_least_one("hicache-size", gigabytes)
    per_token = bytes_per_token(geometry, codec, tp)
    return _whole_pages(codec, per_token, int(gigabytes * 1e9 // per_token), page_size)


def by_ratio(
    geometry: Geometry,
    codec: str,
    ratio: float,
    device_tokens: int,
    *,
    page_size: int = 1,
    tp: int = 1,
) -> Capacity:
    """Capacity under `--hicache-ratio`: `int(device_tokens * ratio)` tokens, for any codec.

    Parameters
    ----------
    device_tokens
        Tokens of the device pool (L1), SGLang's `max_total_num_tokens`.

    Raises
    ------
    UsageError
        A ratio that is not positive and finite, `device_tokens` or `page_size` below 1, or
        what `bytes_per_token` refuses.
    """
    if not 0 < ratio < float("inf"):
        raise UsageError(f"hicache-ratio must be positive and finite, got {ratio}")
    _at_least_one("device-tokens", device_tokens)
    per_token = bytes_per_token(geometry, codec, tp)
    return _whole_pages(codec, per_token, int(device_tokens * ratio), page_size)


def automatic_ratio(
    bytes_token: int,
    device_tokens: int,
    host_budget: int,
    *,
    fraction: float = DEFAULT_FRACTION,
    page_size: int = 1,
) -> float:
    """The host-to-device ratio that SGLang chooses when neither size nor ratio is given.

    `min(2.0, int(budget * fraction) * 0.95 / mirror)`, where `mirror` is what the device
    pool's slots would take in L2. SGLang takes the device pool's own bytes for it
    (`get_kv_size_bytes`: `device_tokens + page_size` rows of K and V); HiQCache counts
    records instead, because those are what the budget pays for. For `bf16` both are equal.

    Parameters
    ----------
    bytes_token
        Bytes of one token in L2, from `bytes_per_token`.
    device_tokens
        Tokens of the device pool (L1).
    host_budget
        Bytes that this rank may claim: free host memory within the cgroup's limit, less the
        10 GiB that SGLang keeps in reserve, divided by the ranks of the host
        (`host_memory_budget_bytes`).
    fraction
        `--hicache-host-memory-fraction`.

    Raises
    ------
    UsageError
        A fraction outside (0, 1], `device_tokens`, `host_budget` or `page_size` below 1, or a
        budget of which no whole byte is left.
    """
    if not 0 < fraction <= 1:
        raise UsageError(f"host-memory-fraction must be in (0, 1], got {fraction}")
    _at_least_one("device-tokens", device_tokens)
    _at_least_one("host-budget", host_budget)
    _at_least_one("page-size", page_size)
    mirror = (device_tokens + page_size) * bytes_token
    budget = int(host_budget * fraction)
    ratio = min(DEFAULT_RATIO, budget * (1 - ALLOCATION_SLACK) / mirror)
    if ratio <= 0:
        raise UsageError(f"host-budget {host_budget} x {fraction} leaves nothing for L2")
    return ratio


def automatic(
    geometry: Geometry,
    codec: str,
    device_tokens: int,
    host_budget: int,
    *,
    fraction: float = DEFAULT_FRACTION,
    page_size: int = 1,
    tp: int = 1,
) -> Capacity:
    """Capacity under SGLang's automatic sizing, counted in records (`automatic_ratio`)."""
    ratio = automatic_ratio(
        bytes_per_token(geometry, codec, tp),
        device_tokens,
        host_budget,
        fraction=fraction,
        page_size=page_size,
    )
    return by_ratio(geometry, codec, ratio, device_tokens, page_size=page_size, tp=tp)


def _whole_pages(codec: str, per_token: int, tokens: int, page_size: int) -> Capacity:
    _at_least_one("page-size", page_size)
    pages = tokens // page_size + 1
    tokens = pages * page_size
    return Capacity(codec, per_token, tokens, pages, tokens * per_token)


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"{name} must be at least 1, got {value}")
