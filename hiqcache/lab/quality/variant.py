"""Which part of a KV cache goes through what: a codec or a reference, sides, layers, heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from hiqcache.codec.base import Codec
from hiqcache.codec.record import SIDES, Side
from hiqcache.lab.quality.reference import REFERENCES
from hiqcache.lab.quality.row import CODEC, PART, PROFILE, REFERENCE

Rows = Callable[[Tensor, Side], Tensor]
"""From `[tokens, heads, head_dim]` bf16 to what comes back of them."""


@dataclass(frozen=True)
class Variant:
    """A way through L2 and the part of the cache that takes it.

    Parameters
    ----------
    name
        How rows and figures call it.
    role
        One of those of `row.py`.
    through
        None leaves the cache as L1 holds it.
    codec
        Whose way it is, if it is a codec's.
    sides
        K, V or both.
    layer, head
        One layer, one KV head; None for all.
    """

    name: str
    role: str
    through: Rows | None = None
    codec: str | None = None
    sides: tuple[Side, ...] = SIDES
    layer: int | None = None
    head: int | None = None

    def pass_through(self, values: Tensor, side: Side) -> Tensor:
        """All layers' K or V as they come back from L2.

        Parameters
        ----------
        values
            `[layers, heads, tokens, head_dim]` of any floating type that holds BF16 values
            exactly.

        Returns
        -------
        Tensor
            The same shape and type; `values` itself where this variant leaves it alone.
        """
        if self.through is None or side not in self.sides:
            return values
        layers = slice(None) if self.layer is None else slice(self.layer, self.layer + 1)
        heads = slice(None) if self.head is None else slice(self.head, self.head + 1)
        chosen = values[layers]
        # Layers behind each other as tokens: every row is encoded by itself.
        rows = chosen.transpose(1, 2).flatten(0, 1).bfloat16().contiguous()
        back = self.through(rows, side).view(len(chosen), -1, *rows.shape[1:]).transpose(1, 2)
        passed = values.clone()
        passed[layers, heads] = back[:, heads].to(values.dtype)
        return passed


def through(codec: Codec) -> Rows:
    """Into records and back."""

    def rows_through(rows: Tensor, side: Side) -> Tensor:
        layout = codec.layout(side, rows.shape[1], rows.shape[2])
        return codec.decode(codec.encode(rows, layout), layout)

    return rows_through


def profile(codec: Codec, layers: int, heads: int, per_head: bool) -> list[Variant]:
    """Each layer alone, K and V apart; with `per_head` each KV head of each layer as well."""
    way = through(codec)
    return [
        Variant(
            f"{codec.name} {side} layer {layer}" + ("" if head is None else f" head {head}"),
            *(PROFILE, way, codec.name),
            sides=(side,),
            layer=layer,
            head=head,
        )
        for side in SIDES
        for layer in range(layers)
        for head in (None, *(range(heads) if per_head else ()))
    ]


def whole(codecs: Sequence[Codec], apart: Codec | None) -> list[Variant]:
    """Each codec and reference on everything, and `apart` on K alone and on V alone as well."""
    if not codecs:
        return []
    variants = [Variant(codec.name, CODEC, through(codec), codec.name) for codec in codecs]
    if apart is not None:
        way = through(apart)
        variants += [
            Variant(f"{apart.name}, {side.upper()} only", PART, way, apart.name, (side,))
            for side in SIDES
        ]
    return variants + [Variant(name, REFERENCE, way) for name, way in REFERENCES.items()]
