"""`hiqcache bench weights`: what knowing the weights costs a server with an L3."""

from __future__ import annotations

import argparse
from pathlib import Path

from hiqcache.commands.capacity import positive as positive_number
from hiqcache.commands.numbers import positive
from hiqcache.commands.packages import require


def add_weights_bench(benches: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = benches.add_parser(
        "weights", help="the checksum of weights that L3's keys carry, at a start and an update"
    )
    parser.add_argument(
        "--gigabytes", type=positive_number, default=1.0, metavar="GB", help="default: 1"
    )
    parser.add_argument("--repeats", type=positive, default=5)
    parser.add_argument("--commit", help="where there is no checkout to ask")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append the row, as JSON")
    parser.set_defaults(run=run_weights)


def run_weights(args: argparse.Namespace) -> int:
    require("torch", "sglang", extra="sglang")
    from hiqcache.lab.bench.weights import run_weights_bench
    from hiqcache.lab.row import append

    row = run_weights_bench(args.gigabytes, args.repeats, args.commit)
    print(
        f"{row['bytes'] / 1e9:.2f} GB of weights: {row['p50_ms']:.0f} ms, "
        f"{row['gb_per_s']:.2f} GB/s on {row['device_name']}"
    )
    if args.out:
        append(args.out, [row])
    return 0
