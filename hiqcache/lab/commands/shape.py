"""`--geometry LAYERS,HEADS,HEAD_DIM`, which every benchmark of codecs and transfers takes."""

from __future__ import annotations

import argparse

from hiqcache.commands.numbers import positives
from hiqcache.lab.bench.shape import QWEN3_8B, Shape


def add_geometry(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--geometry",
        type=_shape,
        default=QWEN3_8B,
        metavar="LAYERS,HEADS,HEAD_DIM",
        help="default: 36,8,128, Qwen3-8B",
    )


def _shape(text: str) -> Shape:
    sizes = positives(text)
    if len(sizes) != 3:
        raise argparse.ArgumentTypeError(f"expected LAYERS,HEADS,HEAD_DIM, got {text!r}")
    return Shape(*sizes)
