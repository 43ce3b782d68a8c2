"""The passes of one server: every prompt computed, hit in L1, and restored from L2."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hiqcache.lab.quality.distribution import TOP, Scored
from hiqcache.lab.quality.prompt import Prompt
from hiqcache.lab.serving.client import Answer, Client, TextReading

COLD, L1, L2 = "cold", "l1", "l2"
PASSES = (COLD, L1, L2)
FILLER_TOKENS = 1024
FILLER_STRIDE = 997
"""Between the beginnings of two fillers: prime, so that none begins where another did."""


@dataclass(frozen=True)
class Outcome:
    """One prompt in one pass of one server.

    Parameters
    ----------
    reading, scored
        The continuation, teacher-forced; None for a prompt without one.
    answer
        The free answer.
    """

    prompt: Prompt
    reading: TextReading | None
    scored: Scored | None
    answer: Answer

    @property
    def restored_share(self) -> float:
        """The smaller share of the two requests: tokens from L2 over tokens to be read.

        Tokens to be read are the prefix for the continuation, and prefix and question for the
        answer. The last one is always computed, and so is the rest of a page.
        """
        shares = [self.answer.host_tokens / self.answer.prompt_tokens]
        if self.reading is not None:
            shares.append(self.reading.host_tokens / len(self.prompt.prefix))
        return min(shares)

    def row(self, arm: str, name: str) -> dict[str, Any]:
        """The outcome for the raw results: sums and tokens, no distributions."""
        reading, answer = self.reading, self.answer
        tiers = ("prompt_tokens", "device_tokens", "host_tokens")
        return {
            "arm": arm,
            "pass": name,
            "prompt": self.prompt.name,
            "kind": self.prompt.kind,
            "depth": self.prompt.depth,
            "prefix_tokens": len(self.prompt.prefix),
            "restored_share": round(self.restored_share, 4),
            "read": reading and {tier: getattr(reading, tier) for tier in tiers},
            "nll": self.scored and round(self.scored.nll, 6),
            "positions": len(self.prompt.continuation),
            "answered": {tier: getattr(answer, tier) for tier in tiers},
            "answer_tokens": list(answer.token_ids),
            "text": answer.text,
            "right": self.prompt.is_right(answer.text),
        }


Outcomes = dict[str, dict[str, Outcome]]
"""By pass, then by the prompt's name."""


def run_passes(
    client: Client,
    prompts: Sequence[Prompt],
    fillers: Sequence[Sequence[int]],
    *,
    every_pass: bool = True,
    note: Callable[[str], None] = lambda text: None,
) -> Outcomes:
    """Ask everything in every pass, one request after another.

    Cold readings come first and are flushed away, so that the cold answers are cold as well.
    Then each prompt is computed and at once asked again from L1. Before each of the two rounds
    of L2 requests the fillers push everything out of L1.

    Parameters
    ----------
    fillers
        Prompts that nobody asks about, together larger than L1.
    every_pass
        False leaves out what only L1 and cold comparisons need.

    Returns
    -------
    Outcomes
        `cold` and `l1` only with `every_pass`.
    """

    def read(prompt: Prompt) -> TextReading | None:
        if not prompt.continuation:
            return None
        return client.read(prompt.prefix, prompt.continuation, TOP)

    def answer(prompt: Prompt) -> Answer:
        return client.ask((*prompt.prefix, *prompt.question), prompt.new_tokens, ignore_eos=True)

    def each(stage: str) -> Iterable[Prompt]:
        for number, prompt in enumerate(prompts, 1):
            note(f"{stage}, {number} of {len(prompts)}")
            yield prompt

    def evict() -> None:
        for filler in fillers:
            client.ask(filler, 1)

    readings: dict[str, list[TextReading | None]] = {name: [] for name in PASSES}
    answers: dict[str, list[Answer]] = {name: [] for name in PASSES}
    client.flush()
    if every_pass:
        readings[COLD] = [read(prompt) for prompt in each("cold reading")]
        client.flush()
    for prompt in each("cold and L1"):
        answers[COLD].append(answer(prompt))
        if every_pass:
            answers[L1].append(answer(prompt))
            readings[L1].append(read(prompt))
    evict()
    answers[L2] = [answer(prompt) for prompt in each("L2 answers")]
    evict()
    readings[L2] = [read(prompt) for prompt in each("L2 readings")]
    return {
        name: {
            prompt.name: Outcome(prompt, reading, scored(reading) if reading else None, given)
            for prompt, reading, given in zip(prompts, readings[name], answers[name], strict=True)
        }
        for name in (PASSES if every_pass else (L2,))
    }


def scored(reading: TextReading) -> Scored:
    """The arrays of a reading."""
    shape = (len(reading.logprobs), reading.top)
    return Scored(
        np.array(reading.logprobs, dtype=np.float64),
        np.frombuffer(reading.top_ids, dtype="<i4").reshape(shape),
        np.frombuffer(reading.top_logprobs, dtype="<f4").reshape(shape),
    )


def make_fillers(prompts: Sequence[Prompt], tokens: int) -> list[tuple[int, ...]]:
    """Prompts of at least `tokens` tokens in all that share no beginning with the others.

    They are the prompts' own tokens backwards: real tokens, no real text, and every model has
    them.
    """
    source = [token for prompt in prompts for token in reversed(prompt.prefix)]
    count = -(-tokens // FILLER_TOKENS)
    starts = [number * FILLER_STRIDE % len(source) for number in range(count)]
    around = source * (1 + FILLER_TOKENS // len(source) + 1)
    return [tuple(around[start : start + FILLER_TOKENS]) for start in starts]
