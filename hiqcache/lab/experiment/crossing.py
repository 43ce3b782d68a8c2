"""When restoring loses: a prefix's time over the link against its time through prefill.

    T_restore(n) = n x bytes per token / link        T_recompute(n) = n / prefill speed

Both grow with n alike, so the length drops out: restoring loses below a link of
`bytes per token x prefill speed`. A smaller record moves that limit down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hiqcache.lab.experiment.table import Row, by_arm, markdown


@dataclass(frozen=True)
class Crossing:
    """One arm's rates, from the longest prefix measured.

    Parameters
    ----------
    bytes_per_token
        Of the record.
    prefill_tokens_per_ms
        From the cold prompt over the L1 hit.
    restore_tokens_per_ms
        From the engine's own copy times; where it keeps none, from the L2 hit over the L1 hit.
    """

    bytes_per_token: float
    prefill_tokens_per_ms: float
    restore_tokens_per_ms: float

    @property
    def link_gb_per_s(self) -> float:
        """What the restore reached, in record bytes."""
        return self.restore_tokens_per_ms * self.bytes_per_token / 1e6

    @property
    def break_even_gb_per_s(self) -> float:
        """Below this link, recomputing is faster."""
        return self.prefill_tokens_per_ms * self.bytes_per_token / 1e6


def crossing(rows: Sequence[Row]) -> Crossing:
    """The rates of one arm's rows."""
    length = max(row["prefix_tokens"] for row in rows)
    longest = [row for row in rows if row["prefix_tokens"] == length]
    cold = median(row["cold_ms"] - row["l1_hit_ms"] for row in longest)
    copied = [row["restore_tokens_per_ms"] for row in longest if row["restore_tokens_per_ms"]]
    seen = median(row["l2_hit_ms"] - row["l1_hit_ms"] for row in longest)
    return Crossing(
        longest[0]["capacity_bytes"] / longest[0]["capacity_tokens"],
        length / cold,
        median(copied) if copied else length / max(seen, 1e-3),
    )


def crossing_section(rows: Sequence[Row]) -> str:
    """Rates and limits of each arm, and the arithmetic beside what was measured."""
    rates, checks = [], []
    for arm, chosen in by_arm(rows).items():
        found = crossing(chosen)
        rates.append(
            [
                arm,
                f"{found.prefill_tokens_per_ms:,.2f}",
                f"{found.restore_tokens_per_ms:,.1f}",
                f"{found.link_gb_per_s:,.2f}",
                f"{found.break_even_gb_per_s:,.3f}",
            ]
        )
        for length in sorted({row["prefix_tokens"] for row in chosen}):
            point = [row for row in chosen if row["prefix_tokens"] == length]
            cold = median(row["cold_ms"] - row["l1_hit_ms"] for row in point)
            back = median(row["l2_hit_ms"] - row["l1_hit_ms"] for row in point)
            checks.append(
                [
                    arm,
                    str(length),
                    f"{length / found.prefill_tokens_per_ms:.1f}",
                    f"{cold:.1f}",
                    f"{length / found.restore_tokens_per_ms:.2f}",
                    f"{back:.2f}",
                    "restores" if back < cold else "recomputes",
                ]
            )
    first = markdown(
        ["arm", "prefill, tokens/ms", "restore, tokens/ms", "GB/s", "loses below, GB/s"], rates
    )
    second = markdown(
        [
            "arm",
            "prefix",
            "T_recompute, ms",
            "measured",
            "T_restore, ms",
            "measured",
            "faster",
        ],
        checks,
    )
    return (
        f"{first}\n\nRestoring also loses where prefill is faster than the restore column. The "
        f"arithmetic beside single requests on a quiet server, each over an L1 hit of the same "
        f"length:\n\n{second}"
    )
