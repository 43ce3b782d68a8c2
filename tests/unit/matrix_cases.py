"""Heads x head_dim under Triton's interpreter: every width that models have, and odd ones.

Not collected by itself: `test_fused.py` runs it in a process with `TRITON_INTERPRET=1`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hiqcache.codec.registry import get_codec
from hiqcache.transfer.fused import FusedTransfer
from hiqcache.transfer.torch_transfer import TorchTransfer
from tests.unit.kernel_pool import Shape, bits, fill, make_sides, poison_rows, some_slots

DIMS = (8, 16, 40, 64, 72, 80, 96, 112, 120, 128, 192, 256, 576)
HEADS = (1, 2, 3, 5, 8)
TOKENS = 5
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in multiply")


def matrix() -> Iterator[tuple[str, Shape]]:
    """Each width under each codec; heads, types and layouts take turns.

    V is as wide as K in one case and as wide as the next K in the other.
    """
    for place, dim in enumerate(DIMS):
        wider = DIMS[(place + 1) % len(DIMS)]
        for turn, codec_name in enumerate(("bf16", "int8", "int8-compact", "int8-compact")):
            count = place + turn
            shape = Shape(
                heads=HEADS[count % len(HEADS)],
                k_dim=dim,
                v_dim=wider if turn % 2 else dim,
                layers=1,
                slots=9,
                layout=("layer_first", "page_first")[place % 2],
                dtype=(torch.bfloat16, torch.float16)[count % 2],
            )
            yield codec_name, shape


@pytest.mark.parametrize(("codec_name", "shape"), matrix(), ids=str)
def test_equals_the_reference(codec_name: str, shape: Shape) -> None:
    codec = get_codec(codec_name)
    device_slots, host_slots, targets = (some_slots(shape, TOKENS, seed) for seed in (1, 2, 3))
    results = []
    for kind in (TorchTransfer, FusedTransfer):
        k, v = make_sides(codec, shape)
        for seed, side in enumerate((k, v)):
            fill(side, device_slots, ("random_unit", "exact_ties"), seed)
        transfer = kind(codec, k, v, 3)
        transfer.backup(device_slots, host_slots)
        found = [*bits(k), *bits(v)]
        for side in (k, v):
            poison_rows(side)
        transfer.restore(targets, host_slots, 0)
        results.append([*found, *bits(k), *bits(v)])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
