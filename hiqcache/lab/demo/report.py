"""The demo's table and its report file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hiqcache.lab.demo.arm import ArmResult
from hiqcache.lab.demo.plan import Plan
from hiqcache.provenance import provenance

ROWS: tuple[tuple[str, Callable[[ArmResult], str]], ...] = (
    ("L2 bytes per token, measured", lambda r: f"{r.backup_bytes_per_token:,.0f}"),
    ("L2 tokens, maximum", lambda r: f"{r.l2_tokens:,}"),
    ("L2 tokens, held at the end", lambda r: f"{r.l2_held_tokens:,}"),
    ("tokens restored from L2", lambda r: f"{r.restored_tokens:,}"),
    ("hit rate of the replay", lambda r: f"{r.hit_rate:.1%}"),
    ("mean TTFT of the replay", lambda r: f"{r.mean_ttft_s * 1e3:,.0f} ms"),
    ("restored answers that changed", lambda r: f"{r.changed_answers} of {r.restored_answers}"),
)


def table(results: Sequence[ArmResult]) -> str:
    """BF16 beside INT8, one figure a line."""
    width = max(len(name) for name, _ in ROWS)
    lines = [f"{'':{width}}" + "".join(f"{r.codec:>16}" for r in results)]
    lines += [
        f"{name:{width}}" + "".join(f"{figure(r):>16}" for r in results) for name, figure in ROWS
    ]
    return "\n".join(lines)


def write_report(
    path: Path, model: str, device: str, device_name: str, plan: Plan, results: Sequence[ArmResult]
) -> None:
    """Write the figures with what they were measured on."""
    arms: list[dict[str, Any]] = [asdict(result) for result in results]
    report = {
        "provenance": provenance(device, device_name),
        "model": model,
        "documents": len(plan.prompts),
        "working_set_tokens": plan.working_set,
        "l1_tokens": plan.l1_tokens,
        "l2_budget_bytes": plan.budget_bytes,
        "arms": arms,
    }
    path.write_text(json.dumps(report, indent=1) + "\n")
