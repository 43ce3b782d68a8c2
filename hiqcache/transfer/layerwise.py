"""A restore that is launched once and waited for a layer at a time; `fused` restores so.

A launch for each layer leaves the link idle between them: the way to the first byte and back,
some 9 microseconds of a layer's 90 for 2,048 tokens of Qwen3-8B on a PCIe 5 link. One launch has
that once. An event can only mark the end of a kernel, so the kernel counts what it has done of
each layer in GPU memory, and a stream waits for a layer's count: the driver's stream memory
operations (`cuStreamWaitValue32`, CUDA driver API, "Stream Memory Operations").
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import torch

from hiqcache.transfer.host_access import driver
from hiqcache.transfer.launch import RowKernels, slots_on

AT_LEAST = 0
"""`CU_STREAM_WAIT_VALUE_GEQ`: true once `(int32)(count - expected) >= 0`, so counts may wrap."""


class LayerCounts:
    """What kernels have done of each layer. Counts only grow, from one restore to the next.

    Parameters
    ----------
    layers
        How many.
    device
        Where the kernel and the streams are. On the CPU, where a kernel is over when its launch
        returns, waiting looks at the count and raises if it falls short.
    """

    def __init__(self, layers: int, device: torch.device) -> None:
        self.counts = torch.zeros(layers, dtype=torch.int32, device=device)
        self.address = self.counts.data_ptr()
        self._expected = 0

    def expect(self, more: int) -> None:
        """A kernel is on its way that adds `more` to every count."""
        self._expected = (self._expected + more) % 2**32

    def wait(self, layer: int) -> None:
        """What is enqueued on the current stream from here on waits for a layer.

        Raises
        ------
        RuntimeError
            The driver does not take it, or, on the CPU, the layer is not there.
        """
        if self.counts.device.type == "cpu":
            count = self.counts[layer]
            if int(count) % 2**32 != self._expected:
                raise RuntimeError(
                    f"layer {layer}: {int(count)} counted, {self._expected} expected"
                )
            return
        failed = self._enqueue(layer)
        if failed:
            raise RuntimeError(f"cuStreamWaitValue32 failed with CUDA driver error {failed}")

    def why_not(self) -> str | None:
        """Why streams cannot wait here; None if they can. Enqueues a wait that is over at once."""
        if self.counts.device.type == "cpu":
            return None
        try:
            failed = self._enqueue(0)
        except (OSError, AttributeError) as error:
            return f"the driver has no cuStreamWaitValue32 ({error})"
        return f"cuStreamWaitValue32 failed with CUDA driver error {failed}" if failed else None

    def _enqueue(self, layer: int) -> int:
        stream = torch.cuda.current_stream(self.counts.device).cuda_stream
        return _wait_value()(stream, self.address + 4 * layer, self._expected, AT_LEAST)


class LayerwiseRestore:
    """Carries a whole restore in one kernel on a stream of its own.

    Attributes
    ----------
    usable
        Whether the driver lets streams wait here; `prepare` finds out.
    """

    def __init__(self, kernels: RowKernels) -> None:
        self.counts = LayerCounts(kernels.layers, kernels.device)
        self.usable = False
        self._kernels = kernels
        self._stream: torch.cuda.Stream | None = None
        if kernels.device.type == "cuda":
            self._stream = torch.cuda.Stream(kernels.device)  # type: ignore[no-untyped-call]
        self._asked: tuple[torch.Tensor, torch.Tensor] | None = None
        self._kept: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def device_bytes(self) -> int:
        return self.counts.counts.nbytes

    def prepare(self) -> str | None:
        """Find out whether this works here: why not, or None."""
        reason = self.counts.why_not()
        self.usable = reason is None
        return reason

    def begin(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
        """Launch a restore of all layers behind what the current stream holds."""
        self.finish()
        if not self.usable or not device_slots.numel():
            return
        self._asked = (device_slots, host_slots)
        device = self._kernels.device
        self._kept = slots_on(device, device_slots), slots_on(device, host_slots)
        self.counts.expect(self._kernels.tiles(device_slots.numel()))
        arguments = (*self._kept, range(self._kernels.layers), self.counts.address)
        if self._stream is None:
            self._kernels.decode(*arguments)
            return
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            self._kernels.decode(*arguments)

    def carries(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> bool:
        """Whether these very slots are on their way."""
        asked = self._asked
        return asked is not None and asked[0] is device_slots and asked[1] is host_slots

    def wait(self, layer: int) -> None:
        """The current stream goes on once this layer is there."""
        self.counts.wait(layer)
        if layer == self._kernels.layers - 1:
            self._asked = self._kept = None

    def finish(self) -> None:
        """The current stream goes on once nothing is on its way; for callers who stop early."""
        if self._asked is not None and self._stream is not None:
            torch.cuda.current_stream(self._kernels.device).wait_stream(self._stream)
        self._asked = self._kept = None


@cache
def _wait_value() -> Callable[[int, int, int, int], int]:
    """`cuStreamWaitValue32`: stream, address, value, flags.

    Raises
    ------
    OSError, AttributeError
        There is no driver, or it is too old for it.
    """
    function = driver().cuStreamWaitValue32_v2
    # Declared once: a restore calls it for every layer.
    function.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)
    function.restype = ctypes.c_int
    return function
