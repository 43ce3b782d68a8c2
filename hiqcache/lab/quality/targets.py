"""What a codec must keep, and whether it did: each target with its limit and its value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOISE_RATIO = 1.2
TARGET_PROMPTS = 200
"""What the targets are stated for; fewer say little about them."""

SERVED = {"perplexity_change": 0.002, "mean_kl": 0.003, "top1_agreement": 0.97}
TWIN_FLOAT32 = {"perplexity_change": 0.0003, "mean_kl": 0.0003, "top1_agreement": 0.99}


def judge(
    limits: Mapping[str, float], codec: Mapping[str, Any], noise: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """One entry for each target: what it is, the limit, the value and whether it holds.

    Parameters
    ----------
    limits
        `SERVED` or `TWIN_FLOAT32`.
    codec, noise
        What `figures` gave; None where the target knows no noise floor.
    """
    change = abs(codec["perplexity_change"]["value"])
    kl, top1 = codec["mean_kl"]["value"], codec["top1_agreement"]["value"]
    judged = [
        _entry("perplexity change, at most", limits["perplexity_change"], change, upper=True),
        _entry("mean KL, nats, at most", limits["mean_kl"], kl, upper=True),
        _entry("top-1 agreement, at least", limits["top1_agreement"], top1, upper=False),
    ]
    if noise is not None:
        interval = noise["perplexity_change"]
        inside = interval["low"] <= codec["perplexity_change"]["value"] <= interval["high"]
        judged.append(
            {
                "target": "perplexity change, inside the noise floor's interval",
                "limit": [interval["low"], interval["high"]],
                "value": codec["perplexity_change"]["value"],
                "met": inside,
            }
        )
        floor = NOISE_RATIO * noise["mean_kl"]["value"]
        judged.append(
            _entry(f"mean KL, at most {NOISE_RATIO} x the noise floor", floor, kl, upper=True)
        )
        least = noise["top1_agreement"]["low"]
        judged.append(
            _entry("top-1, not below the noise floor's interval", least, top1, upper=False)
        )
    for kind, task in codec.get("tasks", {}).items():
        interval = task["change"]
        judged.append(
            {
                "target": f"{kind}, no change beyond the interval",
                "limit": [interval["low"], interval["high"]],
                "value": interval["value"],
                "met": interval["low"] <= 0 <= interval["high"],
            }
        )
    return judged


def _entry(target: str, limit: float, value: float, *, upper: bool) -> dict[str, Any]:
    met = value <= limit if upper else value >= limit
    return {"target": target, "limit": limit, "value": value, "met": met}
