"""Figures out of figures: None in, None out. Used by the declarations in `figures`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hiqcache.sidecar.source import KV

SHARED = {"draft": KV, "draft_swa": "swa", "indexer": KV}
"""Pools without slots of their own, and whose they share: in SGLang's bytes, not in its tokens."""


def quotient(dividend: float | None, divisor: float | None) -> float | None:
    """None where either is, and before there is anything to divide by."""
    return None if dividend is None or not divisor else dividend / divisor


def product(count: float | None, each: float | None) -> float | None:
    """None where either is."""
    return None if count is None or each is None else count * each


def floored(value: float | None) -> float | None:
    """Whole ones."""
    return None if value is None else float(math.floor(value))


def kv_bytes_per_token(
    copied: float | None,
    tokens: float | None,
    by_pool: Mapping[str, float],
    sizes: Mapping[str, float],
) -> float | None:
    """Copied bytes per KV token, of which the other pools' share is taken off.

    Parameters
    ----------
    copied
        SGLang's bytes, of all pools together.
    tokens, by_pool
        Copied KV tokens; copied slots of each pool that has slots of its own.
    sizes
        Bytes of one slot of each pool; without one for a pool that was copied the answer is None.
    """
    others = (by_pool.keys() | sizes.keys()) - {KV}
    if copied is None or not tokens or others - sizes.keys():
        return None
    slots = {pool: by_pool.get(pool, by_pool.get(SHARED.get(pool, ""), 0.0)) for pool in others}
    rest = copied - sum(slots[pool] * sizes[pool] for pool in others)
    return rest / tokens if math.isfinite(rest) else None
