"""Which pass of which server is compared with which, and what that says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hiqcache.lab.quality.arm import OTHER_CHUNK
from hiqcache.lab.quality.pairs import compare_answers, compare_readings
from hiqcache.lab.quality.passes import COLD, L1, L2, Outcome, Outcomes

CODEC, NOISE, CONTROL = "codec", "noise", "control"
NOISE_FLOOR = "noise: other chunks"
"""The comparison that codecs are held against."""


@dataclass(frozen=True)
class Comparison:
    """Two passes over the same prompts.

    Parameters
    ----------
    role
        `codec`: only the codec differs. `noise`: the same mathematics in another order.
        `control`: what must be the same, or shows where a difference comes from.
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
    comparisons = [
        Comparison(codec, CODEC, restored, (codec, L2), "both restored, only the codec differs")
        for codec in codecs
    ]
    if "bf16-chunk" in outcomes:
        comparisons.append(
            Comparison(
                NOISE_FLOOR,
                NOISE,
                restored,
                ("bf16-chunk", L2),
                f"both bf16 and restored, prefixes computed in chunks of {OTHER_CHUNK} tokens",
            )
        )
    if "bf16-backend" in outcomes:
        comparisons.append(
            Comparison(
                "noise: other attention backend",
                NOISE,
                restored,
                ("bf16-backend", L2),
                "both bf16 and restored, all computed by another attention backend",
            )
        )
    comparisons.append(
        Comparison("noise: cold", NOISE, restored, ("bf16", COLD), "bf16, nothing from a cache")
    )
    comparisons.append(
        Comparison("bf16 restored against L1 hit", CONTROL, ("bf16", L1), restored, "the same rows")
    )
    for codec in codecs:
        comparisons.append(
            Comparison(
                f"L1 hits of the {codec} server",
                CONTROL,
                ("bf16", L1),
                (codec, L1),
                "no row has been through a codec",
            )
        )
    if {"int8", "int8-compact"} <= set(codecs):
        comparisons.append(
            Comparison(
                "int8-compact against int8",
                CONTROL,
                ("int8", L2),
                ("int8-compact", L2),
                "the same values in another record",
            )
        )
    return comparisons


def compare(comparison: Comparison, outcomes: Mapping[str, Outcomes]) -> Iterator[dict[str, Any]]:
    """One row a prompt, with the restored share of either side that was restored."""
    reference = _pass(outcomes, comparison.reference)
    other = _pass(outcomes, comparison.other)
    for name, left in reference.items():
        right = other[name]
        readings = (
            compare_readings(left.scored, right.scored) if left.scored and right.scored else {}
        )
        shares = [
            outcome.restored_share
            for outcome, (_, tier) in ((left, comparison.reference), (right, comparison.other))
            if tier == L2
        ]
        yield {
            "comparison": comparison.name,
            "prompt": name,
            "kind": left.prompt.kind,
            "depth": left.prompt.depth,
            "prefix_tokens": len(left.prompt.prefix),
            "restored_share": round(min(shares), 4) if shares else None,
            **readings,
            **compare_answers(left.answer.token_ids, right.answer.token_ids),
            "reference_right": left.prompt.is_right(left.answer.text),
            "right": right.prompt.is_right(right.answer.text),
        }


def _pass(outcomes: Mapping[str, Outcomes], which: tuple[str, str]) -> dict[str, Outcome]:
    arm, name = which
    return outcomes[arm][name]
