"""Real SGLang under the identity codec: bits come back as they were, and so do answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hiqcache.serving.client import Answer
from tests.engine.conftest import Probed, probed_server
from tests.engine.test_restore import prompts

pytestmark = pytest.mark.engine

PROMPTS = 24
NEW_TOKENS = 8
ARGUMENTS = (
    *("--hicache-write-policy", "write_through"),
    *("--hicache-mem-layout", "page_first"),
    *("--hicache-ratio", "12"),
)


@pytest.fixture(scope="module")
def probed(model: str, out: Path):  # type: ignore[no-untyped-def]
    with probed_server(model, out, "identity", "bf16", ARGUMENTS) as probed:
        yield probed


@pytest.fixture(scope="module")
def tiers(probed: Probed) -> list[tuple[Answer, Answer, Answer, Answer]]:
    """For each prompt the cold, two L1-hit and the L2-restored answer."""
    client = probed.server.client
    near = []
    for text in prompts(PROMPTS):
        cold, hit, again = (client.ask(text, NEW_TOKENS) for _ in range(3))
        near.append((text, cold, hit, again))
    # The first prompts have left L1 by now; each replay pushes the next ones out.
    return [(cold, hit, again, client.ask(text, NEW_TOKENS)) for text, cold, hit, again in near]


def test_every_tier_is_what_it_claims(tiers: list[tuple[Answer, Answer, Answer, Answer]]) -> None:
    assert len(tiers) >= 20
    for cold, hit, again, restored in tiers:
        most = cold.prompt_tokens - 1
        assert cold.device_tokens + cold.host_tokens < 0.05 * most
        assert (hit.device_tokens, hit.host_tokens) == (most, 0)
        assert (again.device_tokens, again.host_tokens) == (most, 0)
        assert restored.host_tokens >= 0.95 * most
        assert restored.device_tokens + restored.host_tokens == most


def test_restored_rows_are_bit_identical(
    probed: Probed, tiers: list[tuple[Answer, Answer, Answer, Answer]]
) -> None:
    report = probed.report()
    restored = sum(answers[3].host_tokens for answers in tiers)
    assert report["restored_rows"] >= restored * 30 * 2 > 0
    assert report["differing_rows"] == 0
    assert report["unpoisoned_rows"] == 0


def test_l2_answers_equal_l1_answers_where_l1_repeats_itself(
    tiers: list[tuple[Answer, Answer, Answer, Answer]],
) -> None:
    repeatable = [
        (hit, restored) for _, hit, again, restored in tiers if hit.logprobs == again.logprobs
    ]
    assert len(repeatable) >= 0.9 * len(tiers), "L1 hits must repeat themselves to compare"
    for hit, restored in repeatable:
        assert restored.token_ids == hit.token_ids
        assert restored.logprobs == hit.logprobs
