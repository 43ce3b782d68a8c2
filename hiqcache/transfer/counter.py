"""Numbers that a device adds to and the CPU reads without waiting: non-finite heads, mismatches."""

from __future__ import annotations

import torch


class DeviceCounter:
    """A count of whatever its owner says.

    Attributes
    ----------
    count
        `[1]` int64 on the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.count = torch.zeros(1, dtype=torch.int64, device=device)
        self._published = self.count
        if device.type != "cpu":
            self._published = torch.zeros(1, dtype=torch.int64, pin_memory=True)

    def publish(self) -> None:
        """Enqueue, on the current stream, that the CPU may see what was counted up to here."""
        if self._published is not self.count:
            self._published.copy_(self.count, non_blocking=True)

    def seen(self) -> int:
        """What the device has published by now."""
        return int(self._published[0])
