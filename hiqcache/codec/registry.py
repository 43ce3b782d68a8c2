"""Every codec by name: what a record is made and read by."""

from __future__ import annotations

from functools import cache

from hiqcache.codec.base import Codec
from hiqcache.codec.bf16 import Bf16Codec
from hiqcache.codec.int8 import Int8Codec
from hiqcache.codec.rotated import RotatedCodec
from hiqcache.errors import UsageError


@cache
def codecs() -> dict[str, Codec]:
    """Every codec by name, in the order of `RECORD_FORMATS`."""
    every = (
        Bf16Codec("bf16"),
        Int8Codec("int8"),
        Int8Codec("int8-compact"),
        RotatedCodec("int8-rotated"),
    )
    return {codec.name: codec for codec in every}


def get_codec(name: str) -> Codec:
    """The codec of that name.

    Raises
    ------
    UsageError
        An unknown name; the message lists the supported ones.
    """
    try:
        return codecs()[name]
    except KeyError:
        raise UsageError(f"unknown codec {name!r}: expected one of {', '.join(codecs())}") from None
