"""`hiqcache capacity`: bytes per token and L2 tokens of a model, for each codec."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from hiqcache import capacity
from hiqcache.capacity import Capacity
from hiqcache.codec.catalog import BASELINE, RECOMMENDED, listed_codecs
from hiqcache.commands import stack
from hiqcache.commands.geometry import add_geometry, load_geometry
from hiqcache.errors import UsageError
from hiqcache.geometry import Geometry
from hiqcache.ranks import Ranks

INT_LIMIT = 10**15
RATIO_LIMIT = 1e6
LITTLE = 1.05
"""Times BF16's tokens in the same bytes: below it a codec costs accuracy and time for nothing."""

ENOUGH = 1.5
"""As above: the first codec that reaches it is recommended in the place of one that does not."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "capacity",
        help="bytes per token and L2 tokens for each codec",
        description="Compute, as SGLang sizes its L2, what each codec holds. Choose one of: "
        "--hicache-size; --hicache-ratio with --device-tokens; --host-budget with "
        "--device-tokens (SGLang's automatic sizing). All figures are for one rank.",
    )
    add_geometry(parser)
    parser.add_argument(
        "--hicache-size",
        type=whole,
        metavar="GB",
        help="decimal GB of one rank's L2, a whole number (default: none)",
    )
    parser.add_argument(
        "--hicache-ratio",
        type=positive,
        metavar="R",
        help="tokens of L2 per token of L1 (default: none)",
    )
    parser.add_argument(
        "--device-tokens", type=whole, metavar="N", help="tokens of L1 (default: none)"
    )
    parser.add_argument(
        "--host-budget",
        type=whole,
        metavar="BYTES",
        help="host memory one rank may claim: what is free, less SGLang's reserve of 10 GiB, "
        "divided by the ranks of the host (default: none)",
    )
    parser.add_argument(
        "--host-memory-fraction",
        type=positive,
        metavar="F",
        help=f"the part of it that L2 may take, with --host-budget (default "
        f"{capacity.DEFAULT_FRACTION})",
    )
    parser.add_argument(
        "--page-size", type=whole, default=1, metavar="N", help="tokens of a page (default 1)"
    )
    parser.add_argument(
        "--tp", type=whole, default=1, metavar="N", help="tensor parallel ranks (default 1)"
    )
    for flag, what in (
        ("--pp", "pipeline stages"),
        ("--dp", "replicas on one host"),
        ("--attn-dp", "attention groups inside the tensor-parallel ranks"),
        ("--nodes", "hosts that share the ranks"),
    ):
        parser.add_argument(flag, type=whole, default=1, metavar="N", help=f"{what} (default 1)")
    stack.add_budget(parser)
    parser.add_argument("--json", action="store_true", help="print JSON (default: a table)")
    parser.set_defaults(run=run)


def whole(text: str) -> int:
    """Parse a flag as SGLang parses its integers, but refuse what is below 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= INT_LIMIT:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 1 to {INT_LIMIT:,}, got {text!r}"
        )
    return value


def positive(text: str) -> float:
    """Parse a flag as a positive number; NaN and infinity are none."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= RATIO_LIMIT:
        raise argparse.ArgumentTypeError(
            f"expected a number above 0, at most {RATIO_LIMIT:,.0f}, got {text!r}"
        )
    return value


def run(args: argparse.Namespace) -> int:
    ranks = Ranks(
        tp=args.tp,
        pp=args.pp,
        nodes=args.nodes,
        replicas=args.dp,
        attention_groups=args.attn_dp,
    )
    compute = sizing(args, ranks)
    several = stack.several_pools(args)
    if several is not None:
        return stack.run(several, args)
    geometry = load_geometry(args)
    geometry = replace(geometry, layers=ranks.layers(geometry.layers))
    rows = [compute(geometry, codec) for codec in listed_codecs()]
    if args.json:
        print(json.dumps(report(geometry, args, ranks, rows), indent=2))
    else:
        print(table(geometry, args, ranks, rows))
    return 0


def sizing(args: argparse.Namespace, ranks: Ranks) -> Callable[[Geometry, str], Capacity]:
    """Choose the one way of sizing that the flags ask for.

    Raises
    ------
    UsageError
        None, more than one, or a flag that does not belong to it.
    """
    ways = ("hicache_size", "hicache_ratio", "host_budget")
    chosen = [way for way in ways if getattr(args, way) is not None]
    if len(chosen) != 1:
        raise UsageError(
            f"expected exactly one of --hicache-size, --hicache-ratio and --host-budget, got "
            f"{' and '.join('--' + way.replace('_', '-') for way in chosen) or 'none'}"
        )
    flag = "--" + chosen[0].replace("_", "-")
    tokens, fraction = args.device_tokens, args.host_memory_fraction
    if flag == "--hicache-size" and tokens is not None:
        raise UsageError("--device-tokens has no effect beside --hicache-size; remove one")
    if flag != "--hicache-size" and tokens is None:
        raise UsageError(f"{flag} needs --device-tokens: it is a share of the device pool")
    if flag != "--host-budget" and fraction is not None:
        raise UsageError(f"--host-memory-fraction has no effect beside {flag}; remove one")
    pool = {"page_size": args.page_size, "tp": ranks.attention_tp}
    if flag == "--hicache-size":
        return lambda g, codec: capacity.by_size(g, codec, args.hicache_size, **pool)
    if flag == "--hicache-ratio":
        return lambda g, codec: capacity.by_ratio(g, codec, args.hicache_ratio, tokens, **pool)
    if fraction is None:
        fraction = capacity.DEFAULT_FRACTION
    return lambda g, codec: capacity.automatic(
        g, codec, tokens, args.host_budget, fraction=fraction, **pool
    )


def report(
    geometry: Geometry, args: argparse.Namespace, ranks: Ranks, rows: list[Capacity]
) -> dict[str, Any]:
    return {
        "geometry": asdict(geometry),
        "page_size": args.page_size,
        "tp": args.tp,
        "ranks_of_a_host": ranks.on_a_host,
        "kv_heads_per_rank": geometry.local_heads(ranks.attention_tp),
        "codecs": [
            asdict(row)
            | {
                "times_bf16": _times(row, rows),
                "bytes_all_ranks": row.bytes_allocated * ranks.on_a_host,
            }
            for row in rows
        ],
        "notes": [*advice(rows), *geometry.notes],
    }


def table(geometry: Geometry, args: argparse.Namespace, ranks: Ranks, rows: list[Capacity]) -> str:
    """The same as text: a line about the model, one line a codec, a line about ranks."""
    dims = f"head_dim {geometry.head_dim}"
    if geometry.v_head_dim != geometry.head_dim:
        dims = f"head_dim {geometry.head_dim} (K), {geometry.v_head_dim} (V)"
    # A path need not be valid text; a terminal's encoding would refuse to print it.
    name = geometry.name.encode("utf-8", "backslashreplace").decode()
    lines = [
        f"{name}: {geometry.layers} layers, {geometry.kv_heads} KV heads, {dims}, "
        f"page size {args.page_size}",
        f"{'codec':<14}{'bytes/token':>12}{'L2 tokens':>16}{'bytes allocated':>22}{'x BF16':>9}",
    ]
    lines += [
        f"{row.codec:<14}{row.bytes_per_token:>12,}{row.tokens:>16,}"
        f"{row.bytes_allocated:>22,}{_times(row, rows):>9.2f}"
        for row in rows
    ]
    if ranks.on_a_host * ranks.nodes > 1:
        stage = " in the layers of one stage" if ranks.pp > 1 else ""
        lines.append(
            f"All figures are for one of the {ranks.on_a_host} ranks of a host, which keeps "
            f"{geometry.local_heads(ranks.attention_tp)} of the {geometry.kv_heads} KV heads"
            f"{stage}; all of them together take {_host_total(rows, ranks.on_a_host)} of host "
            f"memory."
        )
    lines += [f"Note: {note}." for note in (*advice(rows), *geometry.notes)]
    return "\n".join(lines)


def advice(rows: list[Capacity]) -> list[str]:
    """Name the codecs that save hardly any bytes here, and the one to take."""
    bf16 = next(row for row in rows if row.codec == BASELINE)
    gains = {
        row.codec: bf16.bytes_per_token / row.bytes_per_token for row in rows if row is not bf16
    }
    useless = [f"{codec} ({gain:.2f} x)" for codec, gain in gains.items() if gain < LITTLE]
    if not useless:
        return []
    found = f"{' and '.join(useless)}: no gain over BF16 for rows as short as these"
    enough = [codec for codec, gain in gains.items() if gain >= ENOUGH]
    best = RECOMMENDED if RECOMMENDED in enough else next(iter(enough), None)
    best = best or max(gains, key=gains.__getitem__)
    if gains[best] < LITTLE:
        return [f"{found}; run without HiQCache"]
    return [f"{found}, since records are rounded up; use {best} ({gains[best]:.2f} x)"]


def _host_total(rows: list[Capacity], ranks: int) -> str:
    totals = {row.codec: f"{row.bytes_allocated * ranks / 1e9:,.1f} GB" for row in rows}
    if len(set(totals.values())) == 1:
        return totals[rows[0].codec]
    return ", ".join(f"{total} ({codec})" for codec, total in totals.items())


def _times(row: Capacity, rows: list[Capacity]) -> float:
    baseline = next(other for other in rows if other.codec == BASELINE)
    return row.tokens / baseline.tokens
