"""Restores that run ahead of their caller: all layers in one launch, waited for one by one."""

from __future__ import annotations

import torch

from hiqcache.transfer.gate import LayerGates
from hiqcache.transfer.launch import RowKernels, slots_on


class RestoreAhead:
    """Carries a whole restore in one kernel on a stream of its own.

    A launch for each layer leaves the link idle between them: the way to the first byte and
    back, some 9 microseconds of a layer's 90 for 2,048 tokens of Qwen3-8B on a PCIe 5 link. One
    launch has that once. The caller's stream still goes on layer by layer, through gates.

    Attributes
    ----------
    usable
        Whether the driver lets streams wait here.
    """

    def __init__(self, kernels: RowKernels) -> None:
        self._kernels = kernels
        self._gates = LayerGates(kernels.layers, kernels.device)
        on_gpu = kernels.device.type == "cuda"
        self._stream: torch.cuda.Stream | None = None
        if on_gpu:
            self._stream = torch.cuda.Stream(kernels.device)  # type: ignore[no-untyped-call]
        self._asked: tuple[torch.Tensor, torch.Tensor] | None = None
        self._kept: tuple[torch.Tensor, torch.Tensor] | None = None
        self.usable = False

    @property
    def device_bytes(self) -> int:
        return self._gates.counts.nbytes

    def prepare(self) -> str | None:
        """Find out whether this works here: why not, or None."""
        reason = self._gates.why_not()
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
        self._gates.expect(self._kernels.tiles(device_slots.numel()))
        arguments = (*self._kept, range(self._kernels.layers), self._gates.address)
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
        self._gates.wait(layer)
        if layer == self._kernels.layers - 1:
            self._asked = self._kept = None

    def finish(self) -> None:
        """The current stream goes on once nothing is on its way; for callers who stop early."""
        if self._asked is not None and self._stream is not None:
            torch.cuda.current_stream(self._kernels.device).wait_stream(self._stream)
        self._asked = self._kept = None
