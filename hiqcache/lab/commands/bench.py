"""`hiqcache bench`: measure a part of HiQCache beside the limit it works against."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from hiqcache.codec.catalog import codec_names, listed_codecs
from hiqcache.commands.numbers import positive
from hiqcache.commands.packages import require
from hiqcache.lab.commands.bench_gpu import add_gpu_benches
from hiqcache.lab.commands.bench_scrape import add_scrape_bench
from hiqcache.lab.commands.bench_tpot import add_tpot
from hiqcache.lab.commands.bench_weights import add_weights_bench
from hiqcache.lab.commands.shape import add_geometry
from hiqcache.lab.present import aligned

if TYPE_CHECKING:
    from hiqcache.lab.bench.codec import CodecBench, Timing


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "bench", help="measure codecs and transfers against a plain copy"
    )
    benches = parser.add_subparsers(metavar="BENCH", required=True)
    _add_codec(benches)
    add_gpu_benches(benches)
    add_tpot(benches)
    add_scrape_bench(benches)
    add_weights_bench(benches)


def _add_codec(benches: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = benches.add_parser("codec", help="encode and decode on one CPU core")
    parser.add_argument("--tokens", type=positive, default=512)
    add_geometry(parser)
    parser.add_argument(
        "--codec",
        action="append",
        choices=codec_names(),
        help="may be given more than once; default: all",
    )
    parser.add_argument("--repeats", type=positive, default=7)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run_codec)


def run_codec(args: argparse.Namespace) -> int:
    require("torch", extra="codec")
    from hiqcache.lab.bench.codec import run_codec_bench

    names = list(dict.fromkeys(args.codec or listed_codecs()))
    bench = run_codec_bench(names, args.geometry, args.tokens, args.repeats)
    print(json.dumps(bench.as_json(), indent=1) if args.json else _table(bench))
    return 0


def _table(bench: CodecBench) -> str:
    origin = bench.provenance
    lines = [["", "p20 ms", "p50 ms", "p80 ms", "GB/s BF16", "largest error / s"]]
    lines.append(_line("memcpy", bench.memcpy, ""))
    for row in bench.codecs:
        errors = [report["max_normalized_error"] for report in row.error.values()]
        error = f"{max(errors):.3f}" if errors else "bit-exact"
        lines.append(_line(f"{row.codec} encode", row.encode, ""))
        lines.append(_line(f"{row.codec} decode", row.decode, error))
    return (
        f"{bench.tokens} tokens, {bench.layers} layers of {bench.heads} x {bench.head_dim}: "
        f"{bench.bf16_bytes / 1e6:.1f} MB of BF16 rows; one thread, {bench.repeats} repeats\n"
        f"{origin['device_name']}, torch {origin['torch']}, commit {origin['commit']}, "
        f"{origin['date']}\n{aligned(lines)}"
    )


def _line(name: str, timing: Timing, error: str) -> list[str]:
    times = (timing.p20_ms, timing.p50_ms, timing.p80_ms, timing.gb_per_s)
    return [name, *(f"{figure:.2f}" for figure in times), error]
