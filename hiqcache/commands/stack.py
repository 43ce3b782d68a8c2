"""`hiqcache capacity` for a model with several pools: slots of each, for each codec."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from hiqcache.budget import KV, STATE, SWA, TOKENS_PER_STATE, parse_split
from hiqcache.codec.catalog import BASELINE, listed_codecs
from hiqcache.errors import UsageError
from hiqcache.hybrids import PoolCapacity, StackGeometry

CALLED = {KV: "tokens", SWA: "tokens of windows", STATE: "states"}


def add_budget(parser: argparse.ArgumentParser) -> None:
    """The flags that say how pools share `--hicache-size`."""
    parser.add_argument(
        "--tokens-per-state",
        type=int,
        metavar="N",
        help=f"HIQCACHE_TOKENS_PER_STATE of the server (default {TOKENS_PER_STATE})",
    )
    parser.add_argument(
        "--split",
        metavar="PARTS",
        help="HIQCACHE_SPLIT of the server, as in kv=0.8,state=0.2 (default: by the rule)",
    )


def several_pools(args: argparse.Namespace) -> StackGeometry | None:
    """The stack of a model that has more pools than one; None for any other."""
    if args.disable_hybrid_swa_memory:
        return None
    try:
        stack = StackGeometry.load(args.geometry)
    except UsageError:
        return None
    return stack if stack.windows is not None or stack.state is not None else None


def run(stack: StackGeometry, args: argparse.Namespace) -> int:
    """Print what `--hicache-size` holds.

    Raises
    ------
    UsageError
        Another way of sizing, or a split that is none.
    """
    if args.hicache_size is None:
        raise UsageError(
            f"{stack.kv.name} has several pools, which are counted under --hicache-size alone: "
            f"otherwise SGLang gives each a multiple of its device pool's slots"
        )
    split = None if args.split is None else parse_split(args.split)
    if args.split is not None and split is None:
        raise UsageError(
            f"--split {args.split!r}: expected parts that add up to 1, as in kv=0.8,state=0.2"
        )
    per_state = TOKENS_PER_STATE if args.tokens_per_state is None else args.tokens_per_state
    if per_state < 1:
        raise UsageError(f"--tokens-per-state must be at least 1, got {per_state}")
    rows = {
        codec: stack.capacity(
            codec,
            args.hicache_size,
            page_size=args.page_size,
            tokens_per_state=per_state,
            split=split,
            tp=args.tp,
        )
        for codec in listed_codecs()
    }
    print(
        json.dumps(report(stack, args, rows), indent=2) if args.json else table(stack, args, rows)
    )
    return 0


def report(
    stack: StackGeometry, args: argparse.Namespace, rows: dict[str, dict[str, PoolCapacity]]
) -> dict[str, Any]:
    return {
        "geometry": asdict(stack),
        "page_size": args.page_size,
        "tp": args.tp,
        "codecs": {
            codec: [
                asdict(pool) | {"bytes": pool.bytes, "times_bf16": _times(pool, rows)}
                for pool in pools.values()
            ]
            for codec, pools in rows.items()
        },
        "notes": list(stack.kv.notes),
    }


def table(
    stack: StackGeometry, args: argparse.Namespace, rows: dict[str, dict[str, PoolCapacity]]
) -> str:
    """A line about the model, and one for each codec and pool."""
    parts = [f"{stack.kv.layers} layers of full attention"]
    if stack.windows is not None:
        parts.append(f"{stack.windows.layers} with windows")
    if stack.state is not None:
        parts.append(f"{stack.state.layers} with state ({stack.state.bytes(args.tp):,} bytes)")
    lines = [
        f"{stack.kv.name}: {', '.join(parts)}, page size {args.page_size}",
        f"{'codec':<14}{'bytes/slot':>14}{'slots':>14}  {'':<18}{'bytes':>18}{'x BF16':>9}",
    ]
    lines += [
        f"{codec:<14}{pool.slot_bytes:>14,}{pool.slots:>14,}  {CALLED[pool.name]:<18}"
        f"{pool.bytes:>18,}{_times(pool, rows):>9.2f}"
        for codec, pools in rows.items()
        for pool in pools.values()
    ]
    lines += [f"Note: {note}." for note in stack.kv.notes]
    return "\n".join(lines)


def _times(pool: PoolCapacity, rows: dict[str, dict[str, PoolCapacity]]) -> float:
    return pool.slots / rows[BASELINE][pool.name].slots
