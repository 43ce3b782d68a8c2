"""Two versions of the same prompt side by side: the row that every figure is made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hiqcache.lab.quality.distribution import Scored, kl_divergence


def compare_readings(reference: Scored, other: Scored) -> dict[str, Any]:
    """Sums over a continuation's positions; `reference` is the P of KL(P || Q)."""
    return {
        "positions": len(reference.logprobs),
        "kl": float(kl_divergence(reference, other).sum()),
        "top1": reference.top1_agreements(other),
        "reference_nll": reference.nll,
        "nll": other.nll,
        "identical": reference.identical(other),
        "largest_logprob_change": float(abs(reference.logprobs - other.logprobs).max()),
    }


def compare_answers(reference: Sequence[int], other: Sequence[int]) -> dict[str, Any]:
    """Where two answers of the same length part; None if they do not."""
    difference = next(
        (index for index, (a, b) in enumerate(zip(reference, other, strict=True)) if a != b), None
    )
    return {"answer_tokens": len(reference), "first_difference": difference}
