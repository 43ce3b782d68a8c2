"""What people use today, through the same twin: fp8 KV without scales, and NVFP4.

Neither is a codec of HiQCache: they stand in the tables as the measure of what is common.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hiqcache.codec.record import Side

E4M3_LARGEST = 448.0
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of NVFP4's values."""

NVFP4_GROUP = 16
LEAST_E4M3 = 2.0**-9
"""The smallest E4M3 that is not zero."""


def fp8_e4m3(rows: Tensor, side: Side) -> Tensor:
    """What SGLang's `--kv-cache-dtype fp8_e4m3` keeps of a checkpoint without scales.

    Parameters
    ----------
    rows
        `[tokens, heads, head_dim]` bf16.

    Returns
    -------
    Tensor
        As they are read again.
    """
    return rows.clamp(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn).to(rows.dtype)


def nvfp4(rows: Tensor, side: Side) -> Tensor:
    """E2M1 values with an E4M3 scale for 16 of them, as in TensorRT-LLM's cold pages.

    The scale is the largest magnitude over 6; values are rounded to the nearest, as `rows`.
    """
    groups = rows.float().reshape(*rows.shape[:-1], -1, NVFP4_GROUP)
    largest = groups.abs().amax(-1, keepdim=True) / E2M1[-1]
    scale = largest.clamp(max=E4M3_LARGEST).to(torch.float8_e4m3fn).float().clamp(min=LEAST_E4M3)
    levels = torch.tensor(E2M1, device=rows.device)
    middles = (levels[1:] + levels[:-1]) / 2
    values = groups / scale
    nearest = levels[torch.bucketize(values.abs(), middles)]
    return (nearest.copysign(values) * scale).view(rows.shape).to(rows.dtype)


REFERENCES = {"fp8 e4m3, no scales": fp8_e4m3, "NVFP4": nvfp4}
