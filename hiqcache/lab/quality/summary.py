"""The summary of a served run: figures of every comparison, restored shares, targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hiqcache.errors import HiQCacheError
from hiqcache.lab.quality.comparisons import CODEC, NOISE_FLOOR, compare, make_comparisons
from hiqcache.lab.quality.figures import figures, kl_over
from hiqcache.lab.quality.passes import PASSES, Outcomes
from hiqcache.lab.quality.proof import restored, why_invalid
from hiqcache.lab.quality.store import INVALID, SUMMARY, write_rows, write_summary
from hiqcache.lab.quality.targets import SERVED, judge


class InvalidRun(HiQCacheError):
    """The run measured something else than it says; it is kept, marked, and has no figures."""


def conclude(
    outcomes: Mapping[str, Outcomes], settings: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """Write the raw rows, prove the restores, and write the summary.

    Parameters
    ----------
    settings
        Provenance and what was run, for either file.

    Raises
    ------
    InvalidRun
        A compared request was not restored; `invalid.json` says which, and nothing else.
    """
    write_rows(
        folder / "passes.jsonl",
        (
            outcome.row(arm, name)
            for arm, passes in outcomes.items()
            for name in PASSES
            for outcome in passes.get(name, {}).values()
        ),
    )
    shares = restored(outcomes)
    if reason := why_invalid(outcomes):
        write_summary(
            folder / INVALID,
            {"valid": False, "reason": reason, "restored": shares, **settings},
        )
        raise InvalidRun(
            f"this run is invalid and has no figures, see {folder / INVALID}: {reason}"
        )
    comparisons = make_comparisons(outcomes)
    rows = {item.name: list(compare(item, outcomes)) for item in comparisons}
    write_rows(folder / "comparisons.jsonl", (row for each in rows.values() for row in each))
    found = {
        item.name: {**asdict(item), "figures": figures(rows[item.name])} for item in comparisons
    }
    for name, item in found.items():
        if item["role"] == CODEC and NOISE_FLOOR in rows:
            item["kl_over_noise"] = kl_over(rows[name], rows[NOISE_FLOOR])
    summary = {
        "valid": True,
        "kind": "served",
        **settings,
        "restored": shares,
        "comparisons": found,
        "targets": _targets(found),
    }
    write_summary(folder / SUMMARY, summary)
    return summary


def _targets(found: Mapping[str, Any]) -> dict[str, Sequence[dict[str, Any]]]:
    noise = found[NOISE_FLOOR]["figures"] if NOISE_FLOOR in found else None
    return {
        name: judge(SERVED, item["figures"], noise)
        for name, item in found.items()
        if item["role"] == CODEC and "mean_kl" in item["figures"]
    }
