"""One fixed piece of work, timed before and after: prefill, decode, eviction and restore."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from hiqcache.lab.serving.client import Client
from hiqcache.lab.workload.documents import load_documents
from tests.engine.soak.processes import cpu_seconds

PROMPTS = 4
"""Documents' halves of about 500 tokens each: together more than L1 holds, and less than L2."""
NEW_TOKENS = 16


@dataclass(frozen=True)
class Round:
    """Seconds of one round, by the clock and of the server's CPUs, and what L2 gave in it."""

    wall_s: float
    cpu_s: float
    host_tokens: int


def work(client: Client, pid: int) -> Round:
    """From an empty cache, ask a few documents twice over."""
    client.flush()
    documents = load_documents()[-PROMPTS:]
    wall, cpu = time.monotonic(), cpu_seconds(pid)
    host = 0
    for document in documents * 2:
        prompt = document.text[: len(document.text) // 2]
        host += client.ask(prompt, NEW_TOKENS, ignore_eos=True).host_tokens
    return Round(time.monotonic() - wall, cpu_seconds(pid) - cpu, host)


def measure(client: Client, pid: int, rounds: int) -> list[Round]:
    """As many rounds as asked for."""
    return [work(client, pid) for _ in range(rounds)]


def compare(before: list[Round], after: list[Round]) -> dict[str, Any]:
    """Both lists, and speed afterwards over speed before, from the medians."""

    def speed(figure: str) -> float:
        old, new = (median(getattr(r, figure) for r in rounds) for rounds in (before, after))
        return old / new

    return {
        "wall_speed_ratio": speed("wall_s"),
        "cpu_speed_ratio": speed("cpu_s"),
        "before": [asdict(r) for r in before],
        "after": [asdict(r) for r in after],
    }
