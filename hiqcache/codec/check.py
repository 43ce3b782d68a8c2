"""Refusals at the codec's boundary: the tensor's name, what was expected, what came, the fix."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from hiqcache.codec.catalog import SIXTEEN_BITS
from hiqcache.codec.record import RecordLayout
from hiqcache.codec.row import ROW_TYPES
from hiqcache.errors import UsageError


def check_tensor(
    name: str,
    tensor: Tensor,
    *,
    dtypes: Collection[torch.dtype],
    shape: Sequence[int | str],
    device: torch.device | None = None,
    fix: str,
) -> None:
    """Refuse a tensor that is not what a function takes.

    Parameters
    ----------
    dtypes
        The types that it may have.
    shape
        One entry a dimension: a size, or a word for a dimension of any size.
    device
        Where the tensor must be; None for anywhere.
    fix
        What the caller should do about it, the end of the sentence.

    Raises
    ------
    UsageError
        Says the tensor's name, what was expected, what came, and the fix.
    """
    fits = tensor.dim() == len(shape) and all(
        isinstance(want, str) or want == got for want, got in zip(shape, tensor.shape, strict=True)
    )
    if fits and tensor.dtype in dtypes and device in (None, tensor.device):
        return
    want, got = (", ".join(map(str, dims)) for dims in (shape, tensor.shape))
    place = "" if device is None else f" on {device}"
    raise UsageError(
        f"{name}: expected {' or '.join(map(_short, dtypes))} [{want}]{place}, "
        f"got {_short(tensor.dtype)} [{got}] on {tensor.device}; {fix}"
    )


def check_rows(
    name: str,
    rows: Tensor,
    layout: RecordLayout,
    *,
    types: Collection[str] = SIXTEEN_BITS,
    tokens: int | None = None,
    device: torch.device | None = None,
) -> None:
    """Refuse rows that are not `[tokens, heads, head_dim]` of this layout and of one of `types`."""
    check_tensor(
        name,
        rows,
        dtypes=[kind.dtype for kind in ROW_TYPES.values() if kind.name in types],
        shape=("tokens" if tokens is None else tokens, layout.heads, layout.head_dim),
        device=device,
        fix="pass rows of the geometry that the layout was made for",
    )


def check_records(
    name: str,
    records: Tensor,
    layout: RecordLayout,
    *,
    tokens: int | None = None,
    device: torch.device | None = None,
) -> None:
    """Refuse records that are not `[tokens, record_bytes]` uint8 of this layout.

    Scales and 16-bit payload are read in place as 16-bit values, so a record must be contiguous
    and start at an even offset.
    """
    check_tensor(
        name,
        records,
        dtypes=(torch.uint8,),
        shape=("tokens" if tokens is None else tokens, layout.record_bytes),
        device=device,
        fix="allocate layout.record_bytes bytes per token",
    )
    if records.stride(1) != 1 or records.stride(0) % 2 or records.storage_offset() % 2:
        raise UsageError(
            f"{name}: expected contiguous records at even byte offsets, got strides "
            f"{tuple(records.stride())} at offset {records.storage_offset()}; "
            f"slice whole records only"
        )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
