"""Numbers that a device adds to and the CPU reads without waiting: non-finite heads, mismatches."""

from __future__ import annotations

import torch


class DeviceCounter:
    """Counts of whatever its owner says.

    Parameters
    ----------
    counts
        How many.

    Attributes
    ----------
    count
        `[counts]` int64 on the device.
    """

    def __init__(self, device: torch.device, counts: int = 1) -> None:
        self.count = torch.zeros(counts, dtype=torch.int64, device=device)
        self._published = self.count
        if device.type != "cpu":
            self._published = torch.zeros(counts, dtype=torch.int64, pin_memory=True)

    def publish(self) -> None:
        """Enqueue, on the current stream, that the CPU may see what was counted up to here."""
        if self._published is not self.count:
            self._published.copy_(self.count, non_blocking=True)

    def seen(self, which: int = 0) -> int:
        """What the device has published by now of one count."""
        return int(self._published[which])
