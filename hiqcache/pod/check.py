"""The outcome of one check, as a line for a person and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from hiqcache.errors import HiQCacheError

Status = Literal["ok", "warning", "failed", "skipped"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Parameters
    ----------
    name
        What was looked at, in a word or two; `docs/doctor.md` has a row for it.
    status
        `failed`: a server would not start or would be killed. `warning`: it may. `skipped`:
        could not be looked at, and `text` says why.
    text
        What was found, with its figures.
    fix
        What to do about it; empty when nothing is to be done.
    """

    name: str
    status: Status
    text: str
    fix: str = ""

    def sentence(self) -> str:
        """What was found and what to do, on one line."""
        return " ".join((f"{self.text}: {self.fix}" if self.fix else self.text).split())

    def line(self) -> str:
        return f"{self.status:<8} {self.name:<16} {self.sentence()}"


def attempt(name: str, look: Callable[[], str]) -> Check:
    """A check whose failure is a refusal that some other part of HiQCache already words."""
    try:
        return Check(name, "ok", look())
    except (HiQCacheError, OSError) as error:  # an import may write, such as flashinfer's log
        return Check(name, "failed", str(error))


def failed(checks: Iterable[Check]) -> bool:
    return any(check.status == "failed" for check in checks)
