"""`hiqcache simulate`: what each codec would hit on a request trace, in seconds, on a CPU."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hiqcache.capacity import Capacity, by_size
from hiqcache.codec.catalog import listed_codecs
from hiqcache.commands.geometry import add_geometry, load_geometry
from hiqcache.commands.numbers import positive
from hiqcache.errors import UsageError

if TYPE_CHECKING:
    from hiqcache.simulate.replay import Prediction, Request


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "simulate",
        help="predict hit rates of a request trace for each codec, without a server",
        description="Replay a trace (JSON lines: blocks with hashes and token counts, Mooncake's "
        "hash_ids, or prompts as OpenAI's API takes them) through L1 and an L2 of the given size "
        "for each codec, and print what would come from where. docs/simulate.md has the forms and "
        "what is modelled.",
    )
    parser.add_argument("trace", metavar="TRACE.jsonl", help="a file, or - for standard input")
    add_geometry(parser)
    parser.add_argument(
        "--l1-tokens",
        type=positive,
        required=True,
        metavar="N",
        help="SGLang's max_total_num_tokens",
    )
    parser.add_argument(
        "--hicache-size",
        type=positive,
        required=True,
        metavar="GB",
        help="decimal GB of one rank's L2",
    )
    parser.add_argument(
        "--policy",
        choices=("write_back", "write_through"),
        default="write_through",
        help="SGLang's --hicache-write-policy (default write_through, as SGLang)",
    )
    parser.add_argument(
        "--page-size", type=positive, default=1, metavar="N", help="sizes L2 (default 1)"
    )
    parser.add_argument(
        "--tp", type=positive, default=1, metavar="N", help="tensor parallel ranks (default 1)"
    )
    parser.add_argument(
        "--concurrency", type=positive, default=8, metavar="N", help="in flight (default 8)"
    )
    parser.add_argument(
        "--disable-overlap-schedule",
        action="store_true",
        help="as the server, if it has it (default: off)",
    )
    parser.add_argument(
        "--block-tokens",
        type=positive,
        default=512,
        metavar="N",
        help="tokens of a block of hash_ids or of a prompt (default 512, Mooncake's)",
    )
    parser.add_argument(
        "--tokenizer", metavar="ID|PATH", help="for a trace of prompts as text (default: none)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON (default: a table)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from hiqcache.simulate.replay import replay
    from hiqcache.simulate.tokenizer import Tokenizer
    from hiqcache.simulate.trace import read_trace

    geometry = load_geometry(args)
    tokenize = Tokenizer(args.tokenizer) if args.tokenizer else None
    trace = read_trace(args.trace, args.block_tokens, tokenize)
    rows = []
    capacities: list[Capacity | None] = [None]
    capacities += [
        by_size(geometry, codec, args.hicache_size, page_size=args.page_size, tp=args.tp)
        for codec in listed_codecs()
    ]
    for capacity in capacities:
        found = replay(
            trace.requests,
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
    # Which requests fit is the same for all codecs: L1 holds no records.
    notes = [*_left_out(found, args.l1_tokens, trace.requests), *trace.notes, *geometry.notes]
    if args.json:
        report = {"geometry": geometry.name, "policy": args.policy, "codecs": rows, "notes": notes}
        print(json.dumps(report))
        return 0
    print(f"{len(trace.requests):,} requests, {found.prompt_tokens:,} prompt tokens, {args.policy}")
    print(f"{'codec':<14}{'L2 tokens':>12}{'hit rate':>10}{'from L1':>16}{'from L2':>16}")
    for row in rows:
        print(
            f"{row['codec']:<14}{row['l2_tokens']:>12,}{row['hit_rate']:>10.1%}"
            f"{row['l1_hit_tokens']:>16,}{row['l2_hit_tokens']:>16,}"
        )
    for note in notes:
        print(f"Note: {note}.")
    return 0


def _left_out(found: Prediction, l1_tokens: int, requests: list[Request]) -> list[str]:
    """What a server with this L1 would refuse or cut, and the L1 for which it would not.

    Raises
    ------
    UsageError
        Nothing is left.
    """
    from hiqcache.simulate.replay import l1_for_all

    if not found.refused and not found.shortened:
        return []
    advice = f"--l1-tokens {l1_for_all(requests)} takes all of them whole"
    if found.refused == found.requests:
        raise UsageError(f"no prompt of the trace fits an L1 of {l1_tokens:,} tokens: {advice}")
    return [
        f"{found.refused:,} of {found.requests:,} requests have a prompt too long for L1 and are "
        f"left out, {found.shortened:,} have their answer cut, as a server does: {advice}"
    ]
