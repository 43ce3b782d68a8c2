"""The contract that every codec keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from hiqcache.codec.catalog import CodecEntry
from hiqcache.codec.check import check_records, check_rows
from hiqcache.codec.record import SIDES, RecordLayout, Side
from hiqcache.errors import UsageError


@dataclass(frozen=True)
class Codec(ABC):
    """Turns KV rows into records and back; pure functions of their arguments, no state.

    A row is one K or one V of one token of one layer. K and V have a layout each: ask
    `layout` for both and never size one from the other.

    What a codec owns: the first `layout.used_bytes` bytes of each record that it encodes, and
    every element of each row that it decodes. What it must not touch: the padding behind
    `used_bytes`, which stays as it was allocated (zero) and is never read.

    Encoding and decoding run on the device and the current stream of their arguments. They
    never synchronise, never look at a value from the host, and give the same bits on every
    device.
    """

    entry: CodecEntry

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def lossy(self) -> bool:
        return self.entry.lossy

    @property
    def marks_broken_heads(self) -> bool:
        return self.entry.marks_broken_heads

    def layout(self, side: Side, heads: int, head_dim: int, value_bytes: int = 2) -> RecordLayout:
        """The record of one row of `heads x head_dim` values on the K or the V side.

        Raises
        ------
        UsageError
            A side that is neither "k" nor "v", or a geometry that the codec cannot hold.
        """
        return self.entry.layout(side, heads, head_dim, value_bytes)

    def run_length(self, head_dim: int) -> int:
        """Values of a head that are rotated together; 1 if none are."""
        return 1

    def encode(self, rows: Tensor, layout: RecordLayout, out: Tensor | None = None) -> Tensor:
        """Encode rows into records.

        Parameters
        ----------
        rows
            `[tokens, heads, head_dim]` of one of `entry.row_types`, any strides.
        layout
            What `layout` gave for this side and geometry.
        out
            `[tokens, record_bytes]` uint8 on the device of `rows`; may be strided in the token
            dimension. Only payload and scales are written. Allocated as zeros when None.

        Returns
        -------
        Tensor
            `out`, or the new records.

        Raises
        ------
        UsageError
            A tensor or a layout that does not fit.
        """
        self._check_layout(layout)
        check_rows("rows", rows, layout, types=self.entry.row_types)
        if out is None:
            shape = (rows.shape[0], layout.record_bytes)
            out = torch.zeros(shape, dtype=torch.uint8, device=rows.device)
        check_records("out", out, layout, tokens=rows.shape[0], device=rows.device)
        self._encode(rows, layout, out)
        return out

    def decode(
        self,
        records: Tensor,
        layout: RecordLayout,
        out: Tensor | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> Tensor:
        """Decode records into rows.

        Parameters
        ----------
        records
            `[tokens, record_bytes]` uint8; may be strided in the token dimension. The padding
            is not read.
        layout
            What the records were encoded with.
        out
            `[tokens, heads, head_dim]` of the type that was encoded, on the device of
            `records`, any strides; every element is written. Allocated when None.
        dtype
            Of the rows that are allocated when `out` is None. A record does not say which
            type its row had.

        Returns
        -------
        Tensor
            `out`, or the new rows.

        Raises
        ------
        UsageError
            A tensor or a layout that does not fit.
        """
        self._check_layout(layout)
        check_records("records", records, layout)
        if out is None:
            shape = (records.shape[0], layout.heads, layout.head_dim)
            out = torch.empty(shape, dtype=dtype, device=records.device)
        check_rows(
            "out",
            out,
            layout,
            types=self.entry.row_types,
            tokens=records.shape[0],
            device=records.device,
        )
        self._decode(records, layout, out)
        return out

    def broken_heads(self, records: Tensor, layout: RecordLayout) -> Tensor:
        """Which heads held a NaN or an infinity; only where `marks_broken_heads`.

        Parameters
        ----------
        records
            `[tokens, record_bytes]` uint8, or as much of them as is used.

        Returns
        -------
        Tensor
            `[tokens, heads]` bool.
        """
        raise NotImplementedError(f"{self.name} records do not mark heads")

    def inexact_rows(self, records: Tensor, layout: RecordLayout) -> Tensor:
        """Which rows could not be kept bit for bit; only where `entry.marks_inexact_rows`.

        Parameters
        ----------
        records
            `[tokens, record_bytes]` uint8.

        Returns
        -------
        Tensor
            `[tokens]` bool.
        """
        raise NotImplementedError(f"{self.name} records do not mark rows")

    @abstractmethod
    def _encode(self, rows: Tensor, layout: RecordLayout, out: Tensor) -> None:
        """Write payload and scales of `out`; the arguments have been checked."""

    @abstractmethod
    def _decode(self, records: Tensor, layout: RecordLayout, out: Tensor) -> None:
        """Write every element of `out`; the arguments have been checked."""

    def _check_layout(self, layout: RecordLayout) -> None:
        own = [
            self.layout(side, layout.heads, layout.head_dim, value_bytes)
            for side in SIDES
            for value_bytes in (2, 1)
        ]
        if layout not in own:
            raise UsageError(
                f"layout: expected one of codec {self.name}, got {layout}; "
                f"take it from get_codec({self.name!r}).layout(side, heads, head_dim)"
            )
