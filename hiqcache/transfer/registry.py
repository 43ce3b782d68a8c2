"""Which transfers there are, and which one `auto` means for a pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hiqcache.errors import UsageError
from hiqcache.transfer.base import Transfer
from hiqcache.transfer.checksum import VERIFY
from hiqcache.transfer.reach import why_unreachable, why_unregistered
from hiqcache.transfer.torch_transfer import TorchTransfer
from hiqcache.transfer.verified import VerifiedTransfer


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


def add_verification(transfer: Transfer, mode: str) -> Transfer:
    """`transfer`, or one that also looks at L2 as `HIQCACHE_VERIFY` says.

    Raises
    ------
    UsageError
        The records lie where a kernel cannot read them, though the transfer's own mover can.
    """
    if mode == "off":
        return transfer
    verify = VERIFY[mode]
    if transfer.device.type != "cuda" or transfer.name == "torch":
        return VerifiedTransfer(transfer, verify)
    from hiqcache.transfer.checksum_launch import KernelVerifiedTransfer

    verified = KernelVerifiedTransfer(transfer, verify)
    host = [side.host[layer] for side in (transfer.k, transfer.v) for layer in (0, -1)]
    reason = why_unreachable([*host, verified.table], transfer.device)
    if reason:
        raise UsageError(
            f"HIQCACHE_VERIFY={mode} cannot work here: {reason}; unset it, or use "
            f"HIQCACHE_TRANSFER=torch"
        )
    return verified


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
