"""Next-token distributions as a server gives them: the most likely tokens at each position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TOP = 128
"""Tokens a position, of which a divergence is computed; the rest counts as one token."""


@dataclass(frozen=True)
class Scored:
    """A continuation read after a prefix, teacher-forced.

    Parameters
    ----------
    logprobs
        `[positions]` float64: log probability of each token that really follows, nats.
    top_ids, top_logprobs
        `[positions, TOP]` int32 and float32: the most likely tokens, most likely first.
    """

    logprobs: NDArray[np.float64]
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]

    @property
    def nll(self) -> float:
        """Negative log likelihood of the continuation, nats, summed over its positions."""
        return float(-self.logprobs.sum())

    def identical(self, other: Scored) -> bool:
        """Whether every returned log probability has the same bits."""
        return (
            np.array_equal(self.logprobs, other.logprobs)
            and np.array_equal(self.top_ids, other.top_ids)
            and np.array_equal(self.top_logprobs, other.top_logprobs)
        )

    def top1_agreements(self, other: Scored) -> int:
        """Positions at which both find the same token the most likely.

        Two tokens of equal probability have no order: where the first ones are tied, sharing
        one of them is agreement.
        """
        agreements = 0
        for mine, theirs in zip(_firsts(self), _firsts(other), strict=True):
            agreements += not mine.isdisjoint(theirs)
        return agreements


def _firsts(scored: Scored) -> list[set[int]]:
    best = scored.top_logprobs == scored.top_logprobs[:, :1]
    return [set(ids[tied].tolist()) for ids, tied in zip(scored.top_ids, best, strict=True)]


def kl_divergence(p: Scored, q: Scored) -> NDArray[np.float64]:
    """KL(p || q) at each position, nats, over the tokens that both name and one for the rest.

    Putting tokens together never raises a divergence (the data processing inequality), so this
    is a lower bound of the divergence over the whole vocabulary. The offline twin computes
    both and says how far apart they are.

    Parameters
    ----------
    p, q
        The same continuation under the reference and under what is compared with it.

    Returns
    -------
    NDArray
        `[positions]` float64, at least 0.
    """
    return np.array(
        [
            _kl(*arguments)
            for arguments in zip(p.top_ids, p.top_logprobs, q.top_ids, q.top_logprobs, strict=True)
        ]
    )


def _kl(
    p_ids: NDArray[np.int32],
    p_logprobs: NDArray[np.float32],
    q_ids: NDArray[np.int32],
    q_logprobs: NDArray[np.float32],
) -> float:
    _, at_p, at_q = np.intersect1d(p_ids, q_ids, assume_unique=True, return_indices=True)
    log_p = p_logprobs[at_p].astype(np.float64)
    log_q = q_logprobs[at_q].astype(np.float64)
    p, q = np.exp(log_p), np.exp(log_q)
    # Log probabilities are rounded to float32: their sum may pass 1 by a last bit.
    rest_p, rest_q = max(1 - p.sum(), 1e-9), max(1 - q.sum(), 1e-9)
    divergence = float((p * (log_p - log_q)).sum() + rest_p * np.log(rest_p / rest_q))
    return max(divergence, 0.0)
