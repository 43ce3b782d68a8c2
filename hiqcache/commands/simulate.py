"""`hiqcache simulate`: what each codec would hit on a request trace, in seconds, on a CPU."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hiqcache.capacity import Capacity, by_size
from hiqcache.codec.record import RECORD_FORMATS
from hiqcache.commands.numbers import positive
from hiqcache.errors import UsageError
from hiqcache.geometry import Geometry, shipped_names


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "simulate",
        help="predict hit rates of a request trace for each codec, without a server",
        description="Replay a trace (JSON lines: blocks with hashes and token counts, Mooncake's "
        "hash_ids, or texts) through L1 and an L2 of the given size for each codec, and print "
        "what would come from where. docs/simulate.md has the forms and what is modelled.",
    )
    parser.add_argument("trace", type=Path, metavar="TRACE.jsonl")
    parser.add_argument(
        "--geometry",
        required=True,
        metavar="NAME|PATH",
        help=f"a config.json, a folder that holds one, or one of {', '.join(shipped_names())}",
    )
    parser.add_argument("--l1-tokens", type=positive, required=True, metavar="N")
    parser.add_argument("--hicache-size", type=positive, required=True, metavar="GB")
    parser.add_argument("--policy", choices=("write_back", "write_through"), default="write_back")
    parser.add_argument("--page-size", type=positive, default=1, metavar="N", help="sizes L2")
    parser.add_argument("--tp", type=positive, default=1, metavar="N")
    parser.add_argument(
        "--concurrency", type=positive, default=8, metavar="N", help="in flight (default 8)"
    )
    parser.add_argument(
        "--disable-overlap-schedule", action="store_true", help="as the server, if it has it"
    )
    parser.add_argument(
        "--block-tokens",
        type=positive,
        default=512,
        metavar="N",
        help="tokens of a block of hash_ids or text (default 512, Mooncake's)",
    )
    parser.add_argument("--tokenizer", metavar="ID|PATH", help="for a trace of texts")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from hiqcache.simulate.replay import replay
    from hiqcache.simulate.trace import read_trace

    geometry = Geometry.load(args.geometry)
    tokenize = _tokenizer(args.tokenizer) if args.tokenizer else None
    requests = list(read_trace(args.trace, args.block_tokens, tokenize))
    rows = []
    capacities: list[Capacity | None] = [None]
    capacities += [
        by_size(geometry, codec, args.hicache_size, page_size=args.page_size, tp=args.tp)
        for codec in RECORD_FORMATS
    ]
    for capacity in capacities:
        found = replay(
            requests,
            args.l1_tokens,
            capacity.tokens if capacity else 0,
            write_back=args.policy == "write_back",
            concurrency=args.concurrency,
            overlap=not args.disable_overlap_schedule,
        )
        rows.append(
            {
                "codec": capacity.codec if capacity else "none",
                "l2_tokens": capacity.tokens if capacity else 0,
                "hit_rate": found.hit_rate,
            }
            | asdict(found)
        )
    if args.json:
        print(json.dumps({"geometry": geometry.name, "policy": args.policy, "codecs": rows}))
        return 0
    print(f"{len(requests):,} requests, {rows[0]['prompt_tokens']:,} prompt tokens, {args.policy}")
    print(f"{'codec':<14}{'L2 tokens':>12}{'hit rate':>10}{'from L1':>16}{'from L2':>16}")
    for row in rows:
        print(
            f"{row['codec']:<14}{row['l2_tokens']:>12,}{row['hit_rate']:>10.1%}"
            f"{row['l1_hit_tokens']:>16,}{row['l2_hit_tokens']:>16,}"
        )
    return 0


def _tokenizer(source: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise UsageError(
            "--tokenizer needs transformers, which is not installed: pip install transformers"
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise UsageError(f"--tokenizer {source} cannot be loaded: {error}") from error
    return lambda text: tokenizer(text).input_ids
