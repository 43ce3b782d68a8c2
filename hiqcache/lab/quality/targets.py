"""What a codec must keep, and whether it did: each target with its limit and its value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOISE_RATIO = 1.2
TARGET_PROMPTS = 200
"""What the targets are stated for; fewer say little about them."""

SERVED = {"perplexity_change": 0.002, "mean_kl": 0.003, "top1_agreement": 0.97}
TWIN_FLOAT32 = {"perplexity_change": 0.0003, "mean_kl": 0.0003, "top1_agreement": 0.99}
"""Of INT8 in the float32 twin."""

TWIN_KL = {
    "smollm2-135m": {
        "exact": 0.0,
        "k8v8": 0.00006,
        "k8v4": 0.0020,
        "k6v5": 0.0010,
        "k6v4": 0.0023,
        "k5v4": 0.0036,
        "k4v4": 0.0090,
    },
    "gemma-3-270m": {
        "exact": 0.0,
        "k8v8": 0.00015,
        "k8v4": 0.0015,
        "k6v5": 0.0016,
        "k6v4": 0.0025,
        "k5v4": 0.0055,
        "k4v4": 0.016,
    },
}
"""Mean KL in nats that a rung may have in the float32 twin, by the beginning of a model's name."""

OVER_REFERENCE = {"k8v8": ("fp8 e4m3, no scales", 1 / 8), "k5v4": ("NVFP4", 2 / 5)}
"""Of a reference's KL in the same run, the part that a rung may have."""


def judge_rung(codec: str, model: str, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The targets of a rung of the ladder in the float32 twin; none for other models.

    Parameters
    ----------
    found
        Figures by comparison, those of the references among them.
    """
    limits = next((kls for name, kls in TWIN_KL.items() if model.startswith(name)), {})
    if codec not in limits:
        return []
    kl = found[codec]["figures"]["mean_kl"]["value"]
    judged = [_entry("mean KL, nats, at most", limits[codec], kl, upper=True)]
    reference, part = OVER_REFERENCE.get(codec, ("", 0.0))
    if reference in found:
        limit = part * found[reference]["figures"]["mean_kl"]["value"]
        judged.append(_entry(f"mean KL, at most {part:g} of {reference}", limit, kl, upper=True))
    return judged + _tasks(found[codec]["figures"])


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
    change = max(0.0, codec["perplexity_change"]["value"])
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
    return judged + _tasks(codec)


def _tasks(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "target": f"{kind}, no change beyond the interval",
            "limit": [task["change"]["low"], task["change"]["high"]],
            "value": task["change"]["value"],
            "met": task["change"]["low"] <= 0 <= task["change"]["high"],
        }
        for kind, task in figures.get("tasks", {}).items()
    ]


def _entry(target: str, limit: float, value: float, *, upper: bool) -> dict[str, Any]:
    met = value <= limit if upper else value >= limit
    return {"target": target, "limit": limit, "value": value, "met": met}
