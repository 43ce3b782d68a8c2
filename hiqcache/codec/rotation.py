"""A Hadamard rotation of short runs of a head, which spreads what one channel holds over all.

K has channels that are many times larger than the rest, and one scale a head is as coarse as the
largest of them asks for. After the rotation no channel stands out. The matrix is orthogonal, so
squared errors come back as large as they were made, but for the scale's gain.

Runs are of 16 values, or of 8 where head_dim is no multiple of 16. That is what a thread of a
kernel moves at once, so the rotation needs no other thread; a rotation of the whole head gained no
more on SmolLM2-135M (results/quality/rotation-study.json).

Sums are taken pairwise in one fixed order, by IEEE additions in float32, so that they are the same
bits on every device that keeps subnormals. `rotate` divides by the length of a run, a power of two,
and `unrotate` does not: no sum on the way leaves the range of its inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

LONG, SHORT = 16, 8


def run_length(head_dim: int) -> int:
    """Values that are rotated together."""
    return SHORT if head_dim % LONG else LONG


def rotate(x: Tensor) -> Tensor:
    """y = H x / n for each run of n values, H the Hadamard matrix of Sylvester's order.

    Parameters
    ----------
    x
        `[..., head_dim]` float32, finite.

    Returns
    -------
    Tensor
        The same shape.
    """
    return _butterfly(x * (1.0 / run_length(x.shape[-1])))


def unrotate(y: Tensor) -> Tensor:
    """x = H y for each run; what `rotate` undid, since H H = n."""
    return _butterfly(y)


def _butterfly(x: Tensor) -> Tensor:
    shape, length = x.shape, run_length(x.shape[-1])
    step = 1
    while step < length:
        pairs = x.reshape(-1, 2, step)
        one, other = pairs[:, 0], pairs[:, 1]
        x = torch.stack((one + other, one - other), dim=1)
        step *= 2
    return x.reshape(shape)
