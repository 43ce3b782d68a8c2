"""Each kernel variant once on small pools, for a run under compute-sanitizer.

    compute-sanitizer --tool memcheck python -m tests.gpu.sanitize

Device rows end at the end of their allocation, so that a read or write past them is found.
"""

from __future__ import annotations

import torch

from hiqcache.codec.registry import get_codec
from hiqcache.transfer.fused import FusedTransfer
from tests.unit.kernel_pool import Shape, codec_names, fill, make_sides, some_slots

SHAPES = (
    Shape(slots=33),
    Shape(heads=3, k_dim=64, v_dim=72, slots=33, layout="page_first", strided=True),
)


def main() -> None:
    for codec in map(get_codec, codec_names()):
        for shape in SHAPES:
            k, v = make_sides(codec, shape, "cuda")
            slots = some_slots(shape, 33, 1).cuda()
            fill(k, slots, ("scattered_patterns",), 0)
            fill(v, slots, ("random_unit",), 1)
            transfer = FusedTransfer(codec, k, v)
            transfer.backup(slots, slots.flip(0))
            for layer in range(shape.layers):
                transfer.restore(slots, slots.flip(0), layer)
            torch.cuda.synchronize()
            print("ran", codec.name, shape)


if __name__ == "__main__":
    main()
