"""Gates at which a stream waits for layers that a kernel on another stream is still restoring.

An event can only mark the end of a kernel. A kernel that carries all layers counts what it has
done of each, in GPU memory, and a stream waits for that count: the driver's stream memory
operations (`cuStreamWaitValue32`, CUDA driver API, "Stream Memory Operations").
"""

from __future__ import annotations

import torch

from hiqcache.transfer.driver import wait_value

AT_LEAST = 0
"""`CU_STREAM_WAIT_VALUE_GEQ`: true once `(int32)(count - expected) >= 0`, so counts may wrap."""


class LayerGates:
    """One count a layer. Counts only ever grow: a restore adds to what earlier ones left.

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
        return wait_value()(stream, self.address + 4 * layer, self._expected, AT_LEAST)
