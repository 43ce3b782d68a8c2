"""From the rows of one comparison to its figures, each with an interval of 95 %."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from hiqcache.lab.quality.interval import bootstrap, ratio, relative_perplexity, wilson
from hiqcache.lab.quality.row import Answered, Compared, Read

NO_FLOOR = 1e-7
"""Nats. Two orders of the same float32 sums differ by less: nothing to be compared with."""

Rows = Sequence[Compared]


def figures(rows: Rows) -> dict[str, Any]:
    """All figures that the rows of one comparison allow."""
    result: dict[str, Any] = {"prompts": len(rows)}
    shares = [row.restored_share for row in rows if row.restored_share is not None]
    if shares:
        result["restored_share"] = {"least": min(shares), "median": median(shares)}
    if read := _read(rows):
        result |= _readings(read)
    if answered := [(row, row.answered) for row in rows if row.answered is not None]:
        result |= _answers(answered)
    return result


def mean_kl(rows: Rows) -> dict[str, float]:
    """Nats per position; some row must have been read."""
    read = _read(rows)
    return bootstrap([[one.kl for one in read], [one.positions for one in read]], ratio)


def kl_over(rows: Rows, noise: Rows) -> dict[str, float] | None:
    """Mean KL over that of the noise floor, both over the same prompts; None without readings
    or a floor."""
    floor = {row.prompt: row.read.kl for row in noise if row.read}
    kls = [(row.read.kl, floor[row.prompt]) for row in rows if row.read]
    positions = sum(row.read.positions for row in noise if row.read)
    if not kls or sum(floor.values()) <= NO_FLOOR * positions:
        return None
    return bootstrap(list(zip(*kls, strict=True)), ratio)


def _read(rows: Rows) -> list[Read]:
    return [row.read for row in rows if row.read is not None]


def _readings(rows: Sequence[Read]) -> dict[str, Any]:
    positions = [row.positions for row in rows]
    nll, reference = [row.nll for row in rows], [row.reference_nll for row in rows]
    result = {
        "positions": sum(positions),
        "mean_kl": bootstrap([[row.kl for row in rows], positions], ratio),
        "top1_agreement": bootstrap([[row.top1 for row in rows], positions], ratio),
        "perplexity": float(np.exp(sum(nll) / sum(positions))),
        "perplexity_change": bootstrap([nll, reference, positions], relative_perplexity),
        "identical_readings": sum(row.identical for row in rows),
        "largest_logprob_change": max(row.largest_logprob_change for row in rows),
    }
    tops = [row.kl_top for row in rows if row.kl_top is not None]
    if tops:
        result["mean_kl_of_top_tokens"] = bootstrap([tops, positions], ratio)
    return result


def _answers(rows: Sequence[tuple[Compared, Answered]]) -> dict[str, Any]:
    answers = [answered for _, answered in rows]
    parted = [answer.first_difference for answer in answers if answer.first_difference is not None]
    of_length: dict[int, list[bool]] = {}
    for answer in sorted(answers, key=lambda answer: answer.answer_tokens):
        same = answer.first_difference is None
        of_length.setdefault(answer.answer_tokens, []).append(same)
    judged = [(row, answer) for row, answer in rows if answer.right is not None]
    return {
        "first_token_agreement": wilson(
            sum(answer.first_difference != 0 for answer in answers), len(answers)
        ),
        "sequence_agreement": {
            f"{length} tokens": wilson(sum(same), len(same)) for length, same in of_length.items()
        },
        "median_first_difference": median(parted) if parted else None,
        "tasks": {
            kind: _task([one for one in judged if one[0].kind == kind])
            for kind in sorted({row.kind for row, _ in judged})
        },
    }


def _task(rows: Sequence[tuple[Compared, Answered]]) -> dict[str, Any]:
    before = [bool(answer.reference_right) for _, answer in rows]
    after = [bool(answer.right) for _, answer in rows]
    pairs = list(zip(before, after, strict=True))
    by_depth: dict[float, list[bool]] = {}
    for (row, _), right in zip(rows, after, strict=True):
        if row.depth is not None:
            by_depth.setdefault(row.depth, []).append(right)
    return {
        "reference_accuracy": wilson(sum(before), len(rows)),
        "accuracy": wilson(sum(after), len(rows)),
        "change": bootstrap([[b - a for a, b in pairs], [1.0] * len(rows)], ratio),
        "became_wrong": sum(a and not b for a, b in pairs),
        "became_right": sum(b and not a for a, b in pairs),
        "by_depth": {
            str(depth): [sum(right), len(right)] for depth, right in sorted(by_depth.items())
        },
    }
