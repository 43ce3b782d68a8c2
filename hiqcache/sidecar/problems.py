"""What is wrong with an engine, in words that say what to look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from hiqcache.sidecar.engine import Reading
from hiqcache.sidecar.figures import Figures

INERT_FACTOR = 2
"""Evicted tokens over stored ones from which an L2 without a restore counts as inert."""


class Code(StrEnum):
    """What a program can tell problems apart by."""

    ENGINE_DOWN = "engine_down"
    NO_L2 = "no_l2"
    NO_HIQCACHE = "no_hiqcache"
    L2_INERT = "l2_inert"
    BYTES_PER_TOKEN_DIFFER = "bytes_per_token_differ"
    TOKENS_DROPPED = "tokens_dropped"
    FIGURES_UNREADABLE = "figures_unreadable"


@dataclass(frozen=True)
class Problem:
    """`error`: no figures, or not to be trusted. `warning`: it works less well than it could."""

    code: Code
    severity: str
    text: str


def find_problems(reading: Reading) -> list[Problem]:
    """All that the counters since the engine's start can tell; none if all is well."""
    if reading.figures is None:
        return [_down(reading)]
    return list(_problems(reading.figures))


def _down(reading: Reading) -> Problem:
    assert reading.failure is not None and reading.down_since is not None
    since = f"{reading.down_since:%Y-%m-%d %H:%M:%S} UTC"
    if reading.last_answer is None:
        when = f"Engine down: no answer since the sidecar first asked, {since}"
    else:
        when = f"Engine down since {since} (last answer {reading.last_answer:%H:%M:%S} UTC)"
    return Problem(Code.ENGINE_DOWN, "error", f"{when}: {reading.failure.sentence}")


def _problems(figures: Figures) -> Iterator[Problem]:
    if figures.unreadable:
        yield Problem(
            Code.FIGURES_UNREADABLE,
            "warning",
            f"Figures that the engine gives and that are no numbers: "
            f"{', '.join(figures.unreadable)}. They are left out.",
        )
    if figures.pool is not None and not figures.encoded:
        yield _no_hiqcache(figures)
    yield from _differences(figures)
    if _inert(figures):
        yield Problem(
            Code.L2_INERT,
            "warning",
            f"L2 is inert: {figures.backup_tokens:,.0f} tokens were backed up and none restored, "
            f"while L1 evicted {figures.evicted_tokens:,.0f}: prompts that repeat are computed "
            f"again (or, under write_through_selective, do not repeat).",
        )
    if dropped := sum((figures.dropped_tokens or {}).values()):
        yield Problem(
            Code.TOKENS_DROPPED,
            "warning",
            f"{dropped:,.0f} tokens left L1 without a copy in L2: L2 is full or its backups are "
            f"too slow.",
        )


def _no_hiqcache(figures: Figures) -> Problem:
    if figures.l2_tokens_max is None and "l2_tokens_max" not in figures.unreadable:
        return Problem(
            Code.NO_L2,
            "warning",
            "No HiQCache in this engine, and no L2: SGLang needs --enable-hierarchical-cache.",
        )
    return Problem(
        Code.NO_HIQCACHE,
        "warning",
        "No HiQCache in this engine: its L2 is SGLang's own, in BF16. HIQCACHE_CODEC chooses a "
        "codec.",
    )


def _differences(figures: Figures) -> Iterator[Problem]:
    configured = figures.bytes_per_token
    directions = (
        ("Backups", figures.backup_bytes_per_token),
        ("Restores", figures.restore_bytes_per_token),
    )
    for name, measured in directions:
        if configured is not None and measured is not None and configured != measured:
            yield Problem(
                Code.BYTES_PER_TOKEN_DIFFER,
                "error",
                f"{name} take {measured:,.1f} bytes per token and the codec is configured for "
                f"{configured:,.0f}: L2 is not stored as asked for.",
            )


def _inert(figures: Figures) -> bool:
    """Backups, no restore, and prompts that repeat, since the engine started.

    L1 evicts what it takes in, and what it takes in is backed up or dropped unless L2 holds it
    already. Evictions far above both therefore mean that tokens which L2 holds were computed again.
    The first filling of L1 says nothing yet.
    """
    backed_up, evicted = figures.backup_tokens, figures.evicted_tokens
    if not backed_up or evicted is None or figures.dropped_tokens is None:
        return False
    stored = backed_up + sum(figures.dropped_tokens.values())
    overflowed = evicted > (figures.l1_tokens_max or 0)
    repeated = evicted > INERT_FACTOR * stored
    return overflowed and repeated and figures.restore_tokens == 0
