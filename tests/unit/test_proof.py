"""A transfer is proven before there is traffic: one wrong bit stops the start."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hiqcache.codec.registry import get_codec
from hiqcache.errors import HiQCacheError
from hiqcache.transfer.proof import prove
from hiqcache.transfer.torch_transfer import TorchTransfer
from tests.unit.kernel_pool import Shape, make_sides


def bound(kind: type[TorchTransfer], codec: str, slots: int = 80) -> TorchTransfer:
    k, v = make_sides(get_codec(codec), Shape(slots=slots, layers=2), "cpu")
    return kind(get_codec(codec), k, v)


def flipped(part: Callable[[TorchTransfer], torch.Tensor], after: str) -> type[TorchTransfer]:
    """A transfer that changes one bit of what it has just written."""

    class Wrong(TorchTransfer):
        def backup(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
            super().backup(device_slots, host_slots)
            if after == "backup":
                part(self).bitwise_xor_(1)

        def restore(self, device_slots: torch.Tensor, host_slots: torch.Tensor, layer: int) -> None:
            super().restore(device_slots, host_slots, layer)
            if after == "restore" and layer == 1:
                part(self).bitwise_xor_(1)

    return Wrong


@pytest.mark.parametrize("codec", ["bf16", "int8-compact", "exact", "k6v4"])
@pytest.mark.parametrize("slots", [80, 5, 1])
def test_a_right_transfer_leaves_no_trace(codec: str, slots: int) -> None:
    transfer = bound(TorchTransfer, codec, slots)
    for side in (transfer.k, transfer.v):
        for records in side.host:
            records.zero_()
    rows = [layer.clone() for side in (transfer.k, transfer.v) for layer in side.device]
    prove(transfer)
    after = [layer for side in (transfer.k, transfer.v) for layer in side.device]
    for one, other in zip(rows, after, strict=True):
        assert torch.equal(one.view(torch.int16), other.view(torch.int16))
    for side in (transfer.k, transfer.v):
        assert not any(records.any() for records in side.host)
    assert transfer.nonfinite_heads() in (None, 0)
    assert transfer.inexact_rows() in (None, 0)


@pytest.mark.parametrize("codec", ["int8-compact", "k6v4"])
def test_one_wrong_bit_of_a_record_stops_the_start(codec: str) -> None:
    wrong = flipped(lambda transfer: transfer.v.host[1][3, 7:8], "backup")
    with pytest.raises(HiQCacheError, match=f"torch transfer of {codec} gives other records on"):
        prove(bound(wrong, codec))


def test_one_wrong_bit_of_a_row_stops_the_start() -> None:
    wrong = flipped(lambda transfer: transfer.k.device[1].view(torch.int16)[40, 0, 5:6], "restore")
    with pytest.raises(HiQCacheError, match="gives other rows on cpu .* HIQCACHE_TRANSFER=torch"):
        prove(bound(wrong, "int8-compact"))
