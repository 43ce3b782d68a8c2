"""Everything HiQCache reads from the environment, read once, in one place.

The fields of `Config` are the table of settings: a field's name in capitals behind `HIQCACHE_`
is the variable, and its values stand beside it. What is parsed and what messages say follows from
them, and a test holds `docs/configuration.md` against `SETTINGS`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from hiqcache.budget import POOLS, TOKENS_PER_STATE, parse_split
from hiqcache.codec.catalog import RETIRED, codec_entry, codec_names
from hiqcache.errors import UsageError

PREFIX = "HIQCACHE_"
ALIAS = "SGLANG_EXPERIMENTAL_HICACHE_INT8"
OFF = "off"
FUSED, TORCH = TRANSFERS = ("fused", "torch")
"""Every transfer. `hiqcache/transfer/` builds them."""
TRANSFER_CHOICES = ("auto", *TRANSFERS)
VERIFY_EVERY = {"sample": 16, "full": 1}
"""Which tokens `HIQCACHE_VERIFY` looks at: those whose host slot is a multiple of this."""
VERIFY_CHOICES = (OFF, *VERIFY_EVERY)
REMOVED = {
    (f"{PREFIX}TRANSFER", "staged"): "it moved records by SGLang's copy kernel, which was slower "
    "than fused everywhere; unset it, or choose fused or torch",
}
"""Values that were once understood, and what became of them."""
LEAST_PROGRAMS, MOST_PROGRAMS = 2, 1024
"""A launch needs a thread block for K and one for V."""
MOST_TOKENS_PER_STATE = 2**20

MISSPELT_EDITS = 2
"""A name this close to a setting's was meant as that setting."""

COMPOSE = ("HIQCACHE_MODEL",)
"""As close to `HIQCACHE_CODEC`, but one of compose.yaml's own (`.env.example`)."""


class Values(Protocol):
    """What a setting may be."""

    @property
    def expected(self) -> str: ...

    def parse(self, text: str) -> Any:
        """The value that is meant; None if the text is not one of them."""


@dataclass(frozen=True)
class Choice:
    """One of a few words, in capitals or not."""

    words: tuple[str, ...]

    @property
    def expected(self) -> str:
        return f"one of {', '.join(self.words)}"

    def parse(self, text: str) -> str | None:
        return text.lower() if text.lower() in self.words else None


@dataclass(frozen=True)
class Whole:
    """A whole number."""

    least: int
    most: int

    @property
    def expected(self) -> str:
        return f"a whole number from {self.least} to {self.most}"

    def parse(self, text: str) -> int | None:
        # Python refuses to read a number of thousands of digits.
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            return None
        return int(text) if self.least <= int(text) <= self.most else None


@dataclass(frozen=True)
class CodecName:
    """`off` or a codec of the catalog; a name that is no more says what took its place."""

    @property
    def words(self) -> tuple[str, ...]:
        return (OFF, *codec_names())

    @property
    def expected(self) -> str:
        return Choice(self.words).expected

    def parse(self, text: str) -> str | None:
        if text.lower() in RETIRED:
            codec_entry(text.lower())
        return Choice(self.words).parse(text)


def codec_choices() -> tuple[str, ...]:
    """What `HIQCACHE_CODEC` takes."""
    return CodecName().words


@dataclass(frozen=True)
class Parts:
    """Parts of a whole, by pool."""

    names: tuple[str, ...]
    example: str

    @property
    def expected(self) -> str:
        return f"parts of {', '.join(self.names)} that add up to 1, as in {self.example}"

    def parse(self, text: str) -> dict[str, float] | None:
        return parse_split(text)


def _setting(values: Values, default: Any) -> Any:
    return field(default=default, metadata={"values": values})


@dataclass(frozen=True)
class Config:
    """What the plugin was asked to do.

    `codec` is None when HiQCache is off: SGLang then runs as if it were not installed.
    `programs` bounds the thread blocks of a transfer's kernels; None leaves it to the transfer.
    `verify` says which tokens' records are compared with their checksums.
    `tokens_per_state` and `split` say how a stack's pools share `--hicache-size` (`budget.py`).
    """

    codec: str | None = _setting(CodecName(), None)
    transfer: str = _setting(Choice(TRANSFER_CHOICES), "auto")
    programs: int | None = _setting(Whole(LEAST_PROGRAMS, MOST_PROGRAMS), None)
    verify: str = _setting(Choice(VERIFY_CHOICES), OFF)
    tokens_per_state: int = _setting(Whole(1, MOST_TOKENS_PER_STATE), TOKENS_PER_STATE)
    split: Mapping[str, float] | None = _setting(Parts(POOLS, "kv=0.8,state=0.2"), None)

    @property
    def enabled(self) -> bool:
        return self.codec is not None

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Config:
        """Read the environment.

        With `HIQCACHE_CODEC=off` nothing else is read and nothing is refused. Without a codec
        only what may have been meant as one is.

        Raises
        ------
        UsageError
            A setting that is misspelt or cannot be read, or an alias that contradicts
            `HIQCACHE_CODEC`.
        """
        environ = os.environ if environ is None else environ
        codec = _read(environ, CODEC)
        if codec == OFF:
            return cls()
        alias = _read(environ, ALIAS)
        if alias == "1":
            if codec not in (None, "int8"):
                raise UsageError(
                    f"{ALIAS}=1 stands for {CODEC}=int8, but {CODEC}={codec}; unset one of them"
                )
            codec = "int8"
        for name, meant in _misspelt(environ).items():
            if codec is not None or meant in (CODEC, ALIAS):
                raise UsageError(
                    f"unknown variable {name}, which is close to the setting {meant}: correct its "
                    f"name or unset it"
                )
        if codec is None:
            return cls()
        read = {_field(name): _read(environ, name) for name in SETTINGS if name != ALIAS}
        given = {name: value for name, value in read.items() if value is not None}
        return cls(**{**given, "codec": codec})


CODEC = f"{PREFIX}CODEC"
SETTINGS: dict[str, Values] = {
    **{f"{PREFIX}{each.name.upper()}": each.metadata["values"] for each in fields(Config)},
    ALIAS: Choice(("0", "1")),
}


def passed_over(environ: Mapping[str, str] | None = None) -> str | None:
    """One sentence about every `HIQCACHE_*` variable that nothing is made of; None without any.

    Kubernetes sets some for a Service of that name, and Compose reads others of its own.
    """
    environ = os.environ if environ is None else environ
    names = {name for name in environ if name.startswith(PREFIX) and name not in SETTINGS}
    if not Config.from_env(environ).enabled:
        set_here = SETTINGS.keys() & environ.keys()
        names |= {name for name in set_here if SETTINGS[name].parse(environ[name]) is None}
        names |= _misspelt(environ).keys()
    if not names:
        return None
    return (
        f"not read, since none is a setting that is in force: {', '.join(sorted(names))}; the "
        f"settings are {', '.join(SETTINGS)}"
    )


def _read(environ: Mapping[str, str], name: str) -> Any:
    if name not in environ:
        return None
    value = SETTINGS[name].parse(environ[name])
    if value is None:
        if (name, environ[name]) in REMOVED:
            raise UsageError(f"{name}={environ[name]} was removed: {REMOVED[name, environ[name]]}")
        raise UsageError(
            f"{name}={environ[name]!r} is not understood: expected {SETTINGS[name].expected}; "
            f"correct it or unset it"
        )
    return value


def _field(name: str) -> str:
    return name.removeprefix(PREFIX).lower()


def _misspelt(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that are no settings but close to one, each with the setting that was meant."""
    found = {}
    for name in sorted(environ.keys() - SETTINGS.keys() - {*COMPOSE}):
        edits, meant = min((_edits(name.upper(), setting), setting) for setting in SETTINGS)
        if edits <= MISSPELT_EDITS:
            found[name] = meant
    return found


def _edits(a: str, b: str) -> int:
    """Letters to put in, take out or change until one name is the other (Levenshtein)."""
    if abs(len(a) - len(b)) > MISSPELT_EDITS:
        return MISSPELT_EDITS + 1
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (x != y)))
    return row[-1]
