"""Where an engine is, and what it is called: `--engine URL` or `--engine NAME=URL`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from hiqcache.errors import UsageError

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
NAMED = re.compile(r"([^/:?#]*)=(.*)", re.DOTALL)
LONGEST = 300


@dataclass(frozen=True)
class Address:
    """An engine's base address; `name` is None for a single engine that was given none.

    Parameters
    ----------
    name
        The value of the label `engine`, such as `int8`.
    url
        Scheme, host, port and path without a slash at the end.
    """

    name: str | None
    url: str


def parse_address(text: str) -> Address:
    """Read `URL` or `NAME=URL`.

    Raises
    ------
    UsageError
        A name or an address that is not one, or an address that carries a password or a query.
    """
    named = NAMED.fullmatch(text)
    name, url = named.groups() if named else (None, text)
    if name is not None and not NAME.fullmatch(name):
        raise UsageError(
            f"engine name {_shown(name)}: expected up to 32 of a-z, 0-9, _ and -, such as int8"
        )
    return Address(name, _checked(url))


def parse_addresses(texts: Sequence[str]) -> list[Address]:
    """All engines of one sidecar; several need names of their own.

    Raises
    ------
    UsageError
        What `parse_address` refuses, two engines of one name, or several without names.
    """
    addresses = [parse_address(text) for text in texts]
    names = [address.name for address in addresses]
    if len(names) > 1 and None in names:
        raise UsageError("several engines need names: --engine bf16=URL --engine int8=URL")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two engines are called {name}")
    return addresses


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"engine address {_shown(url)}: {error}") from None
    if parts.username is not None or parts.password is not None:
        # Not repeated in the message: what stands before the @ may be a secret.
        raise UsageError("engine address: a user or password in it is not supported")
    printable = url.isascii() and url.isprintable() and " " not in url and len(url) <= LONGEST
    if parts.scheme not in ("http", "https") or not host or not printable:
        raise UsageError(
            f"engine address {_shown(url)}: expected http://HOST:PORT, such as "
            f"http://127.0.0.1:30000"
        )
    if parts.query or parts.fragment:
        raise UsageError(f"engine address {_shown(url)}: takes no ? and no #")
    return url.rstrip("/")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}...")
