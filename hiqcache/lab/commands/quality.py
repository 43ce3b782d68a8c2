"""`hiqcache quality`: what a lossy L2 restore does to answers, served and offline."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hiqcache.commands.packages import require
from hiqcache.lab.commands.quality_choose import add_choose
from hiqcache.lab.commands.quality_offline import add_offline
from hiqcache.lab.commands.quality_run import add_run


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "quality",
        help="what a lossy L2 restore does to answers",
        description="Compare answers and next-token distributions after a restore from L2: on "
        "real SGLang servers (run), or in Hugging Face transformers without one (choose, offline).",
    )
    ways = parser.add_subparsers(metavar="WAY", required=True)
    add_choose(ways)
    add_run(ways)
    add_offline(ways)
    _add_bias(ways)
    _add_report(ways)


def _add_bias(ways: Any) -> None:
    parser = ways.add_parser(
        "bias",
        help="what a large bias of K does under each codec, simulated",
        description="Give random K a bias as large as that of Qwen2, pass it through every codec, "
        "and print how far attention moves. Seconds, on a CPU.",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="append the rows to a .jsonl")
    parser.set_defaults(run=run_bias)


def run_bias(args: argparse.Namespace) -> int:
    require("torch", "numpy", extra="codec")
    from hiqcache.codec.catalog import listed_codecs
    from hiqcache.codec.registry import get_codec
    from hiqcache.lab.quality.bias import simulate
    from hiqcache.lab.quality.ladder import bias_table
    from hiqcache.lab.row import append, origin

    rows = list(simulate([get_codec(name) for name in listed_codecs()]))
    if args.out:
        append(args.out, [{"provenance": origin()}, *rows])
    print(bias_table(rows))
    return 0


def _add_report(ways: Any) -> None:
    parser = ways.add_parser(
        "report",
        help="tables and plots of result folders",
        description="Print the figures of result folders as Markdown. With --into, put them "
        "between the markers of a document and the plots beside it.",
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--into", type=Path, metavar="FILE")
    parser.set_defaults(run=run_report)


def run_report(args: argparse.Namespace) -> int:
    require("numpy", "matplotlib", extra="experiment")
    from hiqcache.lab.quality.report import as_text, write_into
    from hiqcache.lab.quality.summary import read_summary

    summaries = {folder: read_summary(folder) for folder in args.folders}
    if args.into:
        write_into(args.into, summaries)
        print(args.into)
    else:
        print("\n\n".join(as_text(summary) for summary in summaries.values()))
    return 0
