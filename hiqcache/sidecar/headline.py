"""The one line about an engine that a person reads first. Used by the summary and the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hiqcache.sidecar.arithmetic import quotient
from hiqcache.sidecar.figures import Figures
from hiqcache.sidecar.samples import ROWS
from hiqcache.sidecar.source import KV


def headline(figures: Figures | None) -> str:
    """What L2 holds and how, what it would hold otherwise, and what it gave back."""
    if figures is None:
        return "No figures: the engine is down."
    if figures.lost("l2_tokens_max"):
        return "What L2 can hold could not be read."
    if figures.l2_tokens_max is None:
        return "No L2."
    return " ".join(_sentences(figures))


def _sentences(figures: Figures) -> Iterator[str]:
    codec = f" as {figures.pool['codec']}" if figures.pool and figures.encoded else ""
    share = quotient(figures.l2_tokens, figures.l2_tokens_max)
    if share is None:
        yield f"L2 can hold {figures.l2_tokens_max:,.0f} tokens{codec}."
    else:
        yield (
            f"L2 is {share:.0%} full: {figures.l2_tokens:,.0f} of {figures.l2_tokens_max:,.0f} "
            f"tokens{codec}."
        )
    if codec and figures.l2_tokens_max_unencoded is not None:
        rows = (figures.rows or {}).get("rows")
        unencoded = rows if rows in ROWS else "Unencoded it"
        yield f"{unencoded} would hold {figures.l2_tokens_max_unencoded:,.0f} in the same memory."
    beside = {pool: n for pool, n in (figures.pool_tokens_max or {}).items() if pool != KV}
    if beside:
        yield f"Encoded too: {_list(beside, 'tokens')}."
    if figures.companion_slots:
        yield f"Unencoded, as SGLang has it: {_list(figures.companion_slots, 'slots')}."
    restored = (figures.hit_tokens or {}).get("host")
    if restored and figures.prompt_tokens:
        yield (
            f"Of {figures.prompt_tokens:,.0f} prompt tokens {restored / figures.prompt_tokens:.0%} "
            f"came back from it."
        )


def _list(pools: Mapping[str, float], unit: str) -> str:
    return ", ".join(f"{pool} ({count:,.0f} {unit})" for pool, count in sorted(pools.items()))
