"""Failing closed: how a refusal inside SGLang ends the process instead of being swallowed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hiqcache.errors import HiQCacheError


@contextmanager
def fail_closed(*, every_exception: bool = False) -> Iterator[None]:
    """Turn a HiQCache refusal into one line on stderr and `SystemExit`.

    SGLang catches `Exception` around plugins and around the scheduler; in the scheduler it
    then kills the process tree with SIGKILL, which a container reports as 137, the code of an
    out-of-memory kill. `SystemExit` is not an `Exception`: it ends the process with our code.

    Parameters
    ----------
    every_exception
        Also stop on anything unexpected. For the plugin's entry point, where an error that is
        not a refusal would otherwise mean a server without HiQCache.
    """
    try:
        yield
    except HiQCacheError as error:
        _say(str(error))
        raise SystemExit(error.exit_code) from error
    except Exception as error:
        if not every_exception:
            raise
        _say(f"the plugin failed to load: {type(error).__name__}: {error}")
        raise SystemExit(1) from error


def _say(reason: str) -> None:
    line = " ".join(reason.split())
    print(f"HiQCache stops the start: {line}", file=sys.stderr, flush=True)
