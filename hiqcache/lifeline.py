"""A program that ends when the process that started it does, however that one ends.

Run as a script, in milliseconds and without HiQCache: `python lifeline.py PARENT COMMAND...` asks
the kernel for SIGKILL at the parent's death and becomes COMMAND. Whatever starts a server uses
`tied`: `hiqcache serve` and the laboratory.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def tied(command: list[str]) -> list[str]:
    """The command that starts `command` so that it does not outlive this process.

    The kernel takes the thread that starts it for the parent: start it from one that stays.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def end_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends; end now if it has already.

    Parameters
    ----------
    parent
        The process id that the parent has, if it lives.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
