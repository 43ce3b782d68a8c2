"""Whether a transfer keeps its contract, asked by `bench transfer` before it times one."""

from __future__ import annotations

from functools import cache

import torch

from hiqcache.codec.inputs import named_input
from hiqcache.errors import HiQCacheError
from hiqcache.lab.bench.pool import random_slots
from hiqcache.transfer.base import Transfer

CHECKED_INPUTS = ("scattered_patterns", "exact_ties", "near_floor", "nan", "largest_finite")
CHECKED_TOKENS = 61


def verify(transfer: Transfer, slots: int) -> None:
    """Refuse a transfer that differs from the codec by a bit, or touches what it must not.

    Parameters
    ----------
    slots
        Of the pool, on both sides.
    """
    device_slots = random_slots(slots, CHECKED_TOKENS, 1, seed=1)
    host_slots = random_slots(slots, CHECKED_TOKENS, 1, seed=2)
    target_slots = random_slots(slots, CHECKED_TOKENS, 1, seed=3)
    outside = random_slots(slots, 4 * CHECKED_TOKENS, 1, seed=2)[CHECKED_TOKENS:].cpu()
    expected: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
    for side in (transfer.k, transfer.v):
        expected.append([])
        for layer, (rows, records) in enumerate(zip(side.device, side.host, strict=True)):
            name = CHECKED_INPUTS[layer % len(CHECKED_INPUTS)]
            shape = (CHECKED_TOKENS, side.layout.heads, side.layout.head_dim)
            fresh = _checked_input(name, shape).to(rows.device)
            rows[device_slots] = fresh
            records[host_slots.cpu()] = 0xA5
            records[outside] = 0xA5
            encoded = transfer.codec.encode(fresh, side.layout)
            expected[-1].append((encoded, transfer.codec.decode(encoded, side.layout)))
    transfer.backup(device_slots, host_slots)
    torch.cuda.synchronize()
    for side, layers in zip((transfer.k, transfer.v), expected, strict=True):
        for records, (encoded, _) in zip(side.host, layers, strict=True):
            encoded[:, side.layout.used_bytes :] = 0xA5
            _same("records", transfer, records[host_slots.cpu()], encoded.cpu())
            if not bool((records[outside] == 0xA5).all()):
                raise HiQCacheError(f"transfer {transfer.name} wrote to a slot not addressed")
            records[outside] = 0
    for side in (transfer.k, transfer.v):
        for rows in side.device:
            rows[target_slots] = torch.nan
    transfer.restore_all(target_slots, host_slots)
    torch.cuda.synchronize()
    for side, layers in zip((transfer.k, transfer.v), expected, strict=True):
        for rows, (_, decoded) in zip(side.device, layers, strict=True):
            _same("rows", transfer, rows[target_slots], decoded)
            rows[target_slots] = torch.randn_like(decoded)
            rows[device_slots] = torch.randn_like(decoded)
        for records in side.host:
            records[host_slots.cpu()] = 0


@cache
def _checked_input(name: str, shape: tuple[int, int, int]) -> torch.Tensor:
    return named_input(name, shape)


def _same(what: str, transfer: Transfer, got: torch.Tensor, expected: torch.Tensor) -> None:
    bits = torch.uint8 if got.dtype == torch.uint8 else torch.int16
    if not torch.equal(got.contiguous().view(bits), expected.contiguous().view(bits)):
        raise HiQCacheError(
            f"transfer {transfer.name}, codec {transfer.codec.name}: {what} differ from the "
            f"reference; not timed"
        )
