"""`--record FILE`: keep a run's outcome with what it ran on, for targets that CI cannot run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, metavar="FILE", help="write the outcome as JSON")
    parser.addoption("--record-commit", metavar="COMMIT", help="where the checkout has no .git")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    path = config.getoption("--record")
    if path is None:
        return
    import torch

    from hiqcache.provenance import cpu_model, provenance

    gpu = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if gpu else cpu_model()
    origin = provenance("cuda" if gpu else "cpu", name)
    if commit := config.getoption("--record-commit"):
        origin["commit"] = commit
    outcomes = ("passed", "failed", "error", "skipped")
    reports = {kind: terminalreporter.stats.get(kind, []) for kind in outcomes}
    outcome = {
        "provenance": origin,
        "exit_status": int(exitstatus),
        **{kind: len(found) for kind, found in reports.items()},
        "tests": {
            kind: sorted(report.nodeid for report in found) for kind, found in reports.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(outcome, indent=1) + "\n")
