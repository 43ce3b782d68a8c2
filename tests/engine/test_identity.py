"""Real SGLang under the identity codec: bits come back as they were, and so do answers.

On a CPU an answer depends on how many tokens a pass computes, in two ways that are not
HiQCache's (docs/hicache-internals.md, "What a CPU's arithmetic does to a comparison"). So an
L1 hit is compared with an L2 hit of the same length, never with the cold pass, and pages of 16
keep the tree from handing one of the two passes a last row that the cold pass computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hiqcache.lab.serving.client import Answer
from tests.engine.case import prompts
from tests.engine.conftest import GPU, L1_TOKENS, Probed, probed_server

pytestmark = pytest.mark.engine

PROMPTS, LEAST, NEW_TOKENS = (26, 20, 8) if GPU else (16, 12, 4)
PAGE = 16
ARGUMENTS = (
    *("--hicache-write-policy", "write_through"),
    *("--hicache-mem-layout", "page_first"),
    *("--page-size", str(PAGE)),
    *("--hicache-ratio", "12"),
)


@dataclass(frozen=True)
class Tiers:
    """The answers to one prompt: computed, twice from L1, and from L2."""

    cold: Answer
    hit: Answer
    again: Answer
    restored: Answer

    @property
    def cacheable(self) -> int:
        """Whole pages of all tokens but the last, which is always computed."""
        return (self.cold.prompt_tokens - 1) // PAGE * PAGE

    @property
    def tail_is_recomputed(self) -> bool:
        """Whether the prompt ends inside a page, which the tree then does not hold."""
        return self.cold.prompt_tokens % PAGE != 0


@pytest.fixture(scope="module")
def probed(model: str, out: Path) -> Iterator[Probed]:
    with probed_server(model, out, "identity", "bf16", ARGUMENTS) as probed:
        yield probed


@pytest.fixture(scope="module")
def tiers(probed: Probed) -> list[Tiers]:
    client = probed.server.client
    near = [(text, *(client.ask(text, NEW_TOKENS) for _ in range(3))) for text in prompts(PROMPTS)]
    # The first prompts have left L1 by now; each replay pushes the next ones out.
    return [
        Tiers(cold, hit, again, client.ask(text, NEW_TOKENS)) for text, cold, hit, again in near
    ]


def test_every_tier_is_what_it_claims(tiers: list[Tiers]) -> None:
    for t in tiers:
        assert t.cold.device_tokens + t.cold.host_tokens < 0.05 * t.cacheable
        assert (t.hit.device_tokens, t.hit.host_tokens) == (t.cacheable, 0)
        assert (t.again.device_tokens, t.again.host_tokens) == (t.cacheable, 0)
        assert t.restored.host_tokens >= 0.95 * t.cacheable
        assert t.restored.device_tokens + t.restored.host_tokens == t.cacheable


def test_restored_rows_are_bit_identical(probed: Probed, tiers: list[Tiers]) -> None:
    report = probed.report()
    restored = sum(t.restored.host_tokens for t in tiers)
    assert report["restored_rows"] >= restored * report["layers"] * 2 > 0
    assert report["differing_rows"] == 0
    assert report["unpoisoned_rows"] == 0


def test_l1_is_what_was_pinned(probed: Probed) -> None:
    """As under the lossy codecs (test_restore.py), so no order of starts gives one server less."""
    assert probed.report()["device_tokens"] == L1_TOKENS


def test_l2_answers_equal_l1_answers_where_l1_repeats_itself(tiers: list[Tiers]) -> None:
    repeatable = [t for t in tiers if t.hit.logprobs == t.again.logprobs]
    assert len(repeatable) >= LEAST, "L1 hits must repeat themselves to compare"
    for t in repeatable:
        assert t.restored.logprobs[0] == t.hit.logprobs[0]
    compared = [t for t in repeatable if t.tail_is_recomputed]
    assert len(compared) >= LEAST
    for t in compared:
        assert t.restored.token_ids == t.hit.token_ids
        assert t.restored.logprobs == t.hit.logprobs
