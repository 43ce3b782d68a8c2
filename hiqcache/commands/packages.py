"""Refuse a command whose packages are missing, in one line: every command that needs some."""

from __future__ import annotations

from importlib.util import find_spec

from hiqcache.errors import HiQCacheError


def require(*packages: str, extra: str) -> None:
    """Refuse to go on without a package of an extra, which a bare install lacks."""
    for package in packages:
        if find_spec(package) is None:
            raise HiQCacheError(f"{package} is not installed: pip install 'hiqcache[{extra}]'")
