"""The rotation of a head: integers times a Hadamard matrix, the same bits in any order of sums.

K has channels that are many times larger than the rest, and one scale for a head is as coarse as
the largest of them asks for. After the rotation no channel stands out. Runs are of the largest
power of two that divides head_dim: the whole head for 64, 128 and 256.

Everything here is an integer below 2^24 in a float32, and what is multiplied has at most 8
significant bits, so that a matrix product is exact in every mode that a processor may have been
put into: float32, TF32 (11 bits), bfloat16 factors with float32 sums (8 bits).
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from hiqcache.codec.record import MOST_PLACES


def run_length(head_dim: int) -> int:
    """Values that are rotated together: the largest power of two that divides head_dim."""
    return min(head_dim & -head_dim, MOST_PLACES)


@cache
def hadamard(order: int, device: torch.device) -> Tensor:
    """Sylvester's matrix, `[order, order]` float32 of +1 and -1: H_2n = [[H, H], [H, -H]]."""
    matrix = torch.ones(1, 1, device=device)
    while len(matrix) < order:
        upper, lower = torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)
        matrix = torch.cat((upper, lower))
    return matrix


def rotate_wide(t: Tensor, run: int) -> Tensor:
    """H t for each run of integers of up to 15 bits.

    Parameters
    ----------
    t
        `[..., head_dim]` float32, integers of magnitude up to 2^14.

    Returns
    -------
    Tensor
        The same shape, integers of magnitude up to 2^14 x run.
    """
    high = t.add(128.0).mul_(2.0**-8).floor_()
    low = t.sub(high, alpha=256.0)
    return rotate(high, run).mul_(256.0).add_(rotate(low, run))


def rotate(q: Tensor, run: int) -> Tensor:
    """H q for each run of integers of up to 8 significant bits, `[..., head_dim]` float32."""
    return (q.reshape(-1, run) @ hadamard(run, q.device)).view(q.shape)


def combine(x: Tensor, count: int) -> Tensor:
    """The rest of a rotation that was done in `count` groups of each run.

    Sums of pairs in float32: groups at distance 1 first, then 2, and so on.

    Parameters
    ----------
    x
        `[runs, count, group]` float32.
    """
    distance = 1
    while distance < count:
        pairs = x.view(-1, count // distance // 2, 2, distance, x.shape[-1])
        one, other = pairs[:, :, 0], pairs[:, :, 1]
        x = torch.stack((one + other, one - other), dim=2).reshape(x.shape)
        distance *= 2
    return x
