"""`hiqcache bench transfer`, `phases` and `verify`: what moves records, and looks at them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hiqcache.codec.catalog import RECOMMENDED, codec_names, listed_codecs
from hiqcache.commands.numbers import positive, positives
from hiqcache.commands.packages import require
from hiqcache.config import TRANSFERS
from hiqcache.lab.commands.shape import add_geometry
from hiqcache.lab.row import append

TOKENS = (64, 256, 1024, 2048, 4096, 8192, 16384, 65536)
PAGE_SIZES = (1, 16, 64)
LAYOUTS = ("layer_first", "page_first")
VERIFY_TOKENS = (256, 2048)


def add_gpu_benches(benches: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = benches.add_parser(
        "transfer", help="backup and restore beside SGLang's BF16 mover and a plain copy"
    )
    _add_common(parser)
    parser.add_argument("--tokens", type=positives, default=TOKENS, metavar="N,N,...")
    parser.add_argument("--page-size", type=positives, default=PAGE_SIZES, metavar="N,N,...")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    parser.add_argument("--codecs", nargs="+", choices=codec_names(), default=listed_codecs())
    parser.add_argument("--transfers", nargs="+", choices=TRANSFERS, default=TRANSFERS)
    parser.add_argument("--plot", type=Path, help="write tokens/ms as a picture, .svg or .png")
    parser.set_defaults(run=run_transfer)

    parser = benches.add_parser("phases", help="encode, transfer and decode apart")
    _add_common(parser)
    parser.add_argument("--tokens", type=positive, default=8192)
    parser.add_argument("--codec", choices=codec_names(), default=RECOMMENDED)
    parser.set_defaults(run=run_phases_command)

    parser = benches.add_parser("verify", help="what HIQCACHE_VERIFY costs; on a CPU without a GPU")
    _add_common(parser, programs=False)
    parser.add_argument("--tokens", type=positives, default=VERIFY_TOKENS, metavar="N,N,...")
    parser.add_argument("--codec", choices=codec_names(), default=RECOMMENDED)
    parser.add_argument("--layout", choices=LAYOUTS, default="page_first")
    parser.set_defaults(run=run_verify_command)


def _add_common(parser: argparse.ArgumentParser, *, programs: bool = True) -> None:
    add_geometry(parser)
    if programs:
        parser.add_argument("--programs", type=positive, help="thread blocks of a kernel")
    parser.add_argument("--repeats", type=positive, default=9)
    parser.add_argument("--out", type=Path, help="append the rows to a JSON-lines file")
    parser.add_argument("--commit", help="for the rows, where the checkout has no .git")
    parser.add_argument("--json", action="store_true", help="print JSON lines, not a table")


def run_transfer(args: argparse.Namespace) -> int:
    require("torch", extra="codec")
    from hiqcache.lab.bench.gpu import need_gpu
    from hiqcache.lab.bench.plot import transfer_plot
    from hiqcache.lab.bench.sglang_bf16 import sglang_hicache
    from hiqcache.lab.bench.transfer import TransferSpec, run_transfer_bench

    need_gpu()
    if sglang_hicache() is None:
        print("SGLang is not installed: no BF16 mover to compare with", file=sys.stderr)
    spec = TransferSpec(
        geometry=args.geometry,
        tokens=args.tokens,
        page_sizes=args.page_size,
        layouts=tuple(args.layouts),
        codecs=tuple(args.codecs),
        transfers=tuple(args.transfers),
        programs=args.programs,
        repeats=args.repeats,
    )
    rows = _report(run_transfer_bench(spec, args.commit), args, transfer_line)
    if args.plot:
        transfer_plot(args.plot, rows, spec.layouts[0], spec.page_sizes[0])
    return 0


def run_phases_command(args: argparse.Namespace) -> int:
    require("torch", extra="codec")
    from hiqcache.lab.bench.phases import run_phases

    rows = run_phases(
        args.geometry, args.codec, args.tokens, args.programs, args.repeats, args.commit
    )
    _report(rows, args, phase_line)
    return 0


def run_verify_command(args: argparse.Namespace) -> int:
    require("torch", extra="codec")
    from hiqcache.lab.bench.verification import run_verification_bench

    rows = run_verification_bench(
        args.geometry, args.codec, args.layout, args.tokens, args.repeats, args.commit
    )
    _report(rows, args, verify_line)
    return 0


def _report(rows: Iterable[dict[str, Any]], args: argparse.Namespace, line: Any) -> list[Any]:
    """Print and store each row as it comes, so that a long run that breaks off is not lost."""
    kept = []
    for row in rows:
        kept.append(row)
        print(json.dumps(row) if args.json else line(row), flush=True)
        if args.out:
            append(args.out, [row])
    return kept


def transfer_line(row: dict[str, Any]) -> str:
    """A row of the transfer benchmark for people."""
    if row["transfer"] == "memcpy":
        return f"memcpy {row['direction']:8}{row['wire_gb_per_s']:7.1f} GB/s   ({row['gpu']})"
    return (
        f"{row['transfer']:7}{row['codec']:13}{row['layout']:12}page {row['page_size']:<3}"
        f"{row['tokens']:6} {row['direction']:8}{row['p50_ms']:9.3f} ms"
        f"{row['tokens_per_ms']:8.1f} tokens/ms{row['wire_gb_per_s']:7.1f} GB/s wire"
        f"{row['link_share']:6.2f} of memcpy  {row['mover']}"
    )


def phase_line(row: dict[str, Any]) -> str:
    """A row of the phase benchmark for people."""
    return (
        f"{row['transfer']:24}{row['direction']:8}{row['phase']:6}"
        f"{row['ms_per_1000_tokens']:8.3f} ms per 1,000 tokens"
    )


def verify_line(row: dict[str, Any]) -> str:
    """A row of the verification benchmark for people."""
    return (
        f"{row['transfer']:7}{row['codec']:13}verify {row['verify']:7}{row['tokens']:6} "
        f"{row['direction']:8}{row['p50_ms']:10.3f} ms{row['tokens_per_ms']:9.1f} tokens/ms"
    )
