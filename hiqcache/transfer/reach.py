"""Whether a kernel can read and write a host buffer under the address that the CPU uses."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from hiqcache.transfer.driver import driver

DEVICE_POINTER = 3
"""`CU_POINTER_ATTRIBUTE_DEVICE_POINTER` of the driver's `cuPointerGetAttribute`."""


def why_unregistered(buffers: Sequence[torch.Tensor]) -> str | None:
    """Why kernels must not touch these host buffers at all; None if they may.

    Asks the driver, which harms nothing: a kernel that touches memory that is not registered
    ends the process's CUDA context.
    """
    if not buffers:
        return "no host buffers were given"
    for buffer in buffers:
        if any(_device_address(address) is None for address in _ends(buffer)):
            return "the host buffers are not registered with CUDA"
    return None


def why_unreachable(buffers: Sequence[torch.Tensor], device: torch.device) -> str | None:
    """Why the `fused` kernels cannot work on these registered buffers; None if they can.

    Compares the driver's addresses with the CPU's, then has a kernel invert the first and the
    last byte of each buffer, looks, and puts them back. Synchronises: for the start only.
    """
    try:
        from hiqcache.transfer import kernels
    except ImportError as error:
        return f"Triton is missing ({error})"
    ends = [address for buffer in buffers for address in _ends(buffer)]
    if any(_device_address(address) != address for address in ends):
        return "host memory has another address on the GPU"
    for address in ends:
        byte = ctypes.c_uint8.from_address(address)
        before = byte.value
        with torch.cuda.device(device):
            kernels.flip[(1,)](address, num_warps=1)
            torch.cuda.synchronize()
        after, byte.value = byte.value, before
        if after != before ^ 0xFF:
            return "a kernel's write to host memory did not arrive"
    return None


def _ends(buffer: torch.Tensor) -> tuple[int, int]:
    return buffer.data_ptr(), buffer.data_ptr() + buffer.nbytes - 1


def _device_address(address: int) -> int | None:
    """Where the GPU finds the byte that the CPU finds at `address`; None if nowhere."""
    found = ctypes.c_uint64()
    query = driver().cuPointerGetAttribute
    failed = query(ctypes.byref(found), ctypes.c_int(DEVICE_POINTER), ctypes.c_uint64(address))
    return None if failed else found.value
