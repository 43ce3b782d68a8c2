"""How many heads were not finite when they were encoded, counted where they are encoded."""

from __future__ import annotations

from hiqcache.transfer.count import DeviceCount


class BrokenHeads(DeviceCount):
    """Heads that held a NaN or an infinity."""
