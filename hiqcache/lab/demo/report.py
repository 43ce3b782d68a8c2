"""The demo's table and its report file, for `hiqcache demo` and the README."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hiqcache.lab.demo.plan import DemoPlan
from hiqcache.lab.demo.show import Finding
from hiqcache.lab.present import aligned

ROWS: tuple[tuple[str, Callable[[Finding], str]], ...] = (
    ("L2 bytes per token, measured", lambda r: f"{r.backup_bytes_per_token:,.0f}"),
    ("L2 tokens, maximum", lambda r: f"{r.l2_tokens:,}"),
    ("L2 tokens, held at the end", lambda r: f"{r.l2_held_tokens:,}"),
    ("tokens restored from L2", lambda r: f"{r.restored_tokens:,}"),
    ("hit rate of the replay", lambda r: f"{r.hit_rate:.1%}"),
    ("mean TTFT of the replay", lambda r: f"{r.mean_ttft_s * 1e3:,.0f} ms"),
    ("restored answers that changed", lambda r: f"{r.changed_answers} of {r.restored_answers}"),
)


def table(results: Sequence[Finding]) -> str:
    """BF16 beside INT8, one line for each figure."""
    head = ["", *(result.codec for result in results)]
    return aligned([head, *([name, *map(figure, results)] for name, figure in ROWS)])


def write_report(
    path: Path,
    provenance: Mapping[str, Any],
    model: str,
    plan: DemoPlan,
    results: Sequence[Finding],
) -> None:
    """Write the figures with what they were measured on."""
    report = {
        "provenance": provenance,
        "model": model,
        "documents": len(plan.prompts),
        "working_set_tokens": plan.working_set,
        "l1_tokens": plan.l1_tokens,
        "l2_budget_bytes": plan.budget_bytes,
        "arms": [result.entry() for result in results],
    }
    path.write_text(json.dumps(report, indent=1) + "\n")
