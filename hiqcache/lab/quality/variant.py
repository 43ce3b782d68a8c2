"""Which part of a KV cache goes through a codec: sides, layers, heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from hiqcache.codec.base import Codec
from hiqcache.codec.record import SIDES, Side


@dataclass(frozen=True)
class Variant:
    """A codec and the part of the cache that passes through it.

    Parameters
    ----------
    name
        How rows and figures call it.
    codec
        None leaves the cache as L1 holds it.
    sides
        K, V or both.
    layer, head
        One layer, one KV head; None for all.
    """

    name: str
    codec: Codec | None
    sides: tuple[Side, ...] = SIDES
    layer: int | None = None
    head: int | None = None

    @property
    def complete(self) -> bool:
        """Whether the codec is on everything."""
        return self.sides == SIDES and self.layer is None and self.head is None

    def pass_through(self, values: Tensor, side: Side, layer: int) -> Tensor:
        """One layer's K or V as it comes back from L2.

        Parameters
        ----------
        values
            `[1, heads, tokens, head_dim]` of any floating type that holds BF16 values exactly.

        Returns
        -------
        Tensor
            The same shape and type; `values` itself where this variant leaves it alone.
        """
        if self.codec is None or side not in self.sides or self.layer not in (None, layer):
            return values
        _, heads, _, head_dim = values.shape
        rows = values[0].transpose(0, 1).bfloat16().contiguous()
        layout = self.codec.layout(side, heads, head_dim)
        decoded = self.codec.decode(self.codec.encode(rows, layout), layout)
        decoded = decoded.transpose(0, 1).unsqueeze(0).to(values.dtype).contiguous()
        if self.head is None:
            return decoded
        mixed = values.clone()
        mixed[:, self.head] = decoded[:, self.head]
        return mixed


def profile(codec: Codec, layers: int, heads: int, per_head: bool) -> list[Variant]:
    """Each layer alone, K and V apart; with `per_head` each KV head of each layer as well."""
    variants: list[Variant] = []
    for side in SIDES:
        for layer in range(layers):
            name = f"{codec.name} {side} layer {layer}"
            variants.append(Variant(name, codec, (side,), layer))
            if per_head:
                variants += [
                    Variant(f"{name} head {head}", codec, (side,), layer, head)
                    for head in range(heads)
                ]
    return variants


def whole(codecs: Sequence[Codec], apart: Codec) -> list[Variant]:
    """Each codec on everything, and `apart` on K alone and on V alone as well."""
    return [
        *(Variant(codec.name, codec) for codec in codecs),
        *(Variant(f"{apart.name}, {side.upper()} only", apart, (side,)) for side in SIDES),
    ]
