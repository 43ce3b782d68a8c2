"""The contract every transfer keeps, and the buffers it is bound to."""

from __future__ import annotations

import abc
from dataclasses import dataclass

import torch

from hiqcache.codec.base import Codec
from hiqcache.codec.record import RecordLayout


@dataclass(frozen=True)
class Side:
    """The K or the V half of a pool: where its rows and its records live.

    Parameters
    ----------
    layout
        The record of one row of this side. K and V each have one; they may differ.
    device
        One tensor per layer, `[device_slots, heads, head_dim]` bf16 or fp16, all of one type,
        possibly strided in slots.
    host
        One tensor per layer, `[host_slots, record_bytes]` uint8 on the CPU. A view: its rows are
        adjacent under `layer_first` and `layers * record_bytes` apart under `page_first`.
    """

    layout: RecordLayout
    device: tuple[torch.Tensor, ...]
    host: tuple[torch.Tensor, ...]


def as_bits(rows: torch.Tensor) -> torch.Tensor:
    """Rows as integers of their width: PyTorch copies and gathers no fp8 by index."""
    return rows.view(torch.int16 if rows.itemsize == 2 else torch.uint8)


class Transfer(abc.ABC):
    """Moves rows to records (backup) and back (restore) for one pool.

    It does not own the pool's buffers. It writes the addressed records and rows and nothing else,
    and never a record's padding. SGLang runs the two directions on two streams at once.

    The caller has made the transfer's stream current. Everything must be enqueued on it when
    a call returns, because SGLang then announces the layer as loaded.
    """

    name: str

    def __init__(self, codec: Codec, k: Side, v: Side, programs: int | None = None) -> None:
        """Bind to a pool. `programs` bounds the thread blocks of a kernel; None: the default."""
        self.codec = codec
        self.k = k
        self.v = v
        self.device = k.device[0].device
        self.programs = programs

    @property
    def device_bytes(self) -> int:
        """GPU memory that the transfer holds beside the pool; fixed from the start."""
        return 0

    def nonfinite_heads(self) -> int | None:
        """Heads encoded so far that held a NaN or an infinity; None where the codec does not look.

        Never waits: what a device has not finished yet is missing.
        """
        return None

    def inexact_rows(self) -> int | None:
        """Rows encoded so far that could not be kept bit for bit; None of a codec that is lossy.

        Never waits, as `nonfinite_heads`.
        """
        return None

    def warm_up(self) -> None:  # noqa: B027  # most have kernels; torch has none to compile
        """Compile and load every kernel that a call can launch, before there is traffic."""

    @abc.abstractmethod
    def backup(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
        """Encode the rows of all layers at `device_slots` into the records at `host_slots`.

        Parameters
        ----------
        device_slots, host_slots
            `[tokens]` int64, in any order, without duplicates, on either device.
        """

    def begin_restore(  # noqa: B027  # those that go layer by layer have nothing to begin
        self, device_slots: torch.Tensor, host_slots: torch.Tensor
    ) -> None:
        """Announce that `restore` will be asked for every layer once, with these tensors.

        A transfer may then carry layers before they are asked for. Until the last one has been,
        whatever the caller enqueues must leave these rows and records alone.
        """

    @abc.abstractmethod
    def restore(self, device_slots: torch.Tensor, host_slots: torch.Tensor, layer: int) -> None:
        """Decode one layer's records at `host_slots` into the rows at `device_slots`.

        Parameters
        ----------
        device_slots, host_slots
            `[tokens]` int64, in any order, without duplicates, on either device.
        layer
            Index into `Side.device` and `Side.host`.
        """

    def restore_all(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
        """Restore every layer, as SGLang asks for them."""
        self.begin_restore(device_slots, host_slots)
        for layer in range(len(self.k.device)):
            self.restore(device_slots, host_slots, layer)
