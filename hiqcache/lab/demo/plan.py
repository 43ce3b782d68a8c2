"""What the demo asks, and pools sized so that the two codecs must differ: `hiqcache demo`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hiqcache.capacity import bytes_per_token
from hiqcache.codec.catalog import BASELINE, RECOMMENDED
from hiqcache.errors import UsageError
from hiqcache.geometry import Geometry
from hiqcache.lab.workload.documents import Document

BF16_SHARE = 0.75
"""The part of the working set that the budget holds in BF16."""

L1_SHARE = 0.25
"""The part of the working set that fits in L1."""

SEED = 0


@dataclass(frozen=True)
class DemoPlan:
    """Prompts and pool sizes of one demo.

    Parameters
    ----------
    prompts
        One a document, with its question.
    replay_order
        Indices of the prompts, shuffled: replayed in the order they were first asked, an
        L2 that is a little too small would evict each prompt just before it is wanted.
    working_set
        Tokens of all prompts, with the answers that follow them.
    l1_tokens
        Tokens of the device pool.
    budget_bytes
        Host memory for L2, the same for every codec.
    new_tokens
        Length of an answer.
    """

    prompts: tuple[str, ...]
    replay_order: tuple[int, ...]
    working_set: int
    l1_tokens: int
    budget_bytes: int
    new_tokens: int

    def l2_tokens(self, geometry: Geometry, codec: str) -> int:
        """Tokens that the budget holds under a codec."""
        return self.budget_bytes // bytes_per_token(geometry, codec)

    def ratio(self, geometry: Geometry, codec: str) -> float:
        """The `--hicache-ratio` that gives `l2_tokens`: SGLang takes whole GB otherwise."""
        # SGLang truncates l1 * ratio; half a token on top keeps that from losing one.
        return (self.l2_tokens(geometry, codec) + 0.5) / self.l1_tokens


def make_plan(
    documents: Sequence[Document],
    geometry: Geometry,
    count_tokens: Callable[[str], int],
    new_tokens: int,
) -> DemoPlan:
    """Size L1 and the L2 budget so that BF16 must evict what the recommended codec keeps.

    Raises
    ------
    UsageError
        A geometry for which that codec's record saves too little to tell the two apart.
    """
    prompts = tuple(
        f"{document.text}\n\nQuestion: {document.questions[0]}\nAnswer:" for document in documents
    )
    lengths = [count_tokens(prompt) + new_tokens for prompt in prompts]
    working_set = sum(lengths)
    budget = int(BF16_SHARE * working_set) * bytes_per_token(geometry, BASELINE)
    # A request has to fit into L1 beside the one that is being evicted.
    l1_tokens = max(int(L1_SHARE * working_set), 2 * max(lengths))
    order = list(range(len(prompts)))
    random.Random(SEED).shuffle(order)
    plan = DemoPlan(prompts, tuple(order), working_set, l1_tokens, budget, new_tokens)
    if plan.l2_tokens(geometry, RECOMMENDED) < working_set:
        raise UsageError(
            f"{geometry.name} has {geometry.kv_heads} KV heads of {geometry.head_dim}: its "
            f"{RECOMMENDED} record holds {plan.l2_tokens(geometry, RECOMMENDED)} of the "
            f"{working_set} tokens that the demo needs; use a model with more or wider KV heads"
        )
    return plan
