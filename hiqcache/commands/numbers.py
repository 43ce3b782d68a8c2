"""Numbers on the command line."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """An integer of 1 or more."""
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return int(text)


def positives(text: str) -> tuple[int, ...]:
    """Such integers, separated by commas."""
    return tuple(map(positive, text.split(",")))
