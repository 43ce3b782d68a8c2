"""What is wrong with an engine, in words that say what to look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from hiqcache.sidecar.engine import Reading, Reason
from hiqcache.sidecar.figures import Copies, Figures

INERT_FACTOR = 2
"""Evicted tokens over stored ones from which an L2 without a restore counts as inert."""

CAUSES = {
    Reason.TIMEOUT: "it does not answer in time: busy, or still starting.",
    Reason.CONNECT: "no connection, or one that broke off: is it running, and on that address?",
    Reason.STATUS: "its /metrics answers with an error: was it started with --enable-metrics?",
    Reason.PARSE: "what it answers is not SGLang's metrics: is the address another program's?",
}


class Code(StrEnum):
    """What a program can tell problems apart by."""

    ENGINE_DOWN = "engine_down"
    NO_L2 = "no_l2"
    NO_HIQCACHE = "no_hiqcache"
    L2_INERT = "l2_inert"
    BYTES_PER_TOKEN_DIFFER = "bytes_per_token_differ"
    TOKENS_DROPPED = "tokens_dropped"


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
    assert reading.reason is not None and reading.down_since is not None
    since = f"{reading.down_since:%Y-%m-%d %H:%M:%S} UTC"
    if reading.last_answer is None:
        when = f"Engine down: no answer since the sidecar first asked, {since}"
    else:
        when = f"Engine down since {since} (last answer {reading.last_answer:%H:%M:%S} UTC)"
    return Problem(Code.ENGINE_DOWN, "error", f"{when}: {CAUSES[reading.reason]}")


def _problems(figures: Figures) -> Iterator[Problem]:
    if figures.l2_tokens_max is None and not figures.pool.encoded:
        yield Problem(
            Code.NO_L2,
            "warning",
            "No HiQCache in this engine, and no L2: SGLang needs --enable-hierarchical-cache.",
        )
    elif not figures.pool.encoded:
        yield Problem(
            Code.NO_HIQCACHE,
            "warning",
            "No HiQCache in this engine: its L2 is SGLang's own, in BF16. HIQCACHE_CODEC chooses "
            "a codec.",
        )
    yield from _differences(figures)
    if _inert(figures):
        yield Problem(
            Code.L2_INERT,
            "warning",
            f"L2 is inert: {figures.backup.tokens:,.0f} tokens were backed up and none restored, "
            f"while L1 evicted {figures.evicted_tokens:,.0f}: prompts that repeat are computed "
            f"again (or, under write_through_selective, do not repeat).",
        )
    if dropped := sum(figures.dropped_tokens.values()):
        yield Problem(
            Code.TOKENS_DROPPED,
            "warning",
            f"{dropped:,.0f} tokens left L1 without a copy in L2: L2 is full or its backups are "
            f"too slow.",
        )


def _differences(figures: Figures) -> Iterator[Problem]:
    directions: tuple[tuple[str, Copies], ...] = (
        ("Backups", figures.backup),
        ("Restores", figures.restore),
    )
    for name, copies in directions:
        configured, measured = figures.bytes_per_token, copies.bytes_per_token
        if configured is not None and measured is not None and configured != measured:
            yield Problem(
                Code.BYTES_PER_TOKEN_DIFFER,
                "error",
                f"{name} take {measured:,.1f} bytes a token and the codec is configured for "
                f"{configured:,.0f}: L2 is not stored as asked for.",
            )


def _inert(figures: Figures) -> bool:
    """Backups, no restore, and prompts that repeat, since the engine started.

    L1 evicts what it takes in, and what it takes in is backed up or dropped unless L2 holds it
    already. Evictions far above both therefore mean that tokens which L2 holds were computed again.
    The first filling of L1 says nothing yet.
    """
    stored = figures.backup.tokens + sum(figures.dropped_tokens.values())
    overflowed = figures.evicted_tokens > (figures.l1_tokens_max or 0)
    repeated = figures.evicted_tokens > INERT_FACTOR * stored
    backed_up = figures.backup.tokens > 0
    return backed_up and overflowed and repeated and figures.restore.tokens == 0
