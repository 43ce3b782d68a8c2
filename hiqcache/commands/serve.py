"""`hiqcache serve`: SGLang's server, started only if it will really load HiQCache."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="start SGLang's server, or say why HiQCache would not be in it",
        description="Check the HIQCACHE_* variables and that SGLang will load the plugin, then "
        "become `python -m sglang.launch_server` with the arguments behind `--`.",
    )
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="-- ARGUMENTS", help="SGLang's arguments"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from hiqcache.preflight import refuse_excluded_plugin

    refuse_excluded_plugin(os.environ)
    arguments = args.arguments[1:] if args.arguments[:1] == ["--"] else args.arguments
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "sglang.launch_server", *arguments])
