"""Whether a kernel can read and write a host buffer under the address that the CPU uses.

The registry asks it before it chooses `fused`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import torch

DEVICE_POINTER = 3
"""`CU_POINTER_ATTRIBUTE_DEVICE_POINTER` of the driver's `cuPointerGetAttribute`."""


@cache
def driver() -> ctypes.CDLL:
    """The CUDA driver's library, which PyTorch has loaded; its calls return 0 or an error's number.

    Raises
    ------
    OSError
        There is none.
    """
    return ctypes.CDLL("libcuda.so.1")


def why_no_host_access(buffers: Sequence[torch.Tensor], device: torch.device) -> str | None:
    """Why kernels on `device` cannot work on these host buffers; None if they can.

    First the driver is asked whether the buffers are registered, which harms nothing: a kernel
    that touches memory that is not registered ends the process's CUDA context. Then a kernel
    inverts the first and the last byte of each buffer, the CPU looks, and puts them back. That
    synchronises: for the start only.
    """
    if not buffers:
        return "no host buffers were given"
    ends = [address for buffer in buffers for address in _ends(buffer)]
    found = [_device_address(address) for address in ends]
    if None in found:
        return "the host buffers are not registered with CUDA"
    if found != ends:
        return "host memory has another address on the GPU"
    try:
        from hiqcache.transfer.kernels.entry import flip
    except ImportError as error:
        return f"Triton is missing ({error})"
    for address in ends:
        byte = ctypes.c_uint8.from_address(address)
        before = byte.value
        with torch.cuda.device(device):
            flip[(1,)](address, num_warps=1)
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
