"""`staged` under Triton's interpreter, with a mover of PyTorch copies in SGLang's place.

Not collected by itself: see `test_staged.py`.
"""

from __future__ import annotations

import pytest
import torch

from hiqcache.codec.registry import get_codec
from hiqcache.transfer.mover import Mover
from hiqcache.transfer.staged import StagedTransfer
from hiqcache.transfer.torch_transfer import TorchTransfer
from tests.unit.kernel_pool import (
    POISON,
    Shape,
    bits,
    codec_names,
    fill,
    make_sides,
    poison_rows,
    some_slots,
)

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in multiply")
PROGRAMS = 3
"""The interpreter runs one after the other."""
INPUTS = ("scattered_patterns", "exact_ties", "random_unit")


class CopyMover(Mover):
    """Whole records by PyTorch, and how many went at once."""

    name = "copy"

    def to_host(self, host_slots: torch.Tensor, order: torch.Tensor) -> None:
        self.sent = [*getattr(self, "sent", []), len(order)]
        for host, staged in zip(self.route.host, self.route.outgoing, strict=True):
            for records, layer in zip(host, staged, strict=True):
                records[host_slots] = layer[order]

    def to_staging(self, host_slots: torch.Tensor, order: torch.Tensor, layer: int) -> None:
        self.fetched = [*getattr(self, "fetched", []), len(order)]
        for host, staged in zip(self.route.host, self.route.incoming, strict=True):
            staged[order] = host[layer][host_slots]


@pytest.mark.parametrize("codec_name", codec_names())
@pytest.mark.parametrize(
    "shape",
    [
        Shape(heads=3, k_dim=64, v_dim=64),
        Shape(heads=5, k_dim=96, v_dim=80, layout="page_first", strided=True),
        Shape(heads=3, k_dim=64, v_dim=64, dtype=torch.float16),
    ],
    ids=str,
)
def test_equals_the_reference_and_pads_with_zeros(codec_name: str, shape: Shape) -> None:
    codec = get_codec(codec_name)
    reference, staged = (make_sides(codec, shape) for _ in range(2))
    device_slots, host_slots, targets = (some_slots(shape, 23, seed) for seed in (1, 2, 3))
    transfers = (
        TorchTransfer(codec, *reference),
        StagedTransfer(codec, *staged, PROGRAMS, mover=CopyMover, staging_limit=10_000),
    )
    for transfer in transfers:
        transfer.warm_up()
        for seed, side in enumerate((transfer.k, transfer.v)):
            fill(side, device_slots, INPUTS, seed)
        transfer.backup(device_slots, host_slots)
        for side in (transfer.k, transfer.v):
            poison_rows(side)
        for layer in range(shape.layers):
            transfer.restore(targets, host_slots, layer)
    for one, other in zip(reference, staged, strict=True):
        (rows, records), (staged_rows, staged_records) = bits(one), bits(other)
        assert torch.equal(rows, staged_rows)
        records[:, host_slots, one.layout.used_bytes :] = 0
        assert torch.equal(records, staged_records)


def test_long_transfers_go_in_chunks_within_a_fixed_staging() -> None:
    codec, shape = get_codec("int8"), Shape(heads=2, k_dim=64, v_dim=64)
    k, v = make_sides(codec, shape)
    record = k.layout.record_bytes
    transfer = StagedTransfer(
        codec, k, v, PROGRAMS, mover=CopyMover, staging_limit=2 * 2 * 2 * record * 3
    )
    assert (transfer.backup_chunk, transfer.restore_chunk) == (6, 12)
    before = transfer.staging_bytes
    assert 2 * 2 * 2 * record * 3 * 2 <= before < 2 * 2 * 2 * record * 3 * 2 + 1000
    slots = some_slots(shape, 20, seed=1)
    transfer.backup(slots, slots)
    transfer.restore(slots, slots, 1)
    mover = transfer.mover
    assert isinstance(mover, CopyMover)
    assert mover.sent == [6, 6, 6, 2] and mover.fetched == [12, 8]
    assert transfer.staging_bytes == before


def test_staging_is_no_larger_than_the_pool() -> None:
    codec, shape = get_codec("int8"), Shape(heads=2, k_dim=64, v_dim=64)
    transfer = StagedTransfer(codec, *make_sides(codec, shape), PROGRAMS, mover=CopyMover)
    assert transfer.backup_chunk == transfer.restore_chunk == shape.slots


def test_the_two_directions_share_no_staging() -> None:
    codec, shape = get_codec("int8"), Shape(heads=2, k_dim=64, v_dim=64, layers=1)
    k, v = make_sides(codec, shape)
    transfer = StagedTransfer(codec, k, v, PROGRAMS, mover=CopyMover)
    route = transfer.mover.route
    out = {layer.data_ptr() for layers in route.outgoing for layer in layers}
    assert out.isdisjoint(staged.data_ptr() for staged in route.incoming)


def test_records_not_addressed_keep_their_poison() -> None:
    codec, shape = get_codec("int8"), Shape(heads=2, k_dim=64, v_dim=64, layers=1)
    k, v = make_sides(codec, shape)
    slots = torch.tensor([3])
    fill(k, slots, ("random_unit",), 0)
    fill(v, slots, ("random_unit",), 1)
    StagedTransfer(codec, k, v, PROGRAMS, mover=CopyMover).backup(slots, torch.tensor([7]))
    untouched = torch.arange(shape.slots) != 7
    for side in (k, v):
        assert bool((side.host[0][untouched] == POISON).all())
