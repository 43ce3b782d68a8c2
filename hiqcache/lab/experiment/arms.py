"""The configurations that are compared, as data, and what SGLang is started with for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hiqcache.capacity import Capacity, by_ratio, by_size
from hiqcache.errors import UsageError
from hiqcache.geometry import Geometry

GIGABYTE = 10**9
LAYOUT = {"write_back": "layer_first", "write_through": "page_first"}
"""`write_through` with `page_first` are SGLang's defaults; `layer_first` needs no staging."""


@dataclass(frozen=True)
class Arm:
    """One configuration.

    Parameters
    ----------
    codec
        `HIQCACHE_CODEC`; `off` is SGLang's own BF16 HiCache, None is a server without L2.
    policy, layout
        `--hicache-write-policy` and `--hicache-mem-layout`; None without L2.
    """

    name: str
    codec: str | None = None
    policy: str | None = None
    layout: str | None = None

    def on_cpu(self) -> Arm:
        """The same where there is no GPU: SGLang's own pool needs CUDA, HiQCache's does not."""
        return replace(self, codec="bf16") if self.codec == "off" else self

    @property
    def record(self) -> str | None:
        """The record format in L2, by the name that `capacity` knows."""
        return "bf16" if self.codec == "off" else self.codec


def _arm(name: str, codec: str, policy: str) -> Arm:
    return Arm(f"{name}-{policy}", codec, policy, LAYOUT[policy])


ARMS = (
    _arm("bf16", "off", "write_back"),
    _arm("int8", "int8", "write_back"),
    _arm("int8-compact", "int8-compact", "write_back"),
    _arm("bf16", "off", "write_through"),
    _arm("int8", "int8", "write_through"),
    _arm("int8-compact", "int8-compact", "write_through"),
    Arm("none"),
)
"""In the order in which they take their places on the GPUs: pairs to compare stay together."""

ON_REQUEST = (
    _arm("int8-rotated", "int8-rotated", "write_back"),
    _arm("int8-rotated", "int8-rotated", "write_through"),
)
"""Run where `--arms` names them: their bytes and tokens are those of `int8-compact`."""

ALL_ARMS = (*ARMS, *ON_REQUEST)


def arms_named(names: Sequence[str]) -> tuple[Arm, ...]:
    """Arms by name, in the table's order.

    Raises
    ------
    UsageError
        A name that is not in the table.
    """
    known = [arm.name for arm in ALL_ARMS]
    for name in names:
        if name not in known:
            raise UsageError(f"unknown arm {name!r}: expected some of {', '.join(known)}")
    return tuple(arm for arm in ALL_ARMS if arm.name in names)


@dataclass(frozen=True)
class Sizing:
    """How large L2 is: so many bytes for every codec, or so many tokens for every codec.

    Qwen3-8B with 8 GB: `--hicache-size 8`, 54,254 tokens of BF16 and 96,451 of `int8`. With
    54,254 tokens: a ratio that gives them, 8.000 GB and 4.500 GB.
    """

    budget_bytes: int | None = None
    tokens: int | None = None

    def arguments(self, geometry: Geometry, record: str, l1_tokens: int, page: int) -> list[str]:
        """SGLang's flag for this size."""
        if self.budget_bytes is not None and self.budget_bytes % GIGABYTE == 0:
            return ["--hicache-size", str(self.budget_bytes // GIGABYTE)]
        return ["--hicache-ratio", repr(self._ratio(geometry, record, l1_tokens, page))]

    def capacity(self, geometry: Geometry, record: str, l1_tokens: int, page: int) -> Capacity:
        """What SGLang makes of that flag, to the token."""
        if self.budget_bytes is not None and self.budget_bytes % GIGABYTE == 0:
            size = self.budget_bytes // GIGABYTE
            return by_size(geometry, record, size, page_size=page)
        ratio = self._ratio(geometry, record, l1_tokens, page)
        return by_ratio(geometry, record, ratio, l1_tokens, page_size=page)

    def _ratio(self, geometry: Geometry, record: str, l1_tokens: int, page: int) -> float:
        if self.tokens is not None:
            tokens = self.tokens - page  # SGLang adds a page
        else:
            assert self.budget_bytes is not None
            per_token = by_size(geometry, record, 1, page_size=page).bytes_per_token
            tokens = self.budget_bytes // per_token
        # SGLang truncates l1 * ratio; half a token on top keeps that from losing one.
        return (tokens + 0.5) / l1_tokens


@dataclass(frozen=True)
class Deployment:
    """An arm with its pools: everything that makes two servers different."""

    arm: Arm
    l1_tokens: int
    sizing: Sizing
    page_size: int = 1

    @property
    def name(self) -> str:
        tokens = self.sizing.tokens
        return self.arm.name if tokens is None else f"{self.arm.name}@{tokens}"

    def capacity(self, geometry: Geometry) -> Capacity | None:
        """L2 in tokens and bytes; None without L2."""
        record = self.arm.record
        if record is None:
            return None
        return self.sizing.capacity(geometry, record, self.l1_tokens, self.page_size)

    def arguments(self, geometry: Geometry) -> list[str]:
        """SGLang's arguments for the pools of this arm."""
        arguments = [
            *("--max-total-tokens", str(self.l1_tokens)),
            *("--page-size", str(self.page_size)),
        ]
        record = self.arm.record
        if record is None or self.arm.policy is None or self.arm.layout is None:
            return arguments
        return [
            *arguments,
            "--enable-hierarchical-cache",
            *self.sizing.arguments(geometry, record, self.l1_tokens, self.page_size),
            *("--hicache-write-policy", self.arm.policy),
            *("--hicache-mem-layout", self.arm.layout),
        ]

    def environment(self) -> dict[str, str]:
        return {"HIQCACHE_CODEC": self.arm.codec or "off"}
