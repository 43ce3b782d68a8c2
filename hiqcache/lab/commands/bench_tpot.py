"""`hiqcache bench tpot`: what restores cost the requests that are decoding meanwhile."""

from __future__ import annotations

import argparse
from pathlib import Path

from hiqcache.codec.catalog import RECOMMENDED, codec_names
from hiqcache.commands.numbers import positive, positives
from hiqcache.commands.packages import require


def add_tpot(benches: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = benches.add_parser(
        "tpot",
        help="decode speed while restores run, beside SGLang's BF16 HiCache, on a GPU",
        description="Start SGLang's own BF16 HiCache and HiQCache with each number of thread "
        "blocks, all on one GPU, and compare the TPOT of decoding streams without and with "
        "restores beside them. Arguments behind -- go to every server.",
    )
    parser.add_argument("--model", required=True, metavar="ID|PATH")
    parser.add_argument("--codec", choices=codec_names(), default=RECOMMENDED)
    parser.add_argument("--programs", type=positives, default=(48,), metavar="N,N,...")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--restores-per-second", type=positive, default=10, metavar="N")
    parser.add_argument("--logs", type=Path, default=Path("out/bench"), metavar="DIR")
    parser.add_argument("--out", type=Path, help="append the rows to a JSON-lines file")
    parser.add_argument("--commit", help="for the rows, where the checkout has no .git")
    parser.add_argument("arguments", nargs="*", metavar="-- ARGUMENTS")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    require("torch", "sglang", extra="sglang")
    from hiqcache.lab.bench.gpu import need_gpu
    from hiqcache.lab.bench.tpot import TpotSpec, run_tpot_bench
    from hiqcache.lab.fleet import Launch
    from hiqcache.lab.row import append

    need_gpu()
    spec = TpotSpec(
        launch=Launch(model=args.model, arguments=tuple(args.arguments), logs=args.logs),
        codec=args.codec,
        programs=args.programs,
        rounds=args.rounds,
        restores_per_second=args.restores_per_second,
        commit=args.commit,
    )
    for row in run_tpot_bench(spec):
        tpot = row.tpot_ms
        print(
            f"{row.arm:20}{'under restores' if row.under_restores else 'quiet':16}"
            f"TPOT {tpot['p50']:7.3f} ms ({tpot['p20']:.3f} to {tpot['p80']:.3f})"
            f"{row.restored_tokens:10} tokens restored",
            flush=True,
        )
        if args.out:
            append(args.out, [row])
    return 0
