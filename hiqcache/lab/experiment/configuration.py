"""The configurations that experiments compare, as data, and the servers that they mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from hiqcache.capacity import Capacity, by_ratio, by_size
from hiqcache.codec.catalog import BASELINE, RECOMMENDED, codec_names
from hiqcache.errors import UsageError
from hiqcache.geometry import Geometry
from hiqcache.lab.fleet import Arm, Pools

GIGABYTE = 10**9
LAYOUT = {"write_back": "layer_first", "write_through": "page_first"}
"""What each policy goes with where nothing else is said: `write_through` with `page_first` are
SGLang's defaults, and `layer_first` needs no staging."""

LAYOUTS, PAGES = ("layer_first", "page_first"), (1, 16, 64)


@dataclass(frozen=True)
class Configuration:
    """A codec under one way of writing to L2.

    Parameters
    ----------
    codec
        `HIQCACHE_CODEC`; `off` is SGLang's own BF16 HiCache, None is a server without L2.
    policy, layout
        `--hicache-write-policy` and `--hicache-mem-layout`; None without L2.
    page
        `--page-size`; that of the invocation when None.
    """

    name: str
    codec: str | None = None
    policy: str | None = None
    layout: str | None = None
    page: int | None = None

    @classmethod
    def of(cls, codec: str, policy: str, layout: str, page: int) -> Configuration:
        """Under the name that says all four."""
        return cls(f"{_record(codec)}-{policy}-{layout}-{page}", codec, policy, layout, page)

    def on_cpu(self) -> Configuration:
        """The same where there is no GPU: SGLang's own pool needs CUDA, HiQCache's does not."""
        return replace(self, codec=BASELINE) if self.codec == "off" else self

    @property
    def record(self) -> str | None:
        """The record format in L2, by the name that `capacity` knows."""
        return self.codec and _record(self.codec)


def _record(codec: str) -> str:
    return BASELINE if codec == "off" else codec


CODECS = ("off", *(name for name in codec_names() if name != BASELINE))

SHORT = (
    *(
        Configuration(f"{_record(codec)}-{policy}", codec, policy, layout)
        for policy, layout in LAYOUT.items()
        for codec in CODECS
    ),
    Configuration("none"),
)
"""Each policy with the layout that goes with it, at the page of the invocation. In the order in
which they take their places on the GPUs: pairs to compare stay together."""

MATRIX = tuple(
    Configuration.of(codec, policy, layout, page)
    for page in PAGES
    for policy in LAYOUT
    for layout in LAYOUTS
    for codec in CODECS
)
CONFIGURATIONS = (*SHORT, *MATRIX)

DEFAULTS = (
    *(one for one in MATRIX if one.codec == "off"),
    *(
        Configuration.of(RECOMMENDED, policy, layout, page)
        for page in PAGES
        for policy, layout in LAYOUT.items()
    ),
    Configuration("none"),
)
"""What B compares unless it is told: everything that a user of BF16 might run, since a baseline
is the best of it, the recommended codec at every page under both policies, and no L2."""


def configurations(patterns: Sequence[str]) -> tuple[Configuration, ...]:
    """Configurations by name, in the table's order.

    Parameters
    ----------
    patterns
        Names, or such as `bf16-*-64`.

    Raises
    ------
    UsageError
        A name that is not in the table.
    """
    for pattern in patterns:
        if not any(fnmatchcase(one.name, pattern) for one in CONFIGURATIONS):
            raise UsageError(
                f"unknown arm {pattern!r}: expected some of "
                f"{', '.join(one.name for one in SHORT)}; or with layout and page, such as "
                f"{MATRIX[0].name}; or a pattern of these, such as 'bf16-*-64'"
            )
    return tuple(
        one for one in CONFIGURATIONS if any(fnmatchcase(one.name, name) for name in patterns)
    )


@dataclass(frozen=True)
class Sizing:
    """How large L2 is: so many bytes for every codec, or so many tokens for every codec.

    Qwen3-8B with 8 GB: `--hicache-size 8`, 54,254 tokens of BF16 and 96,451 of `int8`. With
    54,254 tokens: a ratio that gives them, 8.000 GB and 4.500 GB.
    """

    budget_bytes: int | None = None
    tokens: int | None = None

    def arguments(
        self, geometry: Geometry, record: str, l1_tokens: int, page: int
    ) -> tuple[str, ...]:
        """SGLang's flag for this size."""
        if self.budget_bytes is not None and self.budget_bytes % GIGABYTE == 0:
            return "--hicache-size", str(self.budget_bytes // GIGABYTE)
        return "--hicache-ratio", repr(self._ratio(geometry, record, l1_tokens, page))

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


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A configuration with its pools: everything that makes two servers different."""

    configuration: Configuration
    l1_tokens: int
    sizing: Sizing
    page: int

    @property
    def name(self) -> str:
        """How results call it: the configuration, with L2's tokens where they were chosen."""
        tokens = self.sizing.tokens
        return self.configuration.name + ("" if tokens is None else f"@{tokens}")

    def capacity(self, geometry: Geometry) -> Capacity | None:
        """L2 in tokens and bytes; None without L2."""
        record = self.configuration.record
        if record is None:
            return None
        return self.sizing.capacity(geometry, record, self.l1_tokens, self.page)

    def arm(self, geometry: Geometry) -> Arm:
        """The arm whose server this is."""
        one = self.configuration
        l2 = (
            self.sizing.arguments(geometry, one.record, self.l1_tokens, self.page)
            if one.record
            else None
        )
        pools = Pools(
            l1_tokens=self.l1_tokens, l2=l2, page=self.page, policy=one.policy, layout=one.layout
        )
        return Arm(name=self.name, codec=one.codec, pools=pools)
