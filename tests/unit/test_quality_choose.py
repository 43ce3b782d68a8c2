"""The rule by which a rung is named, on figures of every kind."""

from __future__ import annotations

from typing import Any

import pytest

from hiqcache.geometry import Geometry
from hiqcache.lab.quality.choose import choose, lines
from hiqcache.lab.quality.reference import REFERENCES
from hiqcache.lab.quality.targets import judge_rung
from hiqcache.lab.quality.verdict import short, verdict

QWEN = Geometry.load("qwen3-8b")


def figure(value: float, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    kl = {"value": value, "low": low or 0.8 * value, "high": high or 1.2 * value}
    return {"mean_kl": kl, "top1_agreement": {"value": 0.99, "low": 0.98, "high": 1.0}}


def found(**codecs: float) -> dict[str, Any]:
    named = {name.replace("_", "-"): kl for name, kl in codecs.items()}
    rungs = {name: {"role": "codec", "figures": figure(kl)} for name, kl in named.items()}
    return rungs | {
        name: {"role": "reference", "figures": figure(0.002 * (1 + 8 * place))}
        for place, name in enumerate(REFERENCES)
    }


LADDER = found(
    **{"bf16": 0.0, "exact": 0.0, "k8v8": 0.00003, "k6v5": 0.0007, "k6v4": 0.0018, "k4v4": 0.009}
)


def test_the_most_tokens_below_the_noise_floor() -> None:
    choice = choose(LADDER, 0.0013, QWEN)
    assert choice.codec == "k6v5"
    assert "2.67 times the tokens of BF16" in choice.reason
    assert "0.0007 nats" in choice.reason and "below the noise floor of 0.0013" in choice.reason
    assert "the next rung, k6v4, reaches 0.0022" in choice.reason
    assert "an fp8 cache without scales has 0.002" in choice.reason


@pytest.mark.parametrize(
    ("floor", "codec"), [(0.1, "k4v4"), (0.0009, "k6v5"), (0.0008, "k8v8"), (0.00001, "exact")]
)
def test_the_upper_end_of_the_interval_counts(floor: float, codec: str) -> None:
    assert choose(LADDER, floor, QWEN).codec == codec


def test_where_nothing_lossy_will_do_every_bit_does() -> None:
    reason = choose(found(exact=0.0, k8v8=0.01, k4v4=0.3), 0.001, QWEN).reason
    assert reason.startswith("1.28 times the tokens of BF16, every bit")


def test_the_table_has_codecs_references_and_the_floor() -> None:
    table = lines(LADDER, {"value": 0.0013, "low": 0.001, "high": 0.002}, QWEN)
    assert [line[0] for line in table[1:]] == [*LADDER, "noise floor, bfloat16"]
    assert table[3][1:3] == ("1.88 x", "0.00003")


@pytest.mark.parametrize(
    ("kl", "text"),
    [(0, "0"), (1e-10, "0"), (0.0000312, "0.000031"), (0.0013, "0.0013"), (0.25, "0.25")],
)
def test_nats_are_written_without_exponents(kl: float, text: str) -> None:
    assert short(kl) == text


def test_the_verdict_names_the_closest_first_and_what_people_use() -> None:
    first, second = verdict(LADDER)
    assert first.index("exact by 0") < first.index("k8v8") < first.index("k4v4 by 0.009")
    assert "fp8 e4m3, no scales 0.002, NVFP4 0.018" in second


def test_targets_are_those_of_the_model_that_was_measured() -> None:
    smollm2 = judge_rung("k8v8", "smollm2-135m-instruct-0.1.2-r1", LADDER)
    assert [entry["met"] for entry in smollm2] == [True, True]
    assert judge_rung("k4v4", "gemma-3-270m-1.0.0-r1", LADDER)[0]["limit"] == 0.016
    assert not judge_rung("k6v4", "gemma-3-270m-1.0.0-r1", found(k6v4=0.0026))[0]["met"]
    assert judge_rung("k8v8", "Qwen3-8B", LADDER) == []
