"""`experiment run crossover`: restoring a prefix beside recomputing it, on a quiet server.

For each length, a prompt is asked three times: cold, again while it is in L1, and again once
other prompts have pushed it out of L1. Time to the first token over that of the L1 hit is what
prefill and restore cost; the median of the repeats is kept.
"""

from __future__ import annotations

import random
from statistics import median

from hiqcache.lab.experiment.measure import empty
from hiqcache.lab.experiment.plan import Run
from hiqcache.lab.experiment.row import Single
from hiqcache.lab.serving.client import Client

SUFFIX = 16
PROMPTS = 4
WORDS = (100, 1000)


def measure_crossover(client: Client, run: Run) -> tuple[Single, str | None]:
    """A cold, an L1 and an L2 prompt of the workload's prefix length.

    Returns
    -------
    tuple
        The figures, and why they may not be used.

    Raises
    ------
    HiQCacheError
        The server failed.
    """
    draw = random.Random(run.seed)
    length = run.workload.prefix
    empty(client, run.seed)

    def prompt(tokens: int) -> list[int]:
        return [draw.randrange(*WORDS) for _ in range(tokens)]

    prefixes = [prompt(length) for _ in range(PROMPTS)]
    cold, hot, restored, tokens = [], [], [], []
    for prefix in prefixes:
        cold.append(client.ask(prefix + prompt(SUFFIX), 1).ttft)
        hot.append(client.ask(prefix + prompt(SUFFIX), 1).ttft)
    for _ in range(-(-run.deployment.l1_tokens // length) + 1):
        client.ask(prompt(length), 1)
    before = client.metrics()
    for prefix in prefixes:
        answer = client.ask(prefix + prompt(SUFFIX), 1)
        tokens.append(answer.host_tokens)
        restored.append(answer.ttft)
    after = client.metrics()
    seconds, moved = (
        after.get(name, 0.0) - before.get(name, 0.0)
        for name in (
            "sglang:load_back_duration_seconds_sum",
            "sglang:load_back_tokens_total",
        )
    )
    found = Single(
        prefix_tokens=length,
        cold_ms=1e3 * median(cold),
        l1_hit_ms=1e3 * median(hot),
        l2_hit_ms=1e3 * median(restored),
        restored_tokens=tokens,
        restore_tokens_per_ms=moved / seconds / 1e3 if seconds else None,
    )
    if all(count == length for count in tokens):
        return found, None
    return found, f"{tokens} tokens came from L2, expected {length} each"
