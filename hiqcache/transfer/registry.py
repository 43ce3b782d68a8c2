"""Which transfer a pool gets, what `auto` means there, and what looks at its records."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hiqcache.config import FUSED, OFF, TORCH, TRANSFERS, VERIFY_EVERY
from hiqcache.errors import UsageError
from hiqcache.transfer.base import Transfer
from hiqcache.transfer.host_access import why_no_host_access
from hiqcache.transfer.torch_transfer import TorchTransfer
from hiqcache.transfer.verification import Verification


def choose_transfer(
    name: str, device: torch.device, host: Sequence[torch.Tensor] = ()
) -> tuple[type[Transfer], str]:
    """The transfer class for a request, and one phrase that says why.

    Parameters
    ----------
    name
        `auto`, or one of `TRANSFERS`.
    device
        Where the rows are.
    host
        The buffers that will hold the records; `fused` needs kernels that reach them.

    Raises
    ------
    UsageError
        A name that is neither `auto` nor a transfer, or a transfer that cannot work there.
    """
    if name not in ("auto", *TRANSFERS):
        raise UsageError(
            f"unknown transfer {name!r}: expected auto or one of {', '.join(TRANSFERS)}"
        )
    if name == TORCH:
        return TorchTransfer, "as asked"
    on_gpu = device.type == "cuda"
    if name == "auto" and not on_gpu:
        return TorchTransfer, f"the only transfer for {device.type} tensors"
    reason = f"it needs a CUDA device, and the rows are on {device.type}"
    if not on_gpu or (reason := why_no_host_access(host, device) or ""):
        if name == "auto":
            return TorchTransfer, f"slow, but fused cannot work here: {reason}"
        raise UsageError(f"transfer {FUSED} cannot work here: {reason}; use auto or torch")
    # Late: it needs Triton, which machines without a GPU may lack.
    from hiqcache.transfer.fused import FusedTransfer

    return FusedTransfer, "as asked" if name == FUSED else "kernels reach the host memory"


def make_verification(mode: str, transfer: Transfer) -> Verification | None:
    """What looks at L2 beside `transfer`, as `HIQCACHE_VERIFY` says; None for `off`.

    Raises
    ------
    UsageError
        A kernel is to look, and cannot reach the checksums.
    """
    if mode == OFF:
        return None
    every = VERIFY_EVERY[mode]
    if transfer.name != FUSED or transfer.device.type != "cuda":
        return Verification(transfer.k, transfer.v, every)
    from hiqcache.transfer.kernel_verification import KernelVerification

    verification = KernelVerification(transfer.k, transfer.v, every, transfer.programs)
    reason = why_no_host_access([verification.table], transfer.device)
    if reason:
        raise UsageError(
            f"HIQCACHE_VERIFY={mode} cannot work here: {reason}; unset it, or use "
            f"HIQCACHE_TRANSFER=torch"
        )
    return verification
