"""The CUDA driver's library, for the few calls that PyTorch has no function for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


@cache
def driver() -> ctypes.CDLL:
    """The library that PyTorch itself has loaded; its calls return 0 or an error's number.

    Raises
    ------
    OSError
        There is none.
    """
    return ctypes.CDLL("libcuda.so.1")


@cache
def wait_value() -> Callable[[int, int, int, int], int]:
    """`cuStreamWaitValue32`: stream, address, value, flags.

    Raises
    ------
    OSError, AttributeError
        There is no driver, or it is too old for it.
    """
    function = driver().cuStreamWaitValue32_v2
    # Declared once: a restore calls it for every layer.
    function.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)
    function.restype = ctypes.c_int
    return function
