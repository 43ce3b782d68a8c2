"""The summary of an offline run: figures of every variant, the layer profile, targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hiqcache.lab.quality.comparisons import NOISE_FLOOR
from hiqcache.lab.quality.figures import figures, kl_over
from hiqcache.lab.quality.interval import bootstrap, ratio
from hiqcache.lab.quality.store import SUMMARY, write_rows, write_summary
from hiqcache.lab.quality.targets import SERVED, TWIN_FLOAT32, judge

Rows = Sequence[dict[str, Any]]


def conclude_offline(rows: Rows, settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Write rows and summary.

    Parameters
    ----------
    settings
        Provenance and what was run; `dtype` decides which targets hold.
    """
    write_rows(folder / "rows.jsonl", rows)
    names = dict.fromkeys(row["variant"] for row in rows if row["role"] != "profile")
    variants = {
        name: {
            "role": next(row["role"] for row in rows if row["variant"] == name),
            "figures": figures([row for row in rows if row["variant"] == name]),
        }
        for name in names
    }
    floor = [row for row in rows if row["variant"] == NOISE_FLOOR]
    for name, item in variants.items():
        if item["role"] == "codec":
            of_variant = [row for row in rows if row["variant"] == name]
            item["kl_over_noise"] = kl_over(of_variant, floor)
    exact = settings["dtype"] == "float32"
    noise = variants[NOISE_FLOOR]["figures"]
    # In a twin without chunks of its own both passes may agree to the bit: no floor to be held to.
    measured = not exact and noise["mean_kl"]["value"] > 0
    summary = {
        "valid": True,
        "kind": "twin",
        **settings,
        "variants": variants,
        "profile": _profile([row for row in rows if row["role"] == "profile"]),
        "targets": {
            name: judge(
                TWIN_FLOAT32 if exact else SERVED, item["figures"], noise if measured else None
            )
            for name, item in variants.items()
            if name in settings["codecs"] and name != "bf16" and "mean_kl" in item["figures"]
        },
    }
    write_summary(folder / SUMMARY, summary)
    return summary


def _profile(rows: Rows) -> list[dict[str, Any]]:
    """Mean KL of each side and layer, and head where there are any, alone."""
    groups: dict[tuple[str, int, int | None], list[dict[str, Any]]] = {}
    for row in rows:
        if row.get("positions"):
            groups.setdefault((row["sides"], row["layer"], row["head"]), []).append(row)
    return [
        {
            "side": side,
            "layer": layer,
            "head": head,
            "prompts": len(group),
            "mean_kl": bootstrap(
                [[row["kl"] for row in group], [row["positions"] for row in group]], ratio
            ),
        }
        for (side, layer, head), group in groups.items()
    ]
