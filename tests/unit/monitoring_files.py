"""The rules and the boards as data: what they ask Prometheus for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "monitoring" / "prometheus"
GRAFANA = ROOT / "monitoring" / "grafana"
BOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
RECORDING = PROMETHEUS / "rules" / "recording.yml"
ALERTS = PROMETHEUS / "rules" / "alerts.yml"


def rules(path: Path) -> list[dict[str, Any]]:
    groups = yaml.safe_load(path.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def load(path: Path) -> dict[str, Any]:
    board: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return board


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def board_queries() -> Iterator[tuple[str, str]]:
    """Each panel's title and expression, as Grafana would send it for all variants."""
    for path in BOARDS:
        for panel in panels(load(path)):
            for target in panel["targets"]:
                expr = target["expr"].replace("$variant", ".*")
                expr = expr.replace("$__rate_interval", "20s")
                assert "$" not in expr, f"{panel['title']}: a variable that no test knows: {expr}"
                yield f"{path.stem}: {panel['title']}", expr


def metric_names(expr: str) -> set[str]:
    """Metrics that a PromQL expression reads."""
    expr = re.sub(r"#.*", "", expr)
    expr = re.sub(r'"(?:\\.|[^"\\])*"', '""', expr)
    expr = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", expr)
    expr = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", expr)
    words = re.findall(r"(?<![\w:.])[a-zA-Z_:][\w:]*(?![\w:]|\s*\()", expr)
    return set(words) - {"and", "or", "unless", "bool", "offset", "Inf", "NaN"}


def asked_for() -> set[str]:
    """Everything that has to give a series: recording rules, panels, and what alerts look at."""
    exprs = {rule["record"] for rule in rules(RECORDING)} | {expr for _, expr in board_queries()}
    return exprs.union(*(metric_names(rule["expr"]) for rule in rules(ALERTS)))
