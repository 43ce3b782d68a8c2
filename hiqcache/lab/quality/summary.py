"""The summary of a quality run, served or offline: figures of every comparison, and targets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hiqcache.errors import HiQCacheError, UsageError
from hiqcache.lab.quality.comparisons import compare, make_comparisons
from hiqcache.lab.quality.figures import figures, kl_over, mean_kl
from hiqcache.lab.quality.passes import PASSES, Outcomes
from hiqcache.lab.quality.proof import restored, why_invalid
from hiqcache.lab.quality.row import CODEC, NOISE_FLOOR, PART, PROFILE, REFERENCE, Compared
from hiqcache.lab.quality.targets import SERVED, TWIN_FLOAT32, judge, judge_rung
from hiqcache.lab.row import Store

SUMMARY, INVALID = "summary", "invalid"
Rows = Sequence[Compared]


class InvalidRun(HiQCacheError):
    """The run measured something else than it says; it is kept, marked, and has no figures."""


def conclude_served(
    outcomes: Mapping[str, Outcomes], settings: Mapping[str, Any], store: Store
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
    store.add(
        "passes",
        *(
            outcome.row(arm, name)
            for arm, passes in outcomes.items()
            for name in PASSES
            for outcome in passes.get(name, {}).values()
        ),
    )
    shares = restored(outcomes)
    if reason := why_invalid(outcomes):
        found = {"valid": False, "reason": reason, "restored": shares, **settings}
        path = store.write(INVALID, found)
        raise InvalidRun(f"this run is invalid and has no figures, see {path}: {reason}")
    comparisons = make_comparisons(outcomes)
    rows = [row for item in comparisons for row in compare(item, outcomes)]
    store.add("comparisons", *rows)
    found = _comparisons(rows)
    noise = found[NOISE_FLOOR]["figures"] if NOISE_FLOOR in found else None
    summary = {
        "valid": True,
        "kind": "served",
        **settings,
        "restored": shares,
        "comparisons": {item.name: {**asdict(item), **found[item.name]} for item in comparisons},
        "targets": _targets(found, SERVED, noise),
    }
    store.write(SUMMARY, summary)
    return summary


def conclude_offline(rows: Rows, settings: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """Write rows and summary of the twin.

    Parameters
    ----------
    settings
        Provenance and what was run; `dtype` decides which targets hold.
    """
    store.add("rows", *rows)
    found = _comparisons([row for row in rows if row.role != PROFILE])
    exact = settings["dtype"] == "float32"
    noise = found[NOISE_FLOOR]["figures"]
    # In a twin without chunks of its own both passes may agree to the bit: no floor to be held to.
    measured = not exact and noise["mean_kl"]["value"] > 0
    summary = {
        "valid": True,
        "kind": "twin",
        **settings,
        "comparisons": found,
        "profile": _profile([row for row in rows if row.role == PROFILE]),
        "targets": _twin_targets(found, settings["model"])
        if exact
        else _targets(found, SERVED, noise if measured else None),
    }
    store.write(SUMMARY, summary)
    return summary


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a result folder.

    Raises
    ------
    UsageError
        There is none, or the run is marked invalid.
    """
    invalid = folder / f"{INVALID}.json"
    if invalid.exists():
        reason = json.loads(invalid.read_text("utf-8"))["reason"]
        raise UsageError(f"{folder} holds an invalid run, which has no figures: {reason}")
    try:
        summary: dict[str, Any] = json.loads((folder / f"{SUMMARY}.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} holds no quality results: {error}") from error
    # The twin's summaries of version 0.1 call them so.
    return {"comparisons": summary.pop("variants", None)} | summary


def _comparisons(rows: Rows) -> dict[str, dict[str, Any]]:
    """Role and figures of each comparison; a codec's KL beside the noise floor."""
    groups: dict[str, list[Compared]] = {}
    for row in rows:
        groups.setdefault(row.comparison, []).append(row)
    found: dict[str, dict[str, Any]] = {}
    for name, group in groups.items():
        found[name] = {"role": group[0].role, "figures": figures(group)}
        if group[0].role in (CODEC, PART, REFERENCE) and NOISE_FLOOR in groups:
            found[name]["kl_over_noise"] = kl_over(group, groups[NOISE_FLOOR])
    return found


def _targets(
    found: Mapping[str, Any], limits: Mapping[str, float], noise: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        name: judge(limits, item["figures"], noise)
        for name, item in found.items()
        if item["role"] == CODEC and name != "bf16" and "mean_kl" in item["figures"]
    }


def _twin_targets(found: Mapping[str, Any], model: str) -> dict[str, Any]:
    """INT8's and the ladder's, each by its own limits."""
    int8 = {name: item for name, item in found.items() if name.startswith("int8")}
    rungs = {
        name: judge_rung(name, model, found)
        for name, item in found.items()
        if item["role"] == CODEC and "mean_kl" in item["figures"]
    }
    of_int8 = _targets(int8, TWIN_FLOAT32, None)
    return of_int8 | {name: judged for name, judged in rungs.items() if judged}


def _profile(rows: Rows) -> list[dict[str, Any]]:
    """Mean KL of each side and layer, and head where there are any, alone."""
    groups: dict[tuple[Any, ...], list[Compared]] = {}
    for row in rows:
        if row.read is not None:
            groups.setdefault((row.sides, row.layer, row.head), []).append(row)
    return [
        {
            "side": side,
            "layer": layer,
            "head": head,
            "prompts": len(group),
            "mean_kl": mean_kl(group),
        }
        for (side, layer, head), group in groups.items()
    ]
