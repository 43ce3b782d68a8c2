"""`hiqcache report`: tables and plots from a folder of experiment results."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hiqcache.commands.packages import require


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "report",
        help="tables and plots from experiment results",
        description="Print Markdown tables of everything in a folder that `hiqcache experiment "
        "run` wrote: medians with their spread over the repeats, and the simulator's "
        "predictions beside what was measured. --out also writes them and the plots.",
    )
    parser.add_argument("results", type=Path, metavar="DIR")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write report.md and PNG plots")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    require("sglang", "matplotlib", extra="experiment")
    from hiqcache.lab.experiment.report import report

    text = report(args.results)
    print(text)
    if args.out is not None:
        from hiqcache.lab.experiment.plots import write_plots

        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "report.md").write_text(text + "\n", encoding="utf-8")
        for path in write_plots(args.results, args.out):
            print(path)
    return 0
