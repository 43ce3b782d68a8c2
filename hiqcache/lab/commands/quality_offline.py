"""`hiqcache quality offline`: the same comparison in transformers, without a server."""

from __future__ import annotations

import argparse
from typing import Any

from hiqcache.codec.catalog import BASELINE
from hiqcache.commands.numbers import positive
from hiqcache.commands.packages import require
from hiqcache.lab.commands.quality_shared import add_shared, choose_device, codecs, load, measured


def add_offline(ways: Any) -> None:
    parser = ways.add_parser(
        "offline",
        help="the same in Hugging Face transformers, without a server",
        description="Compute each prefix once, pass its KV cache through every codec, K and V "
        "alone and each layer alone, and compare what the model then expects.",
    )
    add_shared(parser, "offline")
    parser.add_argument("--codecs", type=codecs, default=measured(), metavar="NAME,NAME")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto (default)")
    parser.add_argument(
        "--profile-prompts",
        type=whole_number,
        default=4,
        metavar="N",
        help="prompts that are also run with each layer alone (default 4)",
    )
    parser.add_argument("--per-head", action="store_true", help="each KV head alone as well")
    parser.add_argument(
        "--answers",
        type=whole_number,
        metavar="N",
        help="prompts that are also answered (default all)",
    )
    parser.set_defaults(run=run_offline)


def run_offline(args: argparse.Namespace) -> int:
    require("transformers", "numpy", extra="sglang,demo")
    from hiqcache.codec.registry import get_codec
    from hiqcache.lab.progress import progress
    from hiqcache.lab.quality.offline import OfflineSpec, run_offline
    from hiqcache.lab.quality.report import as_text
    from hiqcache.lab.quality.setup import describe
    from hiqcache.lab.quality.summary import conclude_offline
    from hiqcache.lab.quality.twin import Twin
    from hiqcache.lab.row import Store, origin

    device = choose_device(args.device)
    gpu = device != "cpu"
    store = Store(args.out)
    model, text, prompts = load(args, gpu, windows=False)
    names = (BASELINE, *args.codecs)
    spec = OfflineSpec(
        prompts=prompts,
        codecs=[get_codec(codec) for codec in names],
        profile_prompts=args.profile_prompts,
        profile_codec=get_codec(names[-1]),
        per_head=args.per_head,
        answers=len(prompts) if args.answers is None else args.answers,
    )
    rows = []
    with progress(f"offline, {args.dtype} on {device}") as clock:
        for row in run_offline(Twin(model, args.dtype, device), spec, text.decode):
            rows.append(row)
            clock.note(f"{row.prompt}: {row.comparison}")
    settings = {
        "provenance": origin(args.commit),
        **describe(model, args.prompts, prompts),
        "dtype": args.dtype,
        "codecs": list(names),
        "profile_codec": names[-1],
    }
    print(as_text(conclude_offline(rows, settings, store)))
    print(f"\n{store.folder}")
    return 0


def whole_number(text: str) -> int:
    """An integer of 0 or more."""
    return 0 if text == "0" else positive(text)
