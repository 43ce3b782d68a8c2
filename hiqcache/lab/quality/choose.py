"""Which rung for a model: the one with the most tokens whose change no one could tell from noise.

`hiqcache quality choose` runs the ladder on the user's own model and hands its figures in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hiqcache.capacity import bytes_per_token
from hiqcache.codec.catalog import BASELINE, codec_entry
from hiqcache.geometry import Geometry
from hiqcache.lab.quality.reference import REFERENCES
from hiqcache.lab.quality.row import CODEC, REFERENCE
from hiqcache.lab.quality.verdict import short

FP8 = next(iter(REFERENCES))


@dataclass(frozen=True)
class Choice:
    """The codec to take, and why."""

    codec: str
    reason: str


def tokens_over_bf16(geometry: Geometry, codec: str) -> float:
    """Tokens in the same memory, over BF16's."""
    return bytes_per_token(geometry, BASELINE) / bytes_per_token(geometry, codec)


def choose(found: Mapping[str, Any], floor: float, geometry: Geometry) -> Choice:
    """The rung with the most tokens whose divergence is below the noise floor, with its interval.

    Parameters
    ----------
    found
        Figures by comparison, of the float32 twin.
    floor
        Mean KL of the same prompts computed in other chunks in bfloat16, as a server does.
    """
    kls = {
        name: item["figures"]["mean_kl"]
        for name, item in found.items()
        if item["role"] == CODEC and name != BASELINE
    }
    rungs = sorted(kls, key=lambda name: -tokens_over_bf16(geometry, name))
    fp8 = found[FP8]["figures"]["mean_kl"]["value"]
    for name in rungs:
        if not codec_entry(name).lossy or kls[name]["high"] <= floor:
            break
    gain = f"{tokens_over_bf16(geometry, name):.2f} times the tokens of BF16"
    if not codec_entry(name).lossy:
        reason = f"{gain}, every bit: no lossy codec stays below the noise floor of {short(floor)}"
        return Choice(name, reason)
    kl = kls[name]
    reason = (
        f"{gain}, and a divergence of {short(kl['value'])} nats ({short(kl['low'])} to "
        f"{short(kl['high'])}), below the noise floor of {short(floor)}: no more than serving the "
        f"same prompts in other chunks changes; an fp8 cache without scales has {short(fp8)}"
    )
    before = rungs[: rungs.index(name)]
    if before:
        reason += f"; the next rung, {before[-1]}, reaches {short(kls[before[-1]]['high'])}"
    return Choice(name, reason)


def lines(
    found: Mapping[str, Any], floor: Mapping[str, float], geometry: Geometry
) -> list[tuple[str, ...]]:
    """The table: what was measured, its tokens over BF16, divergence and agreement."""
    head = ("", "tokens", "KL, nats", "interval of 95 %", "top-1 the same")
    table = [
        (
            name,
            f"{tokens_over_bf16(geometry, name):.2f} x" if item["role"] == CODEC else "",
            short(item["figures"]["mean_kl"]["value"]),
            f"{short(item['figures']['mean_kl']['low'])} to "
            f"{short(item['figures']['mean_kl']['high'])}",
            f"{item['figures']['top1_agreement']['value']:.2%}",
        )
        for name, item in found.items()
        if item["role"] in (CODEC, REFERENCE)
    ]
    ends = f"{short(floor['low'])} to {short(floor['high'])}"
    return [head, *table, ("noise floor, bfloat16", "", short(floor["value"]), ends, "")]
