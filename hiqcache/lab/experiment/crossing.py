"""When restoring loses, for the report: a prefix over the link against a prefix through prefill.

    T_restore(n) = n x bytes per token / link        T_recompute(n) = n / prefill speed

Both grow with n alike, so the length drops out: restoring loses below a link of
`bytes per token x prefill speed`. A smaller record moves that limit down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hiqcache.lab.experiment.row import Measurement, Single, by_arm
from hiqcache.lab.present import markdown


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


def crossing(rows: Sequence[Measurement]) -> Crossing:
    """The rates of one arm's rows."""
    single = _singles(rows)
    length = max(found.prefix_tokens for found in single)
    longest = [found for found in single if found.prefix_tokens == length]
    cold = median(found.cold_ms - found.l1_hit_ms for found in longest)
    copied = [found.restore_tokens_per_ms for found in longest if found.restore_tokens_per_ms]
    seen = median(found.l2_hit_ms - found.l1_hit_ms for found in longest)
    return Crossing(
        rows[0].capacity_bytes / rows[0].capacity_tokens,
        length / cold,
        median(copied) if copied else length / max(seen, 1e-3),
    )


def _singles(rows: Sequence[Measurement]) -> list[Single]:
    return [row.figures for row in rows if isinstance(row.figures, Single)]


def crossing_section(rows: Sequence[Measurement]) -> str:
    """Rates and limits of each arm, and the arithmetic beside what was measured."""
    rates, checks = [], []
    for arm, chosen in by_arm(rows).items():
        found, single = crossing(chosen), _singles(chosen)
        rates.append(
            [
                arm,
                f"{found.prefill_tokens_per_ms:,.2f}",
                f"{found.restore_tokens_per_ms:,.1f}",
                f"{found.link_gb_per_s:,.2f}",
                f"{found.break_even_gb_per_s:,.3f}",
            ]
        )
        for length in sorted({one.prefix_tokens for one in single}):
            point = [one for one in single if one.prefix_tokens == length]
            cold = median(one.cold_ms - one.l1_hit_ms for one in point)
            back = median(one.l2_hit_ms - one.l1_hit_ms for one in point)
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
        ("arm", "prefill, tokens/ms", "restore, tokens/ms", "GB/s", "loses below, GB/s"), rates
    )
    second = markdown(
        ("arm", "prefix", "T_recompute, ms", "measured", "T_restore, ms", "measured", "faster"),
        checks,
    )
    return (
        f"{first}\n\nRestoring also loses where prefill is faster than the restore column. The "
        f"arithmetic beside single requests on a quiet server, each over an L1 hit of the same "
        f"length:\n\n{second}"
    )
