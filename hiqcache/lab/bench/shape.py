"""The KV of a model as benchmarks need it: layers, heads and head_dim, the same for K and V."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """What one token keeps: K and V of `layers` layers of `heads x head_dim` values."""

    layers: int
    heads: int
    head_dim: int

    @property
    def bf16_bytes(self) -> int:
        """Bytes of one token's rows."""
        return 2 * self.layers * self.heads * self.head_dim * 2


QWEN3_8B = Shape(36, 8, 128)
