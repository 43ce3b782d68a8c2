"""From a codec's name to the codec: what a record is made and read by."""

from __future__ import annotations

import importlib
from functools import cache

from hiqcache.codec.base import Codec
from hiqcache.codec.catalog import CodecEntry, codec_entry


def get_codec(name: str) -> Codec:
    """The codec of that name.

    Raises
    ------
    UsageError
        An unknown name; the message lists the supported ones.
    """
    return _make(codec_entry(name))


@cache
def _make(entry: CodecEntry) -> Codec:
    module, _, kind = entry.implementation.partition(":")
    codec: Codec = getattr(importlib.import_module(module), kind)(entry)
    return codec
