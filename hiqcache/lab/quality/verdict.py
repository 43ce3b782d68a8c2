"""The sentence that stands before a table of the twin: how close each codec is, and to what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hiqcache.lab.quality.figures import NO_FLOOR
from hiqcache.lab.quality.row import CODEC, NOISE_FLOOR, REFERENCE

UNITS = (
    "KL divergence in nats, a mean over positions: how far the next-token distribution after a "
    "restore is from BF16's. 0 is the same; serving the same prompts in other chunks changes "
    "SmolLM2-135M by 0.0013 (docs/quality.md). A perplexity change below zero is no fault."
)


def verdict(comparisons: Mapping[str, Any]) -> Iterator[str]:
    """What the figures of an offline run say, a sentence each; none without readings."""
    codecs = [
        (name, item["figures"]["mean_kl"]["value"])
        for name, item in comparisons.items()
        if item["role"] == CODEC and name != "bf16" and "mean_kl" in item["figures"]
    ]
    if not codecs:
        return
    closest = sorted(codecs, key=lambda one: one[1])
    said = ", ".join(f"{name} by {short(kl)}" for name, kl in closest)
    yield f"A restore from L2 changes what the model expects next, in nats: {said}."
    references = [
        f"{name} {short(item['figures']['mean_kl']['value'])}"
        for name, item in comparisons.items()
        if item["role"] == REFERENCE and "mean_kl" in item["figures"]
    ]
    if references:
        yield f"What people use today, in the same run: {', '.join(references)}."
    floor = comparisons.get(NOISE_FLOOR, {}).get("figures", {}).get("mean_kl")
    if floor and floor["value"] > NO_FLOOR:
        found = short(floor["value"])
        yield f"The noise floor of this run (the same prompts in other chunks): {found}."


def short(kl: float) -> str:
    """Nats to two digits, without an exponent."""
    if kl < NO_FLOOR:
        return "0"
    digits = next(digits for digits in range(1, 10) if kl >= 10.0**-digits or digits == 9)
    return f"{kl:.{digits + 1}f}".rstrip("0")
