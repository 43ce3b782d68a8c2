"""From the rows of one comparison to its figures, each with an interval of 95 %."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from hiqcache.lab.quality.interval import bootstrap, ratio, relative_perplexity, wilson

Rows = Sequence[dict[str, Any]]


def figures(rows: Rows) -> dict[str, Any]:
    """All figures that the rows allow.

    Parameters
    ----------
    rows
        One a prompt, as `compare` or the twin gives them.
    """
    result: dict[str, Any] = {"prompts": len(rows)}
    shares = [row["restored_share"] for row in rows if row.get("restored_share") is not None]
    if shares:
        result["restored_share"] = {"least": min(shares), "median": median(shares)}
    read = [row for row in rows if row.get("positions")]
    if read:
        result |= _readings(read)
    answered = [row for row in rows if "answer_tokens" in row]
    if answered:
        result |= _answers(answered)
    return result


def kl_over(rows: Rows, noise: Rows) -> dict[str, float] | None:
    """Mean KL over that of the noise floor, both over the same prompts; None without readings."""
    floor = {row["prompt"]: row["kl"] for row in noise if row.get("positions")}
    read = [row for row in rows if row.get("positions")]
    if not read or sum(floor.values()) == 0:
        return None
    return bootstrap([[row["kl"] for row in read], [floor[row["prompt"]] for row in read]], ratio)


def _readings(rows: Rows) -> dict[str, Any]:
    positions = [row["positions"] for row in rows]

    def over_positions(key: str) -> dict[str, float]:
        return bootstrap([[row[key] for row in rows], positions], ratio)

    result = {
        "positions": sum(positions),
        "mean_kl": over_positions("kl"),
        "top1_agreement": over_positions("top1"),
        "perplexity": float(np.exp(sum(row["nll"] for row in rows) / sum(positions))),
        "perplexity_change": bootstrap(
            [[row["nll"] for row in rows], [row["reference_nll"] for row in rows], positions],
            relative_perplexity,
        ),
        "identical_readings": sum(row["identical"] for row in rows),
        "largest_logprob_change": max(row["largest_logprob_change"] for row in rows),
    }
    if "kl_top" in rows[0]:
        result["mean_kl_of_top_tokens"] = over_positions("kl_top")
    return result


def _answers(rows: Rows) -> dict[str, Any]:
    parted = [row["first_difference"] for row in rows if row["first_difference"] is not None]
    lengths = sorted({row["answer_tokens"] for row in rows})
    return {
        "first_token_agreement": wilson(
            sum(row["first_difference"] != 0 for row in rows), len(rows)
        ),
        "sequence_agreement": {
            f"{length} tokens": wilson(
                sum(
                    row["first_difference"] is None
                    for row in rows
                    if row["answer_tokens"] == length
                ),
                sum(row["answer_tokens"] == length for row in rows),
            )
            for length in lengths
        },
        "median_first_difference": median(parted) if parted else None,
        "tasks": {
            kind: _task([row for row in rows if row["kind"] == kind])
            for kind in sorted({row["kind"] for row in rows if row["right"] is not None})
        },
    }


def _task(rows: Rows) -> dict[str, Any]:
    rows = [row for row in rows if row["right"] is not None]
    before = sum(row["reference_right"] for row in rows)
    after = sum(row["right"] for row in rows)
    change = bootstrap(
        [[row["right"] - row["reference_right"] for row in rows], [1.0] * len(rows)], ratio
    )
    return {
        "reference_accuracy": wilson(before, len(rows)),
        "accuracy": wilson(after, len(rows)),
        "change": change,
        "became_wrong": sum(row["reference_right"] and not row["right"] for row in rows),
        "became_right": sum(row["right"] and not row["reference_right"] for row in rows),
        "by_depth": {
            str(depth): [
                sum(row["right"] for row in rows if row["depth"] == depth),
                sum(row["depth"] == depth for row in rows),
            ]
            for depth in sorted({row["depth"] for row in rows if row["depth"] is not None})
        },
    }
