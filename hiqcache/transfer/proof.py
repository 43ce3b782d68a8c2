"""Whether a pool's transfer gives the reference's bits here, asked once before there is traffic.

A kernel is what a compiler made of it: another Triton release or GPU may make something else.
`engine/host_pool.py` asks for every pool whose transfer runs kernels, and the server stops where
one bit differs: nothing is ever restored that is not what the codec says.
"""

from __future__ import annotations

import torch

from hiqcache.codec.base import Codec
from hiqcache.codec.record import RecordLayout
from hiqcache.errors import HiQCacheError
from hiqcache.transfer.base import Side, Transfer, as_bits

TOKENS = 32
LOUD = 16
"""Every so many channels of a proof's rows are large, as K's are in real models."""


def prove(transfer: Transfer) -> None:
    """Back up and restore rows of the pool's first slots, and compare every bit.

    The pool is empty: its rows are as they were afterwards, and its records zero.

    Raises
    ------
    HiQCacheError
        Records or rows differ from the codec's; names codec and device, and the way out.
    """
    sides = (transfer.k, transfer.v)
    tokens = min(TOKENS, *(len(buffers[0]) // 2 for s in sides for buffers in (s.device, s.host)))
    if not tokens:
        return
    sources = torch.arange(tokens, device=transfer.device)
    targets = torch.arange(tokens, 2 * tokens, device=transfer.device).flip(0)
    host_slots = torch.arange(tokens, device=transfer.device).flip(0)
    places = host_slots.cpu()
    before = [[as_bits(rows[: 2 * tokens]).clone() for rows in side.device] for side in sides]
    wanted = [_fill(transfer.codec, side, sources) for side in sides]
    try:
        transfer.backup(sources, host_slots)
        _wait(transfer)
        for side, layers in zip(sides, wanted, strict=True):
            used = side.layout.used_bytes
            for found, (records, _) in zip(side.host, layers, strict=True):
                if not torch.equal(found[places][:, :used], records[:, :used].cpu()):
                    raise _differs(transfer, "records")
        transfer.restore_all(targets, host_slots)
        _wait(transfer)
        for side, layers in zip(sides, wanted, strict=True):
            for rows, (_, decoded) in zip(side.device, layers, strict=True):
                if not torch.equal(as_bits(rows)[targets], as_bits(decoded)):
                    raise _differs(transfer, "rows")
    finally:
        for side, kept in zip(sides, before, strict=True):
            for rows, bits in zip(side.device, kept, strict=True):
                as_bits(rows)[: 2 * tokens] = bits
            for records in side.host:
                records[:tokens] = 0


def _fill(
    codec: Codec, side: Side, sources: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Put rows of each layer at `sources`; the records and rows that the codec makes of them."""
    found = []
    for layer, rows in enumerate(side.device):
        fresh = _rows(side.layout, len(sources), layer).to(rows.dtype).to(rows.device)
        as_bits(rows)[sources] = as_bits(fresh)
        records = codec.encode(fresh, side.layout)
        found.append((records, codec.decode(records, side.layout, dtype=rows.dtype)))
    return found


def _rows(layout: RecordLayout, tokens: int, layer: int) -> torch.Tensor:
    """Finite rows, `[tokens, heads, head_dim]` float32: quiet and loud channels, one zero head."""
    generator = torch.Generator().manual_seed(layer)
    rows = torch.randn(tokens, layout.heads, layout.head_dim, generator=generator)
    rows[..., ::LOUD] *= 50.0
    rows[0, 0] = 0.0
    return rows


def _wait(transfer: Transfer) -> None:
    if transfer.device.type == "cuda":
        torch.cuda.synchronize(transfer.device)


def _differs(transfer: Transfer, what: str) -> HiQCacheError:
    device = transfer.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return HiQCacheError(
        f"the {transfer.name} transfer of {transfer.codec.name} gives other {what} on {name} than "
        f"the codec's reference: use HIQCACHE_CODEC=int8-compact or exact, or "
        f"HIQCACHE_TRANSFER=torch (slow)"
    )
