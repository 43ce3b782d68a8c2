"""Which transfers there are, and which one `auto` means on a device."""

from __future__ import annotations

import torch

from hiqcache.errors import UsageError
from hiqcache.transfer.base import Transfer
from hiqcache.transfer.torch_transfer import TorchTransfer

TRANSFERS: dict[str, type[Transfer]] = {TorchTransfer.name: TorchTransfer}


def choose_transfer(name: str, device: torch.device) -> tuple[type[Transfer], str]:
    """The transfer class for a request, and one phrase that says why.

    Raises
    ------
    UsageError
        A name that is neither `auto` nor a transfer.
    """
    if name == "auto":
        return TorchTransfer, f"the only transfer for {device.type} tensors"
    try:
        return TRANSFERS[name], "as asked"
    except KeyError:
        raise UsageError(
            f"unknown transfer {name!r}: expected auto or one of {', '.join(TRANSFERS)}"
        ) from None
