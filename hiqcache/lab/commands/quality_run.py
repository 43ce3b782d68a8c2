"""`hiqcache quality run`: cold, L1 and L2 passes on real SGLang servers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hiqcache.commands.numbers import positive
from hiqcache.commands.packages import require
from hiqcache.errors import UsageError
from hiqcache.lab.commands.quality_shared import add_shared, codecs, load, measured


def add_run(ways: Any) -> None:
    parser = ways.add_parser(
        "run",
        help="cold, L1 and L2 passes on real SGLang servers",
        description="Start a server for bf16, for each codec and for the noise floor, ask every "
        "prompt cold, from L1 and from L2, and compare. A run in which any compared request was "
        "not restored from L2 has no figures: it is kept as invalid.json, and the exit code is 1.",
    )
    add_shared(parser, "served")
    parser.add_argument("--codecs", type=codecs, default=measured(), metavar="NAME,NAME")
    parser.add_argument(
        "--l1-tokens", type=positive, metavar="N", help="the least size of L1, in tokens"
    )
    parser.add_argument(
        "--side-by-side", action="store_true", help="all servers at once, on a GPU that holds them"
    )
    parser.add_argument(
        "--noise-backend",
        metavar="NAME",
        help="an attention backend for a second noise floor, such as flashinfer",
    )
    parser.add_argument("--logs", type=Path, default=Path("out/quality/logs"), metavar="DIR")
    parser.add_argument(
        "arguments", nargs="*", metavar="-- ARGUMENTS", help="SGLang's, for every server"
    )
    parser.set_defaults(run=run_served)


def run_served(args: argparse.Namespace) -> int:
    require("sglang", "numpy", extra="sglang,demo")
    import torch

    from hiqcache.lab.quality.arms import Sizes, make_arms, make_launch
    from hiqcache.lab.quality.report import as_text
    from hiqcache.lab.quality.served import ServedSpec, run_served
    from hiqcache.lab.quality.setup import describe
    from hiqcache.lab.quality.summary import conclude_served
    from hiqcache.lab.row import Store, origin

    gpu = torch.cuda.is_available()
    if args.side_by_side and not gpu:
        raise UsageError("--side-by-side needs an NVIDIA GPU: on a CPU the servers take turns")
    store = Store(args.out)
    model, _, prompts = load(args, gpu)
    sizes = Sizes.fit(prompts, args.l1_tokens)
    spec = ServedSpec(
        prompts=prompts,
        sizes=sizes,
        arms=make_arms(args.codecs, args.noise_backend, sizes),
        launch=make_launch(model, args.arguments, args.logs),
        side_by_side=args.side_by_side,
    )
    settings = {
        "provenance": origin(args.commit),
        **describe(model, args.prompts, prompts),
        "codecs": list(args.codecs),
        **spec.describe(),
    }
    print(as_text(conclude_served(run_served(spec), settings, store)))
    print(f"\n{store.folder}")
    return 0
