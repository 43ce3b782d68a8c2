"""`make soak`: an hour by default, the outcome as JSON, exit code 1 if it is not as it must be."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from hiqcache.lab.model import smollm2
from tests.engine.probe.hiqcache_probe import WRONG
from tests.engine.soak.soak import soak

LEAK = 1.0
"""Megabytes per minute."""
SLOWEST = 0.95
"""Of the speed before. By CPU time: on a shared machine a clock measures the neighbours."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--pause", type=float, default=1, help="mean seconds between requests")
    parser.add_argument("--rounds", type=int, default=5, help="of the speed probe, each time")
    parser.add_argument("--model", help="a checkpoint; default: the demo model")
    parser.add_argument("--out", type=Path, default=Path("results/soak"))
    args = parser.parse_args()
    found = soak(
        args.model or str(smollm2.prepare()),
        Path("out/soak").resolve(),
        minutes=args.minutes,
        warm_up_minutes=args.minutes / 4,
        clients=args.clients,
        pause=args.pause,
        rounds=args.rounds,
    )
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{found['provenance']['device']}-{args.minutes:g}-minutes.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    slope = found["memory"]["megabytes_a_minute"]["slope"]
    ratio = found["speed"]["cpu_speed_ratio"]
    verdicts = {
        f"{sum(found['requests'].values())} requests, {found['tracebacks']} tracebacks": (
            found["tracebacks"] == 0
        ),
        f"{found['restored_rows']} rows restored, {sum(found[name] for name in WRONG)} wrong": (
            found["restored_rows"] > 0 and not any(found[name] for name in WRONG)
        ),
        f"left after a flush: {found['left_after_flush']}": (
            not any(found["left_after_flush"].values())
        ),
        f"memory grows by {slope:.3f} MB per minute": slope < LEAK,
        f"speed after over before, by CPU time: {ratio:.3f}": ratio >= SLOWEST,
    }
    for sentence, good in verdicts.items():
        print(f"{'ok' if good else 'FAILED':8}{sentence}")
    print(f"written to {path}")
    return 0 if all(verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
