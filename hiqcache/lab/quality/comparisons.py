"""Which pass of which server a served quality run compares with which, and what that says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hiqcache.lab.quality.arms import OTHER_BACKEND, OTHER_CHUNK, OTHER_CHUNKS
from hiqcache.lab.quality.passes import COLD, L1, L2, Outcome, Outcomes
from hiqcache.lab.quality.row import (
    CODEC,
    CONTROL,
    NOISE,
    NOISE_FLOOR,
    Compared,
    compare_answers,
    compare_readings,
)


@dataclass(frozen=True)
class Comparison:
    """Two passes over the same prompts.

    Parameters
    ----------
    reference, other
        Arm and pass; KL is taken from the reference to the other.
    """

    name: str
    role: str
    reference: tuple[str, str]
    other: tuple[str, str]
    meaning: str


def make_comparisons(outcomes: Mapping[str, Outcomes]) -> list[Comparison]:
    """All that the arms allow, codecs first."""
    restored = ("bf16", L2)
    codecs = [arm for arm, passes in outcomes.items() if L1 in passes and arm != "bf16"]
    found = [
        Comparison(codec, CODEC, restored, (codec, L2), "both restored, only the codec differs")
        for codec in codecs
    ]
    for arm, name, meaning in (
        (OTHER_CHUNKS, NOISE_FLOOR, f"prefixes computed in chunks of {OTHER_CHUNK} tokens"),
        (OTHER_BACKEND, "noise: other attention backend", "computed by another attention backend"),
    ):
        if arm in outcomes:
            found.append(
                Comparison(name, NOISE, restored, (arm, L2), f"both bf16 and restored, {meaning}")
            )
    found.append(
        Comparison("noise: cold", NOISE, restored, ("bf16", COLD), "bf16, nothing from a cache")
    )
    l1 = ("bf16", L1)
    found.append(Comparison("bf16 restored against L1 hit", CONTROL, l1, restored, "the same rows"))
    found += [
        Comparison(
            f"L1 hits of the {codec} server",
            *(CONTROL, l1, (codec, L1)),
            "no row has been through a codec",
        )
        for codec in codecs
    ]
    if {"int8", "int8-compact"} <= set(codecs):
        found.append(
            Comparison(
                "int8-compact against int8",
                *(CONTROL, ("int8", L2), ("int8-compact", L2)),
                "the same values in another record",
            )
        )
    return found


def compare(comparison: Comparison, outcomes: Mapping[str, Outcomes]) -> Iterator[Compared]:
    """One row for each prompt, with the restored share of either side that was restored."""
    reference = _pass(outcomes, comparison.reference)
    other = _pass(outcomes, comparison.other)
    for name, left in reference.items():
        right, prompt = other[name], left.prompt
        shares = [
            outcome.restored_share
            for outcome, (_, tier) in ((left, comparison.reference), (right, comparison.other))
            if tier == L2
        ]
        yield Compared(
            comparison=comparison.name,
            role=comparison.role,
            prompt=name,
            kind=prompt.kind,
            depth=prompt.depth,
            prefix_tokens=len(prompt.prefix),
            restored_share=round(min(shares), 4) if shares else None,
            read=(
                compare_readings(left.scored, right.scored)
                if left.scored and right.scored
                else None
            ),
            answered=compare_answers(
                left.answer.token_ids,
                right.answer.token_ids,
                (prompt.is_right(left.answer.text), prompt.is_right(right.answer.text)),
            ),
        )


def _pass(outcomes: Mapping[str, Outcomes], which: tuple[str, str]) -> dict[str, Outcome]:
    arm, name = which
    return outcomes[arm][name]
