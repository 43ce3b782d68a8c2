"""Failing closed: how a refusal inside SGLang ends the process instead of being swallowed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from typing import Any

from hiqcache.errors import HiQCacheError, IntegrityError
from hiqcache.supervisor import write_refusal


@contextmanager
def fail_closed(*, every_exception: bool = False, what: str = "start") -> Iterator[None]:
    """Turn a HiQCache refusal into one line on stderr and `SystemExit`.

    SGLang catches `Exception` around plugins and around the scheduler; in the scheduler it
    then kills the process tree with SIGKILL, which a container reports as 137, the code of an
    out-of-memory kill. `SystemExit` is not an `Exception`: it ends the process with our code.

    Parameters
    ----------
    every_exception
        Also stop on anything unexpected. For the plugin's entry point, where an error that is
        not a refusal would otherwise mean a server without HiQCache.
    what
        What is stopped: the `start`, or the `server`.
    """
    try:
        yield
    except HiQCacheError as error:
        _say(what, str(error), error.exit_code)
        raise SystemExit(error.exit_code) from error
    except Exception as error:
        if not every_exception:
            raise
        reason = f"the plugin failed to load: {type(error).__name__}: {error}"
        _say(what, reason, HiQCacheError.exit_code)
        raise SystemExit(HiQCacheError.exit_code) from error


def end_with_own_code(processes: Iterable[Any]) -> None:
    """End this process with HiQCache's exit code, if one of its children ended with it.

    SGLang's launcher answers a child that fails while it serves by killing itself: 137 again.

    Parameters
    ----------
    processes
        The children, as `multiprocessing` has them.
    """
    if any(process.exitcode == IntegrityError.exit_code for process in processes):
        from sglang.srt.utils import kill_process_tree

        kill_process_tree(os.getpid(), include_parent=False)
        os._exit(IntegrityError.exit_code)


def end_if_orphaned() -> None:
    """End a process of the server whose parent has died while it was being started.

    SGLang has the kernel end its processes with their parent, but asks for that only after the
    imports, and the kernel does not look back.
    """
    parent = parent_process()
    if parent is not None and os.getppid() != parent.pid:
        os._exit(HiQCacheError.exit_code)


def warn(sentence: str) -> None:
    """One line on stderr, for what is said before SGLang has set up its log."""
    print(f"HiQCache warns: {sentence}", file=sys.stderr, flush=True)


def _say(what: str, reason: str, exit_code: int) -> None:
    line = f"HiQCache stops the {what}: {' '.join(reason.split())}"
    print(line, file=sys.stderr, flush=True)
    write_refusal(exit_code, line)
