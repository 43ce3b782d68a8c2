"""`hiqcache bench scrape`: what a read through the sidecar costs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from hiqcache.commands.numbers import positive
from hiqcache.commands.packages import require
from hiqcache.errors import UsageError
from hiqcache.lab.present import aligned
from hiqcache.sidecar.address import parse_address

if TYPE_CHECKING:
    from hiqcache.lab.bench.percentiles import Percentiles
    from hiqcache.lab.bench.scrape import ScrapeBench


def add_scrape_bench(benches: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = benches.add_parser(
        "scrape", help="a read through the sidecar beside one of the engine's own /metrics"
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--engine", metavar="URL", help="a running engine")
    source.add_argument("--text", type=Path, metavar="FILE", help="what its /metrics said")
    parser.add_argument("--repeats", type=positive, default=200)
    parser.add_argument("--seconds", type=positive, default=10, help="of scrapes back to back")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run_scrape)


def run_scrape(args: argparse.Namespace) -> int:
    if args.engine is not None and parse_address(args.engine).name is not None:
        raise UsageError("bench scrape takes one engine without a name: --engine URL")
    if args.text is not None and not args.text.is_file():
        raise UsageError(f"--text {args.text}: no such file")
    if args.repeats < 2:
        raise UsageError("--repeats: expected 2 or more")
    require("httpx", extra="sidecar")
    from hiqcache.lab.bench.scrape import run_scrape_bench

    bench = run_scrape_bench(args.engine, args.text, args.repeats, args.seconds)
    print(json.dumps(bench.as_json(), indent=1) if args.json else _table(bench))
    return 0


def _table(bench: ScrapeBench) -> str:
    origin = bench.provenance
    times = aligned(
        [
            ("", "p20 ms", "p50 ms", "p80 ms"),
            _line("engine's /metrics", bench.engine),
            _line("sidecar's /metrics", bench.sidecar),
            ("added", "", f"{bench.added_p50_ms:.2f}"),
        ]
    )
    return (
        f"{bench.source}, {bench.engine_bytes:,} bytes; {bench.repeats} reads of each in turns\n"
        f"{origin['device_name']}, {origin['platform']}, commit {origin['commit']}, "
        f"{origin['date']}\n{times}\n{bench.scrapes_per_second:.0f} scrapes per second back to "
        f"back, {bench.cpu_ms:.2f} ms of CPU each"
    )


def _line(name: str, times: Percentiles) -> tuple[str, ...]:
    return (name, *(f"{ms:.2f}" for ms in (times.p20_ms, times.p50_ms, times.p80_ms)))
