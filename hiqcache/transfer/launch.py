"""A pool's two kernels, compiled once and launched without a look at their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
from triton.errors import TritonError

from hiqcache.codec.base import Codec
from hiqcache.errors import UsageError
from hiqcache.transfer.base import Side
from hiqcache.transfer.counter import DeviceCounter
from hiqcache.transfer.kernels import entry
from hiqcache.transfer.plan import Plan, make_plan

PROGRAMS = 48
"""48 programs of 8 warps fill a PCIe 5 x16 link both ways; 24 come within 3 % of them, 16 to
three quarters. A program takes half a multiprocessor's registers and little of its issue slots,
so a decode kernel finds room beside it. `docs/transfer.md` has the measurement."""
INTERPRETED = not isinstance(entry.restore, triton.JITFunction)
"""Whether `TRITON_INTERPRET=1` was set when Triton was imported: kernels then run on the CPU."""


class RowKernels:
    """Encodes and decodes between the rows and the records of two sides.

    The records may lie in registered host memory or on the GPU. Every runtime argument is a
    64-bit integer, so each direction has exactly one variant: a call launches what `compile`
    made and cannot compile anything.

    Parameters
    ----------
    programs
        Thread blocks of a launch, K and V together: the most multiprocessors that it occupies.
        `PROGRAMS` when None.
    """

    def __init__(self, codec: Codec, k: Side, v: Side, programs: int | None = None) -> None:
        programs = PROGRAMS if programs is None else programs
        self.device = k.device[0].device
        self.layers = len(k.device)
        self._grid = (programs, 1, 1)
        self.plan = make_plan(codec, k, v, programs)
        addresses = [
            [layer.data_ptr() for layer in layers]
            for layers in (k.device, k.host, v.device, v.host)
        ]
        self._tables = torch.tensor(addresses, dtype=torch.int64, device=self.device)
        self.nonfinite_heads = DeviceCounter(self.device)
        self._backup: Callable[..., None] | None = None
        self._restore: Callable[..., None] | None = None

    @property
    def device_bytes(self) -> int:
        """GPU memory held: the table of addresses and a counter."""
        return self._tables.nbytes + self.nonfinite_heads.count.nbytes

    def compile(self) -> None:
        """Compile both kernels, or take them from Triton's cache, and load them."""
        if self._backup is None:
            self._backup = self._load(entry.backup, numbers=7)
            self._restore = self._load(entry.restore, numbers=9)

    def encode(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
        """All layers' rows at `device_slots` into the records at `host_slots`."""
        if self._backup is None:
            self.compile()
        assert self._backup is not None
        if device_slots.numel():
            self._backup(
                self._tables.data_ptr(),
                device_slots.data_ptr(),
                host_slots.data_ptr(),
                device_slots.numel(),
                self.layers,
                self.nonfinite_heads.count.data_ptr(),
                self.plan.k_programs,
                self.plan.k,
                self.plan.v,
            )
            self.nonfinite_heads.publish()

    def decode(
        self,
        device_slots: torch.Tensor,
        host_slots: torch.Tensor,
        layers: range,
        finished: int = 0,
    ) -> None:
        """Records at `host_slots` into the rows at `device_slots`, one layer after the other.

        Parameters
        ----------
        layers
            Which, without a gap.
        finished
            Address of an int32 for each layer of the pool, to which the kernel adds `tiles` as
            a layer is done; 0 if nobody wants to know.
        """
        if self._restore is None:
            self.compile()
        assert self._restore is not None
        if device_slots.numel():
            self._restore(
                self._tables.data_ptr(),
                device_slots.data_ptr(),
                host_slots.data_ptr(),
                device_slots.numel(),
                self.layers,
                layers.start,
                layers.stop,
                finished,
                self.plan.k_programs,
                self.plan.k,
                self.plan.v,
            )

    def tiles(self, tokens: int) -> int:
        """Tiles of one layer, K's and V's: what `decode` adds to `finished`."""
        return sum(-(-tokens // side.rows) for side in (self.plan.k, self.plan.v))

    def _load(self, kernel: Any, numbers: int) -> Callable[..., None]:
        if INTERPRETED:
            launch: Callable[..., None] = kernel[self._grid]
            return launch
        # Any numbers: the kernels declare them 64-bit and do not specialise on their values.
        arguments = (*(0,) * numbers, self.plan.k, self.plan.v)
        with torch.cuda.device(self.device), _refused(self.plan):
            compiled = kernel.warmup(*arguments, grid=self._grid, num_warps=self.plan.warps)
            launch = compiled[self._grid]
        return launch


def slots_on(device: torch.device, slots: torch.Tensor) -> torch.Tensor:
    """`slots` where the kernels can read them, without waiting for the device.

    SGLang's `kernel` backend passes them on the GPU and packed: they are returned as they are.
    Its `direct` backend passes CPU tensors, which travel over pinned memory.

    Raises
    ------
    UsageError
        Slots that are not `[tokens]` int64.
    """
    if slots.dtype != torch.int64 or slots.dim() != 1:
        raise UsageError(
            f"slots: expected [tokens] int64, got {list(slots.shape)} {slots.dtype}; "
            f"convert them before the call"
        )
    if slots.device != device:
        slots = slots.pin_memory().to(device, non_blocking=True)
    return slots.contiguous()


@contextmanager
def _refused(plan: Plan) -> Iterator[None]:
    """Turn a kernel that does not compile or load on this GPU into a refusal at the start."""
    try:
        yield
    except TritonError as error:
        raise UsageError(
            f"the kernels for {plan.k.heads} KV heads of {plan.k.dim} (K) and {plan.v.dim} (V) do "
            f"not work on this GPU ({error}): set HIQCACHE_TRANSFER=torch"
        ) from error
