"""Which transfers there are, and which one `auto` means for a pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hiqcache.errors import UsageError
from hiqcache.transfer.base import Transfer
from hiqcache.transfer.reach import why_unreachable, why_unregistered
from hiqcache.transfer.torch_transfer import TorchTransfer


def _torch() -> type[Transfer]:
    return TorchTransfer


def _staged() -> type[Transfer]:
    from hiqcache.transfer.staged import StagedTransfer

    return StagedTransfer


def _fused() -> type[Transfer]:
    from hiqcache.transfer.fused import FusedTransfer

    return FusedTransfer


TRANSFERS: dict[str, Callable[[], type[Transfer]]] = {
    "torch": _torch,
    "staged": _staged,
    "fused": _fused,
}
"""Every transfer by name. Loaded when chosen: `staged` and `fused` need Triton, which machines
without a GPU may lack."""


def choose_transfer(
    name: str, device: torch.device, host: Sequence[torch.Tensor] = ()
) -> tuple[type[Transfer], str]:
    """The transfer class for a request, and one phrase that says why.

    Parameters
    ----------
    name
        `auto`, or a key of `TRANSFERS`.
    device
        Where the rows are.
    host
        The buffers that will hold the records. `auto` looks at whether kernels reach them.

    Raises
    ------
    UsageError
        A name that is neither `auto` nor a transfer, or a transfer that cannot work there.
    """
    if name != "auto" and name not in TRANSFERS:
        raise UsageError(
            f"unknown transfer {name!r}: expected auto or one of {', '.join(TRANSFERS)}"
        )
    if name == "auto":
        name, why = _best(device, host)
        return TRANSFERS[name](), why
    if name != "torch":
        _refuse(name, device, host)
    return TRANSFERS[name](), "as asked"


def _best(device: torch.device, host: Sequence[torch.Tensor]) -> tuple[str, str]:
    if device.type != "cuda":
        return "torch", f"the only transfer for {device.type} tensors"
    reason = why_unregistered(host)
    if reason:
        return "torch", f"slow, but no kernel may touch host memory: {reason}"
    reason = why_unreachable(host, device)
    if reason:
        return "staged", f"fused is out: {reason}"
    return "fused", "kernels reach the registered host memory"


def _refuse(name: str, device: torch.device, host: Sequence[torch.Tensor]) -> None:
    if device.type != "cuda":
        reason: str | None = f"it needs a CUDA device, and the rows are on {device.type}"
    else:
        reason = why_unregistered(host)
        if not reason and name == "fused":
            reason = why_unreachable(host, device)
    if reason:
        raise UsageError(f"transfer {name} cannot work here: {reason}; use auto or torch")
