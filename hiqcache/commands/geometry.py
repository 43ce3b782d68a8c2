"""Which model a command computes for: `--geometry` and what belongs to it."""

from __future__ import annotations

import argparse

from hiqcache.geometries import shipped_names
from hiqcache.geometry import Geometry


def add_geometry(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--geometry",
        required=True,
        metavar="NAME|PATH",
        help=f"a config.json, a folder that holds one, or one of {', '.join(shipped_names())}, "
        f"with or without the owner before it",
    )
    parser.add_argument(
        "--disable-hybrid-swa-memory",
        action="store_true",
        help="the server runs with this flag: sliding-window layers share the pool of the others "
        "(default: off)",
    )


def load_geometry(args: argparse.Namespace) -> Geometry:
    """The model that the flags name.

    Raises
    ------
    UsageError
        What `Geometry.load` refuses.
    """
    return Geometry.load(args.geometry, one_pool=args.disable_hybrid_swa_memory)
