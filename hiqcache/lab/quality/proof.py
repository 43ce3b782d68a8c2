"""The proof that restored means restored; without it a run has no figures."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from hiqcache.lab.quality.passes import COLD, L1, L2, Outcomes

LEAST_SHARE = 0.95
"""Of the tokens to be read that must have come from where the pass says."""


def restored(outcomes: Mapping[str, Outcomes]) -> dict[str, Any]:
    """The restored share of every arm: it belongs beside the arm's figures."""
    figures = {}
    for arm, passes in outcomes.items():
        shares = [outcome.restored_share for outcome in passes[L2].values()]
        figures[arm] = {
            "least_share": min(shares),
            "median_share": median(shares),
            "restored_prompts": sum(share >= LEAST_SHARE for share in shares),
            "prompts": len(shares),
        }
    return figures


def why_invalid(outcomes: Mapping[str, Outcomes]) -> str | None:
    """One sentence if any compared request was not what its pass claims; None if all were.

    A restored request has `LEAST_SHARE` of its tokens from L2, an L1 hit has them from L1, and
    a cold one has no more than the rest from anywhere.
    """
    for arm, figure in restored(outcomes).items():
        missed = figure["prompts"] - figure["restored_prompts"]
        if missed:
            return (
                f"{arm}: {missed} of {figure['prompts']} prompts were not restored from L2 "
                f"(least share {figure['least_share']:.1%}, expected {LEAST_SHARE:.0%}): L1 has "
                f"to be smaller than the fillers between two rounds, and L2 has to hold every "
                f"prompt"
            )
    bounds = {COLD: (0.0, 1 - LEAST_SHARE), L1: (LEAST_SHARE, 1.0)}
    for arm, passes in outcomes.items():
        for name, (device_least, cached_most) in bounds.items():
            for outcome in passes.get(name, {}).values():
                tokens = outcome.answer.prompt_tokens
                device, host = outcome.answer.device_tokens, outcome.answer.host_tokens
                if device < device_least * tokens or device + host > cached_most * tokens:
                    return (
                        f"{arm}: {outcome.prompt.name} found {device} tokens in L1 and {host} in "
                        f"L2 of {tokens} in the {name} pass, which is not what the pass claims"
                    )
    return None
