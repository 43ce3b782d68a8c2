"""Small pools for tests of transfers: poisoned memory, hard rows, and slots in any order."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hiqcache.codec.base import Codec
from hiqcache.codec.inputs import named_input
from hiqcache.codec.record import SIDES
from hiqcache.codec.row import row_type
from hiqcache.transfer.base import Side, as_bits

POISON = 0xA5
POISON_BITS = 0x7FA5
"""A NaN that no codec writes, in BF16 and in FP16."""
POISON_BYTE = 0xFF
"""The same in fp8."""
REGISTERED: list[torch.Tensor] = []
GAP = 32
"""Values between the rows of strided device layers."""


@dataclass(frozen=True)
class Shape:
    """What a pool looks like; K and V may have different widths."""

    heads: int = 8
    k_dim: int = 128
    v_dim: int = 128
    layers: int = 2
    slots: int = 40
    layout: str = "layer_first"
    strided: bool = False
    dtype: torch.dtype = torch.bfloat16

    def __str__(self) -> str:
        gaps = "-strided" if self.strided else ""
        kind = "" if self.dtype == torch.bfloat16 else f"-{row_type(self.dtype).label.lower()}"
        return f"{self.heads}x{self.k_dim}+{self.v_dim}-{self.layout}{gaps}{kind}"


def make_sides(codec: Codec, shape: Shape, device: str = "cpu") -> tuple[Side, Side]:
    """Every row and every record poisoned; host memory starts on a page, as SGLang's does.

    On a GPU the host memory is registered, and stays so until the process ends.
    """
    k, v = (_side(codec, shape, index, device) for index in range(2))
    return k, v


def fill(side: Side, slots: torch.Tensor, names: tuple[str, ...], seed: int) -> None:
    """Named inputs into the rows at `slots`, another one in each layer."""
    for layer, rows in enumerate(side.device):
        name = names[(layer + seed) % len(names)]
        shape = (len(slots), side.layout.heads, side.layout.head_dim)
        fresh = named_input(name, shape, layer + seed, rows.dtype)
        as_bits(rows)[slots.to(rows.device)] = as_bits(fresh).to(rows.device)


def poison_rows(side: Side) -> None:
    for rows in side.device:
        as_bits(rows).fill_(POISON_BITS if rows.itemsize == 2 else POISON_BYTE)


def bits(side: Side) -> tuple[torch.Tensor, torch.Tensor]:
    """Every row and every record of a side, on the CPU, as integers that compare bit by bit."""
    rows = torch.stack([as_bits(rows).contiguous() for rows in side.device]).cpu()
    return rows, torch.stack(side.host).clone()


def some_slots(shape: Shape, tokens: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(shape.slots, generator=generator)[:tokens]


def codec_names() -> tuple[str, ...]:
    """One codec at least of every family of kernels."""
    return ("bf16", "int8", "int8-compact", "exact", "k6v5", "k4v4")


def _side(codec: Codec, shape: Shape, index: int, device: str) -> Side:
    width = (shape.k_dim, shape.v_dim)[index]
    layout = codec.layout(SIDES[index], shape.heads, width, shape.dtype.itemsize)
    values = shape.heads * width
    pitch = values + (GAP if shape.strided else 0)
    rows = torch.zeros((shape.layers, shape.slots, pitch), dtype=shape.dtype, device=device)
    views = rows[:, :, :values].unflatten(2, (shape.heads, width)).unbind(0)
    size = shape.layers * shape.slots * layout.record_bytes
    host = _registered(size) if device == "cuda" else page_aligned(size)
    host.fill_(POISON)
    outer = (shape.layers, shape.slots)
    if shape.layout == "page_first":
        by_layer = host.view(*reversed(outer), layout.record_bytes).transpose(0, 1)
    else:
        by_layer = host.view(*outer, layout.record_bytes)
    side = Side(layout, tuple(views), tuple(by_layer.unbind(0)))
    poison_rows(side)
    return side


def _registered(size: int) -> torch.Tensor:
    host = page_aligned(-(-size // 4096) * 4096)
    # Whole pages: two buffers in one page could not both be registered.
    assert int(torch.cuda.cudart().cudaHostRegister(host.data_ptr(), host.numel(), 0)) == 0
    REGISTERED.append(host)
    return host[:size]


def page_aligned(size: int) -> torch.Tensor:
    raw = torch.zeros(size + 4096, dtype=torch.uint8)
    return raw[-raw.data_ptr() % 4096 :][:size]
