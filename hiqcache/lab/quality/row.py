"""The row that every quality figure is made from: one prompt, compared in two versions.

Served runs and the offline twin make the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from hiqcache.lab.quality.distribution import Scored, kl_divergence
from hiqcache.lab.row import Row

CODEC, PART, REFERENCE = "codec", "part", "reference"
NOISE, CONTROL, PROFILE = "noise", "control", "profile"
"""What a comparison is for. Codec: only the codec differs. Part: K or V alone went through it.
Reference: what people use, in the codec's place.
Noise: the same mathematics in another order. Control: what must be the same, or shows where a
difference comes from. Profile: one layer or head alone went through the codec."""

NOISE_FLOOR = "noise: other chunks"
"""The comparison that codecs are held against."""


@dataclass(frozen=True, kw_only=True)
class Read(Row):
    """A continuation under teacher forcing: sums over its positions.

    Parameters
    ----------
    kl
        Nats, from the reference to the other; over the whole vocabulary where `kl_top` is there.
    kl_top
        The same over the most likely tokens, as a server gives them.
    top1
        Positions at which both find the same token the most likely.
    identical
        Whether every log probability has the same bits.
    """

    positions: int
    kl: float
    top1: int
    reference_nll: float
    nll: float
    identical: bool
    largest_logprob_change: float
    kl_top: float | None = None


@dataclass(frozen=True, kw_only=True)
class Answered(Row):
    """Two free answers of the same length.

    Parameters
    ----------
    first_difference
        Where they part; None if they do not.
    reference_right, right
        None where there is no right answer.
    """

    answer_tokens: int
    first_difference: int | None = None
    reference_right: bool | None = None
    right: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Compared(Row):
    """One prompt in one comparison.

    Parameters
    ----------
    restored_share
        Of the tokens to be read, what came from L2; None where nothing was to come from there.
    codec, sides, layer, head
        Offline: what went through the codec.
    """

    comparison: str
    role: str
    prompt: str
    kind: str
    depth: float | None = None
    prefix_tokens: int
    restored_share: float | None = None
    codec: str | None = None
    sides: str | None = None
    layer: int | None = None
    head: int | None = None
    read: Read | None = None
    answered: Answered | None = None

    @classmethod
    def parse(cls, entry: Mapping[str, Any]) -> Self:
        return super().parse(
            {
                **entry,
                "read": Read.parse(entry) if "positions" in entry else None,
                "answered": Answered.parse(entry) if "answer_tokens" in entry else None,
            }
        )


def compare_readings(reference: Scored, other: Scored) -> Read:
    """Two readings of a continuation; `reference` is the P of KL(P || Q)."""
    return Read(
        positions=len(reference.logprobs),
        kl=float(kl_divergence(reference, other).sum()),
        top1=reference.top1_agreements(other),
        reference_nll=reference.nll,
        nll=other.nll,
        identical=reference.identical(other),
        largest_logprob_change=float(abs(reference.logprobs - other.logprobs).max()),
    )


def compare_answers(
    reference: Sequence[int],
    other: Sequence[int],
    right: tuple[bool | None, bool | None] = (None, None),
) -> Answered:
    """Two answers, and whether either is right."""
    difference = next(
        (index for index, (a, b) in enumerate(zip(reference, other, strict=True)) if a != b), None
    )
    return Answered(
        answer_tokens=len(reference),
        first_difference=difference,
        reference_right=right[0],
        right=right[1],
    )
