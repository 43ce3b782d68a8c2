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

KERNELS = ((entry.backup, 7), (entry.restore, 9))
"""Each with its number of runtime arguments."""
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
        The codec's own number when None.
    """

    def __init__(self, codec: Codec, k: Side, v: Side, programs: int | None = None) -> None:
        self.device = k.device[0].device
        self.layers = len(k.device)
        self.plan = make_plan(codec, k, v, programs)
        self._grid = (self.plan.programs, 1, 1)
        addresses = [
            [layer.data_ptr() for layer in layers]
            for layers in (k.device, k.host, v.device, v.host)
        ]
        self._tables = torch.tensor(addresses, dtype=torch.int64, device=self.device)
        self.counter = DeviceCounter(self.device, counts=2)
        self._backup: Callable[..., None] | None = None
        self._restore: Callable[..., None] | None = None

    @property
    def device_bytes(self) -> int:
        """GPU memory held: the table of addresses and two counts."""
        return self._tables.nbytes + self.counter.count.nbytes

    def compile(self) -> None:
        """Compile both kernels, or take them from Triton's cache, and load them."""
        if self._backup is None:
            self._backup, self._restore = load(self.plan, self._grid, self.device)

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
                self.counter.count.data_ptr(),
                self.plan.k_backup,
                self.plan.k,
                self.plan.v,
            )
            self.counter.publish()

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
                self.plan.k_restore,
                self.plan.k,
                self.plan.v,
            )

    def nonfinite_heads(self) -> int:
        """Heads encoded so far that held a NaN or an infinity; missing what is under way."""
        return self.counter.seen(0)

    def inexact_rows(self) -> int:
        """Rows encoded so far that a lossless record could not hold; missing what is under way."""
        return self.counter.seen(1)

    def tiles(self, tokens: int) -> int:
        """Tiles of one layer, K's and V's: what `decode` adds to `finished`."""
        return sum(-(-tokens // side.rows) for side in (self.plan.k, self.plan.v))


def load(
    plan: Plan, grid: tuple[int, int, int], device: torch.device
) -> tuple[Callable[..., None], Callable[..., None]]:
    """What launches the backup and the restore of a plan; compiled, or from Triton's cache.

    Raises
    ------
    UsageError
        A kernel does not compile or load on this GPU.
    """
    return tuple(_load(kernel, numbers, plan, grid, device) for kernel, numbers in KERNELS)  # type: ignore[return-value]


def _load(
    kernel: Any, numbers: int, plan: Plan, grid: tuple[int, int, int], device: torch.device
) -> Callable[..., None]:
    if INTERPRETED:
        launch: Callable[..., None] = kernel[grid]
        return launch
    # Any numbers: the kernels declare them 64-bit and do not specialise on their values.
    arguments = (*(0,) * numbers, plan.k, plan.v)
    with torch.cuda.device(device), _refused(plan):
        # One stage: Triton 3.8 prefetches a tile of the ladder's rows into the buffer of the one
        # that is being read, which 3.6 does not, and the records are wrong (docs/codecs.md).
        compiled = kernel.warmup(*arguments, grid=grid, num_warps=plan.warps, num_stages=1)
        launch = compiled[grid]
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
