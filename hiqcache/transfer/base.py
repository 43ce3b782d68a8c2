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
        One tensor a layer, `[device_slots, heads, head_dim]` bf16 or fp16, all of one type,
        possibly strided in slots.
    host
        One tensor a layer, `[host_slots, record_bytes]` uint8 on the CPU. A view: its rows are
        adjacent under `layer_first` and `layers * record_bytes` apart under `page_first`.
    """

    layout: RecordLayout
    device: tuple[torch.Tensor, ...]
    host: tuple[torch.Tensor, ...]


class Transfer(abc.ABC):
    """Moves rows to records (backup) and back (restore) for one pool.

    A transfer owns whatever staging it needs, separately for the two directions: SGLang runs
    them on two streams at once. It does not own the pool's buffers. It writes the addressed
    records and rows and nothing else, and never a record's padding.

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
    def staging_bytes(self) -> int:
        """GPU memory that the transfer holds beside the pool; fixed from the start."""
        return 0

    def broken_heads(self) -> int | None:
        """Heads encoded so far that held a NaN or an infinity; None where no codec looks.

        Never waits: what a device has not finished yet is missing.
        """
        return None

    @property
    def checksum_bytes(self) -> int:
        """Host memory that the transfer holds beside L2."""
        return 0

    def mismatches(self) -> int:
        """Records found so far that are not what was backed up, as far as anybody looks.

        Never waits: what a device has not finished yet is missing.
        """
        return 0

    def adopt(self, host_slots: torch.Tensor) -> None:  # noqa: B027  # only those who look care
        """Take over records that somebody else has written at `host_slots`, on the CPU."""

    def require(self, host_slots: torch.Tensor) -> None:  # noqa: B027  # as above
        """Look, on the CPU, at records that somebody else is about to read.

        Raises
        ------
        IntegrityError
            They are not what was backed up.
        """

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
        """Announce that `restore` will be asked for every layer, in order, with these tensors.

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
