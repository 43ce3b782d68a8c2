"""Where a pool's restore stands: SGLang asks for one layer at a time and names no first or last."""

from __future__ import annotations

import torch


class Progress:
    """Tells a restore's first and last call from those between.

    SGLang asks a pool once for each of its layers, always with the same two tensors. The order
    is that of the model's layers, which in a stack of several pools begins anywhere, and a packed
    draft layer may come before the model's first.

    Parameters
    ----------
    layers
        Layers of the pool, drafts included.
    """

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._left = 0
        self._slots: tuple[torch.Tensor, torch.Tensor] | None = None

    def ask(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> tuple[bool, bool]:
        """Note a call; say whether it is its restore's first, and whether its last."""
        slots = self._slots
        first = slots is None or slots[0] is not device_slots or slots[1] is not host_slots
        if first:
            self._slots = device_slots, host_slots
            self._left = self._layers
        self._left -= 1
        last = self._left == 0
        if last:
            self._slots = None
        return first, last
