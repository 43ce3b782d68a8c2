"""Everything HiQCache reads from the environment, read once, in one place.

| variable | values | default |
| --- | --- | --- |
| `HIQCACHE_CODEC` | `off` or a codec's name | `off` |
| `HIQCACHE_TRANSFER` | `auto` or a transfer's name | `auto` |
| `HIQCACHE_PROGRAMS` | 2 to 1024 | the transfer's own |
| `HIQCACHE_VERIFY` | `off`, `sample`, `full` | `off` |
| `SGLANG_EXPERIMENTAL_HICACHE_INT8` | `1`, `0` | unset; `1` stands for `HIQCACHE_CODEC=int8` |

`docs/configuration.md` documents them for users; a test holds that page against `VARIABLES`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from hiqcache.codec.record import RECORD_FORMATS
from hiqcache.errors import UsageError

PREFIX = "HIQCACHE_"
ALIAS = "SGLANG_EXPERIMENTAL_HICACHE_INT8"
OFF = "off"
CODEC_CHOICES = (OFF, *RECORD_FORMATS)
TRANSFER_CHOICES = ("auto", "fused", "staged", "torch")
VERIFY_CHOICES = (OFF, "sample", "full")
LEAST_PROGRAMS, MOST_PROGRAMS = 2, 1024
"""A launch needs a thread block for K and one for V."""
VARIABLES = ("HIQCACHE_CODEC", "HIQCACHE_TRANSFER", "HIQCACHE_PROGRAMS", "HIQCACHE_VERIFY", ALIAS)


@dataclass(frozen=True)
class Config:
    """What the plugin was asked to do.

    `codec` is None when HiQCache is off: SGLang then runs as if it were not installed.
    `programs` bounds the thread blocks of a transfer's kernels; None leaves it to the transfer.
    `verify` says which tokens' records are compared with their checksums.
    """

    codec: str | None = None
    transfer: str = "auto"
    programs: int | None = None
    verify: str = OFF

    @property
    def enabled(self) -> bool:
        return self.codec is not None

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Config:
        """Read the environment.

        Raises
        ------
        UsageError
            An unknown `HIQCACHE_*` variable, a value that is not one of the choices, or an
            alias that contradicts `HIQCACHE_CODEC`.
        """
        environ = os.environ if environ is None else environ
        for name in sorted(environ):
            if name.startswith(PREFIX) and name not in VARIABLES:
                raise UsageError(
                    f"unknown variable {name}: expected one of {', '.join(VARIABLES)}; "
                    f"unset it or correct its name"
                )
        codec = _choice(environ, "HIQCACHE_CODEC", CODEC_CHOICES)
        transfer = _choice(environ, "HIQCACHE_TRANSFER", TRANSFER_CHOICES) or "auto"
        alias = _choice(environ, ALIAS, ("0", "1"))
        if alias == "1":
            if codec not in (None, "int8"):
                raise UsageError(
                    f"{ALIAS}=1 stands for HIQCACHE_CODEC=int8, but HIQCACHE_CODEC={codec}; "
                    f"unset one of them"
                )
            codec = "int8"
        return cls(
            codec=None if codec in (None, OFF) else codec,
            transfer=transfer,
            programs=_whole(environ, "HIQCACHE_PROGRAMS", LEAST_PROGRAMS, MOST_PROGRAMS),
            verify=_choice(environ, "HIQCACHE_VERIFY", VERIFY_CHOICES) or OFF,
        )


def _choice(environ: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str | None:
    value = environ.get(name)
    if value is None or value in choices:
        return value
    raise UsageError(
        f"{name}={value!r} is not understood: expected one of {', '.join(choices)}; "
        f"correct it or unset it"
    )


def _whole(environ: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    value = environ.get(name)
    if value is None:
        return None
    if value.isascii() and value.isdigit() and least <= int(value) <= most:
        return int(value)
    raise UsageError(
        f"{name}={value!r} is not understood: expected a whole number from {least} to {most}; "
        f"correct it or unset it"
    )
