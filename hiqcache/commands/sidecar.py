"""`hiqcache sidecar`: metrics, a summary and a status page beside one or more engines."""

from __future__ import annotations

import argparse

from hiqcache.errors import HiQCacheError
from hiqcache.sidecar.address import parse_addresses

PORT = 9464
TIMEOUT = 3.0
LONGEST_TIMEOUT = 60.0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "sidecar",
        help="serve an engine's HiQCache metrics, a summary and a status page",
        description="Read SGLang engines when asked and serve what HiQCache does in them: "
        "/metrics for Prometheus, /api/v1/summary as JSON, a status page on /.",
    )
    parser.add_argument(
        "--engine",
        action="append",
        required=True,
        metavar="[NAME=]URL",
        help="an engine started with --enable-metrics, such as http://127.0.0.1:30000; several "
        "need names: --engine bf16=URL --engine int8=URL",
    )
    parser.add_argument("--port", type=_port, default=PORT, help=f"default: {PORT}; 0: any free")
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1")
    parser.add_argument(
        "--timeout",
        type=_timeout,
        default=TIMEOUT,
        metavar="SECONDS",
        help=f"for one read of an engine, below the scraper's own; default: {TIMEOUT:.0f}",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    addresses = parse_addresses(args.engine)
    try:
        from hiqcache.sidecar.serve import serve
    except ModuleNotFoundError as error:
        raise HiQCacheError(
            f"{error.name} is not installed: pip install 'hiqcache[sidecar]'"
        ) from error
    serve(addresses, args.host, args.port, args.timeout)
    return 0


def _port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 5 or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port, 0 to 65535, got {text[:80]!r}")
    return int(text)


def _timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST_TIMEOUT:
        raise argparse.ArgumentTypeError(
            f"expected seconds above 0, up to {LONGEST_TIMEOUT:.0f}, got {text[:80]!r}"
        )
    return seconds
