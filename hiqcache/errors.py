"""The ways HiQCache says no, and the exit code each one carries."""

from __future__ import annotations

from reprlib import Repr
from typing import Any

_brief = Repr()
_brief.maxstring = _brief.maxother = 80


def brief(value: Any) -> str:
    """`repr`, cut to a length that fits into a sentence."""
    return _brief.repr(value)


class HiQCacheError(Exception):
    """Something HiQCache was asked for cannot be done; the message is one clear sentence.

    The command line prints it on one line and exits with `exit_code`.
    """

    exit_code = 1


class UsageError(HiQCacheError):
    """Bad input: a flag, a variable, a file or a value. States what was expected and got."""

    exit_code = 2


class IntegrityError(HiQCacheError):
    """L2 does not hold what was put into it, found by `HIQCACHE_VERIFY`."""

    exit_code = 86
    """No shell, signal, Python or uvicorn (3: it cannot listen) ends a program with this one."""
