"""Companions: the host pools that stand beside the encoded ones and stay as SGLang has them.

This is the one list. A host pool that is neither encoded nor named here is refused, so nothing
is stored in a form that nobody asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hiqcache.engine import families

logger = logging.getLogger(__name__)

COMPANIONS = {
    "MambaPoolHost": "recurrent state and convolution windows",
    "MHATokenToKOnlyPoolHost": "index keys",
    "QSAIndexerPoolHost": "index keys",
}
"""SGLang's host pools that are kept exactly as SGLang has them, by class name: what each holds."""


def is_companion(pool: Any) -> bool:
    """Whether a host pool is one of `COMPANIONS`, and SGLang's own class of that name."""
    kind = type(pool)
    return kind.__name__ in COMPANIONS and kind.__module__.startswith("sglang.")


@dataclass(frozen=True)
class Companion:
    """A companion of a running stack.

    Parameters
    ----------
    name
        SGLang's name of the pool: `mamba`, `indexer`.
    kind
        Its class.
    holds
        What it holds, in words.
    slots, slot_bytes
        How many it has, and bytes of one: a state, or the index keys of one token.
    """

    name: str
    kind: str
    holds: str
    slots: int
    slot_bytes: int

    @property
    def bytes(self) -> int:
        return self.slots * self.slot_bytes

    def __str__(self) -> str:
        return (
            f"{self.name} ({self.holds}, {self.kind}) {self.slots} slots of {self.slot_bytes} "
            f"bytes, {self.bytes} bytes"
        )


def companions(entries: Iterable[Any]) -> list[Companion]:
    """The companions among the entries of SGLang's `HostPoolGroup`."""
    return [
        Companion(
            name=str(entry.name.value),
            kind=type(pool).__name__,
            holds=COMPANIONS[type(pool).__name__],
            slots=pool.size,
            slot_bytes=pool.size_per_token,
        )
        for entry in entries
        if is_companion(pool := entry.host_pool)
    ]


def announce_companions(found: list[Companion]) -> None:
    """Say in the log and on `/metrics` what host memory holds beside the encoded pools."""
    for companion in found:
        logger.info("HiQCache: unencoded beside L2, as SGLang has it: %s", companion)
        here = {"pool": companion.name, **families.rank_labels()}
        families.gauge(
            "hiqcache_engine_companion_bytes",
            "Host memory of a pool that HiQCache leaves as SGLang has it",
            here,
        ).set(companion.bytes)
        families.gauge(
            "hiqcache_engine_companion_slots",
            "States, or tokens with index keys, that such a pool can hold",
            here,
        ).set(companion.slots)
